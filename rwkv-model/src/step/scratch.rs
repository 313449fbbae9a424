use std::sync::{Mutex, PoisonError};

use rwkv_kernels::{Activations, Panels, SparseRows};

use crate::config::Config;

/// The buffers of a sweep, kept from one to the next.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// The most rows so far.
    rows: usize,
    /// The residual stream, `[rows, C]`.
    pub x: Vec<f32>,
    /// The last layer norm of it, `[rows, C]`.
    pub normed: Vec<f32>,
    /// What the last matrix gave, to be added to `x`.
    pub delta: Panels,
    /// The inputs r w k v a g of the time mix.
    pub mixed: [Activations; 6],
    /// The heads' rows: one panel per head.
    pub heads: HeadPanels,
    /// The weights of the rows that a query attends to, a list for each task of an attention block.
    pub attention_weights: Vec<Vec<f32>>,
    /// The hidden rows of the low-rank matrices w a v g, as they come and as an input.
    pub hidden: [Panels; 4],
    pub hidden_input: [Activations; 4],
    /// The input of a single matrix: output, key, head.
    pub input: Activations,
    /// For what a task of heads, or of the channel mix, has for itself.
    pub buffers: Buffers,
    /// What is not zero of the channel mix's hidden rows.
    pub active: SparseRows,
    /// Some of the logits.
    pub logits: Panels,
    pub bytes: Vec<u8>,
}

/// What the heads of the time mix, or of attention, work on, each `[rows, C]` with a panel per head.
#[derive(Debug, Default)]
pub(crate) struct HeadPanels {
    pub r: Panels,
    pub k: Panels,
    pub v: Panels,
    pub v_first: Panels,
    pub y: Panels,
}

/// Memory that tasks borrow while they run: as many buffers as threads need at a time.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Mutex<Vec<Vec<f32>>>);

impl Buffers {
    /// Runs `f` with a buffer of `len` elements, whose content is unspecified.
    pub fn lend(&self, len: usize, f: impl FnOnce(&mut [f32])) {
        let free = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = free().pop().unwrap_or_default();
        // It takes no more than it needs, as the budget counts it.
        buffer.reserve_exact(len.saturating_sub(buffer.len()));
        buffer.resize(len, 0.0);
        f(&mut buffer);
        free().push(buffer);
    }
}

impl HeadPanels {
    /// Gives a new width to those that attention uses, for heads of another size; their content is lost.
    pub fn reset_attention(&mut self, rows: usize, width: usize, head_size: usize) {
        for panels in [&mut self.r, &mut self.k, &mut self.v, &mut self.y] {
            panels.reset(rows, width, head_size);
        }
    }
}

impl Scratch {
    /// Takes the shape of a sweep.
    pub fn reset(&mut self, config: &Config, rows: usize) {
        // Buffers that grow in place may take twice what they need. How much they need is counted in `budget.rs`.
        if rows > self.rows {
            *self = Scratch { rows, ..Scratch::default() };
        }
        self.x.clear();
        self.x.reserve_exact(rows * config.width);
        self.normed.resize(rows * config.width, 0.0);
        let heads = &mut self.heads;
        for panels in [&mut heads.r, &mut heads.k, &mut heads.v, &mut heads.v_first, &mut heads.y] {
            panels.reset(rows, config.width, config.head_size);
        }
    }
}
