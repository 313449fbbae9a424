//! Small random checkpoints, made here so that no file is needed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rwkv_model::Config;

/// A tensor's shape and values.
pub type Tensor = (Vec<usize>, Vec<f32>);

/// A checkpoint in memory.
#[derive(Clone)]
pub struct Weights {
    pub config: Config,
    pub tensors: BTreeMap<String, Tensor>,
}

/// Numbers for tests: a linear congruential generator, its upper bits.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    /// The next number in -1..1, a multiple of 2^-11 so that it is exact in f16.
    pub fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 52) as i32 - 2048) as f32 / 2048.0
    }

    /// Tokens below `vocab`.
    pub fn tokens(&mut self, count: usize, vocab: usize) -> Vec<u32> {
        (0..count).map(|_| (((self.next() + 1.0) / 2.0) * vocab as f32) as u32 % vocab as u32).collect()
    }
}

/// Sizes that are all different, and no multiples of tiles and groups where they need not be.
pub fn config(layers: usize, heads: usize, head_size: usize) -> Config {
    let width = heads * head_size;
    Config {
        layers,
        width,
        heads,
        head_size,
        ffn: 3 * width + 8,
        vocab: 2 * width + 5,
        rank_w: 12,
        rank_a: 7,
        rank_v: if layers > 1 { 5 } else { 0 },
        rank_g: 19,
        attention: 0,
    }
}

/// The same with attention blocks, whose heads are of 64 channels: `width / head_size` heads of the time mix.
pub fn hybrid(layers: usize, attention: usize, width: usize, head_size: usize) -> Config {
    Config { attention, ffn: 2 * width + 8, ..config(layers, width / head_size, head_size) }
}

/// Random weights under which activations keep their size and every formula matters.
pub fn weights(config: &Config, seed: u64) -> Weights {
    let mut numbers = Numbers::new(seed);
    let mut tensors = BTreeMap::new();
    let mut add = |name: String, shape: Vec<usize>, mean: f32, spread: f32| {
        let count = shape.iter().product();
        let values = (0..count).map(|_| mean + spread * numbers.next()).collect();
        tensors.insert(name, (shape, values));
    };
    let Config { layers, width: c, heads, head_size, ffn, vocab, .. } = *config;
    let about = |inputs: usize| (3.0 / inputs as f32).sqrt();
    add("emb.weight".into(), vec![vocab, c], 0.0, 1.0);
    add("head.weight".into(), vec![vocab, c], 0.0, about(c));
    for norm in ["ln_out", "blocks.0.ln0"] {
        add(format!("{norm}.weight"), vec![c], 1.0, 0.4);
        add(format!("{norm}.bias"), vec![c], 0.0, 0.3);
    }
    for block in 0..layers {
        let name = |suffix: &str| format!("blocks.{block}.{suffix}");
        for norm in ["ln1", "ln2", "att.ln_x"] {
            add(name(&format!("{norm}.weight")), vec![c], 1.0, 0.4);
            add(name(&format!("{norm}.bias")), vec![c], 0.0, 0.3);
        }
        for letter in ["r", "w", "k", "v", "a", "g"] {
            add(name(&format!("att.x_{letter}")), vec![1, 1, c], 0.5, 0.5);
        }
        add(name("ffn.x_k"), vec![1, 1, c], 0.5, 0.5);
        add(name("att.w0"), vec![1, 1, c], -1.0, 3.0);
        add(name("att.a0"), vec![1, 1, c], 0.0, 1.0);
        add(name("att.k_k"), vec![1, 1, c], 0.8, 0.3);
        add(name("att.k_a"), vec![1, 1, c], 0.8, 0.4);
        add(name("att.r_k"), vec![heads, head_size], 0.0, 0.3);
        let ranks = [('w', config.rank_w), ('a', config.rank_a), ('v', config.rank_v), ('g', config.rank_g)];
        for (letter, rank) in ranks.into_iter().filter(|&(letter, _)| letter != 'v' || block > 0) {
            add(name(&format!("att.{letter}1")), vec![c, rank], 0.0, about(c));
            add(name(&format!("att.{letter}2")), vec![rank, c], 0.0, about(rank));
        }
        if block > 0 {
            add(name("att.v0"), vec![1, 1, c], 0.3, 0.5);
        }
        for matrix in ["receptance", "key", "value", "output"] {
            add(name(&format!("att.{matrix}.weight")), vec![c, c], 0.0, about(c));
        }
        add(name("ffn.key.weight"), vec![ffn, c], 0.0, about(c));
        add(name("ffn.value.weight"), vec![c, ffn], 0.0, about(ffn));
    }
    for block in 0..config.attention {
        let name = |suffix: &str| format!("moba.{block}.{suffix}");
        for norm in ["ln1", "ln2"] {
            add(name(&format!("{norm}.weight")), vec![c], 1.0, 0.4);
            add(name(&format!("{norm}.bias")), vec![c], 0.0, 0.3);
        }
        for matrix in ["receptance", "key"] {
            // Scores of some size, so that it matters what is attended to.
            add(name(&format!("att.{matrix}.weight")), vec![c, c], 0.0, 1.5 * about(c));
        }
        for matrix in ["value", "output"] {
            add(name(&format!("att.{matrix}.weight")), vec![c, c], 0.0, about(c));
        }
        add(name("ffn.x_k"), vec![1, 1, c], 0.5, 0.5);
        add(name("ffn.key.weight"), vec![ffn, c], 0.0, about(c));
        add(name("ffn.value.weight"), vec![c, ffn], 0.0, about(ffn));
    }
    Weights { config: config.clone(), tensors }
}

impl Weights {
    /// The values of a tensor.
    pub fn get(&self, name: &str) -> &[f32] {
        &self.tensors.get(name).unwrap_or_else(|| panic!("no tensor {name}")).1
    }

    /// The values of a tensor, to be changed.
    pub fn get_mut(&mut self, name: &str) -> &mut [f32] {
        &mut self.tensors.get_mut(name).unwrap_or_else(|| panic!("no tensor {name}")).1
    }

    /// Gives a tensor another name.
    pub fn rename(&mut self, from: &str, to: &str) {
        let tensor = self.tensors.remove(from).unwrap_or_else(|| panic!("no tensor {from}"));
        self.tensors.insert(to.to_owned(), tensor);
    }

    /// Writes them as an F32 safetensors checkpoint into a directory.
    pub fn save(&self, dir: &Path) -> PathBuf {
        let path = dir.join("checkpoint.safetensors");
        let bytes: BTreeMap<&str, Vec<u8>> = self
            .tensors
            .iter()
            .map(|(name, (_, values))| (name.as_str(), values.iter().flat_map(|v| v.to_le_bytes()).collect()))
            .collect();
        let views = self.tensors.iter().map(|(name, (shape, _))| {
            let bytes = &bytes[name.as_str()];
            (
                name,
                safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap(),
            )
        });
        std::fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
        path
    }
}
