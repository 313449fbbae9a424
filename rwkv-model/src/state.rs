mod file;
mod rows;

use std::fmt;
use std::sync::Arc;

use rwkv_kernels::KvFormat;

use crate::attention::Attention;
use crate::block::Block;
use crate::config::Config;
use crate::error::{Result, bail};
use crate::floats::Floats;
use crate::identity::Identity;
use crate::kv::{Budget, Charge, KvCache, bytes_of, peak_rows};

/// Everything a session remembers: a value that can be cloned, compared, saved, restored and reset.
///
/// Per block it holds the last token's `ln1` and `ln2` outputs (for the two token shifts, `[C]` each) and
/// the state of the time mix, `[H, N, N]`; per attention block the last token's `ln2` output and the keys and values of the
/// tokens before. A new state is all zeros, without a key or value. It belongs to the model that made it and is of no use
/// to another.
///
/// Equality compares bits: two states are equal if the model would go on from them in the same way to the last bit.
#[derive(Clone)]
pub struct State {
    identity: Arc<Identity>,
    att_shift: Vec<f32>,
    /// `[layers + attention blocks, C]`.
    ffn_shift: Vec<f32>,
    /// `[layers, heads, key, value]`.
    wkv: Floats,
    attention: Attention,
    kv_format: KvFormat,
    /// One per attention block.
    kv: Vec<KvCache>,
    charge: Charge,
    tokens: u64,
    poisoned: bool,
}

impl State {
    pub(crate) fn new(
        identity: Arc<Identity>,
        attention: Attention,
        kv_format: KvFormat,
        budget: Arc<Budget>,
    ) -> State {
        let config = identity.config();
        let Config { layers, width, heads, head_size, attention: attention_blocks, .. } = *config;
        State {
            kv: (0..attention_blocks).map(|_| KvCache::new(config, kv_format)).collect(),
            identity,
            attention,
            kv_format,
            charge: Charge::new(budget, 0),
            att_shift: vec![0.0; layers * width],
            ffn_shift: vec![0.0; (layers + attention_blocks) * width],
            wkv: Floats::zeroed(layers * heads * head_size * head_size),
            tokens: 0,
            poisoned: false,
        }
    }

    /// The model that this state belongs to.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// How many tokens the state has seen since it was new or reset.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Bytes of memory that the state takes, the key/value cache included.
    pub fn bytes(&self) -> u64 {
        self.identity.config().state_bytes() + self.charge.bytes()
    }

    /// Whether the limit on keys and values has room for those of a copy.
    pub(crate) fn fits_again(&self) -> bool {
        self.charge.fits_again()
    }

    /// Makes the state new: all zeros, no tokens seen, usable. How it attends stays.
    pub fn reset(&mut self) {
        self.att_shift.fill(0.0);
        self.ffn_shift.fill(0.0);
        self.wkv.fill(0.0);
        self.kv.iter_mut().for_each(KvCache::clear);
        self.charge.set(0);
        self.tokens = 0;
        self.poisoned = false;
    }

    /// Whether a step failed halfway and left the state unusable, until it is [reset](State::reset) or replaced.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    /// The `ln1` output of the last token in a block: `[C]`.
    ///
    /// # Panics
    /// The model has no such block.
    pub fn att_shift(&self, block: usize) -> &[f32] {
        row(&self.att_shift, block, self.identity.config().width)
    }

    /// The `ln2` output of the last token in a block with a time mix: `[C]`.
    ///
    /// # Panics
    /// The model has no such block.
    pub fn ffn_shift(&self, block: usize) -> &[f32] {
        assert!(block < self.identity.config().layers, "block {block} of {}", self.identity.config().layers);
        self.shift_of(Block::Rwkv(block))
    }

    /// The time mix state of a head as `[N, N]` row-major, row = value channel, column = key channel.
    ///
    /// # Panics
    /// The model has no such block or head.
    pub fn wkv(&self, block: usize, head: usize) -> Vec<f32> {
        let config = self.identity.config();
        assert!(head < config.heads, "head {head} of {}", config.heads);
        let n = config.head_size;
        transposed(row(&self.wkv, block * config.heads + head, n * n), n)
    }

    /// The Euclidean norm of the time mix state of a head.
    ///
    /// # Panics
    /// The model has no such block or head.
    pub fn wkv_norm(&self, block: usize, head: usize) -> f32 {
        let config = self.identity.config();
        assert!(head < config.heads, "head {head} of {}", config.heads);
        let n = config.head_size;
        let state = row(&self.wkv, block * config.heads + head, n * n);
        state.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt() as f32
    }

    pub(crate) fn belongs_to(&self, identity: &Arc<Identity>) -> bool {
        Arc::ptr_eq(&self.identity, identity) || self.identity == *identity
    }

    pub(crate) fn check_usable(&self) -> Result<()> {
        if self.poisoned {
            bail!(
                State,
                "the state is from a step that failed halfway; expected one that is reset or restored"
            );
        }
        Ok(())
    }

    /// Unusable from here on, unless [`State::commit`] follows.
    pub(crate) fn poison(&mut self) {
        self.poisoned = true;
    }

    pub(crate) fn commit(&mut self, tokens: usize) {
        self.tokens += tokens as u64;
        self.charge.set(self.kv_bytes_of(self.kv_stored()));
        self.poisoned = false;
    }

    pub(crate) fn att_shift_mut(&mut self, block: usize) -> &mut [f32] {
        row_mut(&mut self.att_shift, block, self.identity.config().width)
    }

    /// The `ln2` output of the last token in a block of either kind.
    pub(crate) fn shift_of(&self, block: Block) -> &[f32] {
        row(&self.ffn_shift, self.shift_row(block), self.identity.config().width)
    }

    pub(crate) fn shift_of_mut(&mut self, block: Block) -> &mut [f32] {
        let index = self.shift_row(block);
        row_mut(&mut self.ffn_shift, index, self.identity.config().width)
    }

    fn shift_row(&self, block: Block) -> usize {
        match block {
            Block::Rwkv(number) => number,
            Block::Attention(number) => self.identity.config().layers + number,
        }
    }

    /// The heads' states of a block, each `[key, value]`.
    pub(crate) fn heads_mut(&mut self, block: usize) -> std::slice::ChunksExactMut<'_, f32> {
        let Config { width, head_size, .. } = *self.identity.config();
        row_mut(&mut self.wkv, block, width * head_size).chunks_exact_mut(head_size * head_size)
    }
}

impl PartialEq for State {
    fn eq(&self, other: &State) -> bool {
        let same = |a: &[f32], b: &[f32]| a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits()));
        self.identity == other.identity
            && (self.tokens, self.poisoned) == (other.tokens, other.poisoned)
            && same(&self.att_shift, &other.att_shift)
            && same(&self.ffn_shift, &other.ffn_shift)
            && same(&self.wkv, &other.wkv)
            && (self.attention, self.kv_format) == (other.attention, other.kv_format)
            && self.kv == other.kv
    }
}

impl Eq for State {}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("tokens", &self.tokens)
            .field("bytes", &self.bytes())
            .field("poisoned", &self.poisoned)
            .finish_non_exhaustive()
    }
}

fn row(rows: &[f32], index: usize, len: usize) -> &[f32] {
    &rows[index * len..(index + 1) * len]
}

fn row_mut(rows: &mut [f32], index: usize, len: usize) -> &mut [f32] {
    &mut rows[index * len..(index + 1) * len]
}

/// `[n, n]` with rows and columns swapped.
fn transposed(square: &[f32], n: usize) -> Vec<f32> {
    (0..n * n).map(|i| square[i % n * n + i / n]).collect()
}
