use std::fmt;

use rwkv_kernels::KvFormat;
use serde::{Deserialize, Serialize};

use crate::block::Block;
use crate::error::{Result, bail};
use crate::names::{self, Shapes};
use crate::weights::read_description;

/// The sizes of an RWKV-7 or RWKV-X model. All of them come from the shapes of its tensors.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Blocks with a time mix, L, those that are [not run](Config::active_layers) included.
    pub layers: usize,
    /// Channels of the embedding, C; `heads * head_size`.
    pub width: usize,
    /// Heads of the time mix, H.
    pub heads: usize,
    /// Channels of a head, N: a multiple of 16.
    pub head_size: usize,
    /// Channels inside the channel mix, F.
    pub ffn: usize,
    /// Tokens, V: embedding rows and logits.
    pub vocab: usize,
    /// Rank of the decay's low-rank matrices `w1`, `w2`.
    pub rank_w: usize,
    /// Rank of the in-context learning rate's low-rank matrices `a1`, `a2`.
    pub rank_a: usize,
    /// Rank of the value residual's low-rank matrices `v1`, `v2`; 0 in a model of one block, which has none.
    pub rank_v: usize,
    /// Rank of the gate's low-rank matrices `g1`, `g2`.
    pub rank_g: usize,
    /// Blocks with attention, A: none in RWKV-7.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attention: usize,
}

/// Channels of a head of the attention blocks, whatever the heads of the time mix are.
pub(crate) const ATTENTION_HEAD: usize = 64;

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Larger than any model; keeps products of sizes far from overflow.
const MAX_SIZE: usize = 1 << 24;
const MAX_LAYERS: usize = 1 << 12;
/// Official models have heads of 64; flattened head vectors would look like one huge head.
const MAX_HEAD_SIZE: usize = 256;

/// Sizes of the published models: name, layers, attention blocks, width, ranks of w, a, v, g.
const OFFICIAL: [(&str, [usize; 2], usize, [usize; 4]); 8] = [
    ("0.1b", [12, 0], 768, [64, 64, 32, 128]),
    ("0.4b", [24, 0], 1024, [64, 64, 32, 128]),
    ("1.5b", [24, 0], 2048, [96, 96, 64, 256]),
    ("2.9b", [32, 0], 2560, [96, 96, 64, 320]),
    ("7.2b", [32, 0], 4096, [128, 128, 96, 480]),
    ("13.3b", [61, 0], 4096, [192, 192, 128, 384]),
    ("x-0.2b", [12, 4], 768, [64, 64, 32, 128]),
    ("x-3.6b", [32, 8], 2560, [96, 96, 64, 320]),
];

impl Config {
    /// The sizes of a published model of the World vocabulary: `0.1b`, `0.4b`, `1.5b`, `2.9b`, `7.2b`, `13.3b`, and of
    /// RWKV-X `x-0.2b` or `x-3.6b`.
    pub fn official(name: &str) -> Option<Config> {
        let &(_, [layers, attention], width, [rank_w, rank_a, rank_v, rank_g]) =
            OFFICIAL.iter().find(|(official, ..)| *official == name)?;
        Some(Config {
            layers,
            width,
            heads: width / 64,
            head_size: 64,
            ffn: 4 * width,
            vocab: 65536,
            rank_w,
            rank_a,
            rank_v,
            rank_g,
            attention,
        })
    }

    /// The names that [`Config::official`] knows: RWKV-7, then RWKV-X, smallest first.
    pub fn official_names() -> impl Iterator<Item = &'static str> {
        OFFICIAL.iter().map(|(name, ..)| *name)
    }

    /// Reads the sizes from tensor names and shapes of a checkpoint, and checks that every tensor is there, has
    /// the shape that the sizes imply (dimensions of 1 are ignored), and that nothing else is there.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind) for another family or spelling, which the error names;
    /// [`ErrorKind::Checkpoint`](crate::ErrorKind) for a tensor that is missing, superfluous or wrongly shaped.
    pub fn from_shapes<'a>(tensors: impl IntoIterator<Item = (&'a str, &'a [usize])>) -> Result<Config> {
        let shapes = Shapes::new(tensors)?;
        let config = names::read_config(&shapes)?;
        config.validate()?;
        names::check_complete(&config, &shapes)?;
        Ok(config)
    }

    /// Reads the sizes from the manifest of a pack. Whether the tensors are there and of these sizes is only checked when the
    /// pack is opened as a [`Model`](crate::Model).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind) for a model of another family, [`ErrorKind::Pack`](crate::ErrorKind) for sizes
    /// that no model has.
    pub fn from_manifest(manifest: &rwkv_pack::Manifest) -> Result<Config> {
        read_description(&manifest.model)
    }

    /// Checks what the rest of the crate relies on.
    pub(crate) fn validate(&self) -> Result<()> {
        let sizes = [
            ("layers", self.layers, MAX_LAYERS),
            ("width", self.width, MAX_SIZE),
            ("heads", self.heads, MAX_SIZE),
            ("head size", self.head_size, MAX_HEAD_SIZE),
            ("ffn width", self.ffn, MAX_SIZE),
            ("vocabulary", self.vocab, MAX_SIZE),
            ("rank of w1", self.rank_w, MAX_SIZE),
            ("rank of a1", self.rank_a, MAX_SIZE),
            ("rank of g1", self.rank_g, MAX_SIZE),
        ];
        for (what, size, max) in sizes {
            if size == 0 || size > max {
                bail!(Checkpoint, "{what} is {size}; expected 1 to {max}");
            }
        }
        if self.rank_v > MAX_SIZE || (self.rank_v == 0 && self.layers > 1) {
            bail!(Checkpoint, "rank of v1 is {}; expected 1 to {MAX_SIZE}", self.rank_v);
        }
        if self.attention > self.layers {
            let (attention, layers) = (self.attention, self.layers);
            bail!(
                Checkpoint,
                "{attention} attention blocks; expected at most {layers}, one per block with a time mix"
            );
        }
        if self.attention > 0 && !self.width.is_multiple_of(ATTENTION_HEAD) {
            let width = self.width;
            bail!(
                Checkpoint,
                "width is {width}; expected a multiple of {ATTENTION_HEAD}, the size of attention heads"
            );
        }
        if !self.head_size.is_multiple_of(16) {
            bail!(Checkpoint, "head size is {}; expected a multiple of 16", self.head_size);
        }
        if self.heads * self.head_size != self.width {
            let (heads, head_size, width) = (self.heads, self.head_size, self.width);
            bail!(Checkpoint, "{heads} heads of {head_size} channels do not make the width {width}");
        }
        Ok(())
    }

    /// Weights of the model, block 0's unused `v0`, `v1`, `v2` not counted.
    pub fn parameters(&self) -> u64 {
        names::expected(self)
            .iter()
            .map(|tensor| tensor.dims.iter().map(|&d| d as u64).product::<u64>())
            .sum()
    }

    /// Bytes of one session's new [`State`](crate::State): all of it, but for the key/value cache of RWKV-X, which grows.
    pub fn state_bytes(&self) -> u64 {
        let rwkv = self.layers * (2 * self.width + self.width * self.head_size);
        (rwkv + self.attention * self.width) as u64 * 4
    }

    /// Channels of a head of the attention blocks, whatever the heads of the time mix are.
    pub fn attention_head_size(&self) -> usize {
        ATTENTION_HEAD
    }

    /// Bytes that a token adds to the key/value caches of all attention blocks.
    pub fn kv_row_bytes(&self, format: KvFormat) -> u64 {
        (self.attention * 2 * self.width * format.bytes()) as u64
    }

    /// Blocks with a time mix that are run. RWKV-X runs as many before each attention block; what L is more than a multiple
    /// of A is in the checkpoint, and is never run: neither here nor in the reference.
    pub fn active_layers(&self) -> usize {
        self.layers - self.layers % self.attention.max(1)
    }

    /// The blocks in the order in which they are run: `L / A` with a time mix before each with attention.
    pub fn blocks(&self) -> impl Iterator<Item = Block> + use<> {
        let (layers, attention) = (self.active_layers(), self.attention);
        let run = layers / attention.max(1);
        (0..layers).flat_map(move |block| {
            let ends_run = attention > 0 && (block + 1) % run == 0;
            let after = ends_run.then(|| Block::Attention(block / run));
            std::iter::once(Block::Rwkv(block)).chain(after)
        })
    }

    /// `RWKV-7` or `RWKV-X`.
    pub fn family(&self) -> &'static str {
        if self.attention > 0 { "RWKV-X" } else { "RWKV-7" }
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} ", self.family(), self.layers)?;
        if self.attention > 0 {
            write!(f, "+ {} ", self.attention)?;
        }
        write!(
            f,
            "blocks of width {} ({} heads of {}), ffn {}, vocabulary {}, ranks w {} a {} v {} g {}",
            self.width,
            self.heads,
            self.head_size,
            self.ffn,
            self.vocab,
            self.rank_w,
            self.rank_a,
            self.rank_v,
            self.rank_g
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_sizes_have_the_published_numbers_of_weights() {
        let published = [191.1, 450.8, 1527.7, 2948.1, 7199.9, 13270.3, 219.4, 3577.0];
        for (name, millions) in Config::official_names().zip(published) {
            let config = Config::official(name).unwrap();
            // The published numbers count the first block's unused value residual.
            let unused = config.width * (1 + 2 * config.rank_v);
            let found = (config.parameters() + unused as u64) as f64 / 1e6;
            assert!(
                (found - millions).abs() < if name == "x-3.6b" { 0.6 } else { 0.06 },
                "{name}: {found} million, published {millions}"
            );
        }
    }

    #[test]
    fn attention_blocks_come_after_equal_runs_and_what_is_left_is_not_run() {
        let order = |layers, attention| -> String {
            let config = Config { layers, attention, ..Config::official("0.1b").unwrap() };
            config
                .blocks()
                .map(|block| match block {
                    Block::Rwkv(number) => format!("r{number}"),
                    Block::Attention(number) => format!("a{number}"),
                })
                .collect()
        };
        assert_eq!(order(2, 0), "r0r1");
        assert_eq!(order(2, 1), "r0r1a0");
        assert_eq!(order(6, 2), "r0r1r2a0r3r4r5a1");
        assert_eq!(order(5, 2), "r0r1a0r2r3a1");
        assert_eq!(order(2, 2), "r0a0r1a1");
    }
}
