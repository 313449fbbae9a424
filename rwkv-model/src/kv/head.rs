use std::collections::VecDeque;
use std::ops::Range;

use rwkv_kernels::{
    ATTEND_QUERIES, Isa, KvBlock, KvFormat, KvHead, KvRows, KvRowsMut, add_assign, attend_each,
    attention_weights,
};

use super::BLOCK_ROWS;
use crate::attention::Compression;
use crate::config::ATTENTION_HEAD;
use crate::floats::Floats;

/// Numbers of a block of rows: keys or values.
const BLOCK_NUMBERS: usize = BLOCK_ROWS * ATTENTION_HEAD;

/// The stored rows of one head. Row 0 is the first that is stored.
#[derive(Debug, Clone)]
pub(crate) struct HeadRows {
    format: KvFormat,
    blocks: VecDeque<Block>,
    rows: usize,
    /// The mean keys of complete chunks, `[chunks, 64]`; they follow from the rows.
    means: Vec<f32>,
}

/// [`BLOCK_ROWS`] rows. Those not yet written are zero.
#[derive(Debug, Clone)]
struct Block {
    keys: Floats,
    values: Floats,
}

fn rows_of(format: KvFormat, numbers: &Floats) -> KvRows<'_> {
    match format {
        KvFormat::F32 => KvRows::F32(numbers),
        KvFormat::F16 => KvRows::F16(bytemuck::cast_slice(numbers)),
    }
}

fn rows_of_mut(format: KvFormat, numbers: &mut Floats) -> KvRowsMut<'_> {
    match format {
        KvFormat::F32 => KvRowsMut::F32(numbers),
        KvFormat::F16 => KvRowsMut::F16(bytemuck::cast_slice_mut(numbers)),
    }
}

impl HeadRows {
    pub fn new(format: KvFormat) -> HeadRows {
        HeadRows { format, blocks: VecDeque::new(), rows: 0, means: Vec::new() }
    }

    pub fn clear(&mut self) {
        self.blocks.clear();
        self.means.clear();
        self.rows = 0;
    }

    /// Forgets the first rows.
    pub fn drop_blocks(&mut self, blocks: usize) {
        self.blocks.drain(..blocks);
        self.rows -= blocks * BLOCK_ROWS;
    }

    /// Writes a row: one that is there, or the next one.
    pub fn write(&mut self, row: usize, key: &[f32], value: &[f32]) {
        let (block, row_of_block) = (row / BLOCK_ROWS, row % BLOCK_ROWS);
        if block == self.blocks.len() {
            let numbers = BLOCK_NUMBERS * self.format.bytes() / 4;
            self.blocks.push_back(Block { keys: Floats::zeroed(numbers), values: Floats::zeroed(numbers) });
        }
        let Block { keys, values } = &mut self.blocks[block];
        rows_of_mut(self.format, keys).write_key(row_of_block, key);
        rows_of_mut(self.format, values).write_value(row_of_block, value);
        self.rows = self.rows.max(row + 1);
    }

    pub fn read(&self, row: usize, key: &mut [f32], value: &mut [f32]) {
        self.read_key(row, key);
        let values = &self.blocks[row / BLOCK_ROWS].values;
        rows_of(self.format, values).read_value(row % BLOCK_ROWS, value);
    }

    fn read_key(&self, row: usize, key: &mut [f32]) {
        let keys = &self.blocks[row / BLOCK_ROWS].keys;
        rows_of(self.format, keys).read_key(row % BLOCK_ROWS, key);
    }

    /// Adds rows, `[rows, 64]` each.
    pub fn append(&mut self, keys: &[f32], values: &[f32]) {
        for (key, value) in keys.chunks_exact(ATTENTION_HEAD).zip(values.chunks_exact(ATTENTION_HEAD)) {
            self.write(self.rows, key, value);
        }
    }

    /// Computes the mean keys of the chunks that have become complete.
    pub fn extend_means(&mut self, isa: Isa, chunk_rows: usize) {
        let mut key = [0.0; ATTENTION_HEAD];
        while (self.means.len() / ATTENTION_HEAD + 1) * chunk_rows <= self.rows {
            let first = self.means.len() / ATTENTION_HEAD * chunk_rows;
            let mut sum = [0.0; ATTENTION_HEAD];
            for row in first..first + chunk_rows {
                self.read_key(row, &mut key);
                add_assign(isa, &mut sum, &key);
            }
            self.means.extend(sum.map(|sum| sum / chunk_rows as f32));
        }
    }

    /// The mean key of a complete chunk.
    pub fn mean(&self, chunk: usize) -> &[f32] {
        &self.means[chunk * ATTENTION_HEAD..][..ATTENTION_HEAD]
    }

    /// Attends with queries, `[queries, 64]`, to some rows each. `weights` is for the weights of the rows.
    pub fn attend(
        &self,
        isa: Isa,
        q: &[f32],
        visible: &[&[Range<usize>]],
        weights: &mut Vec<f32>,
        y: &mut [f32],
    ) {
        // A list that grows in place may take twice what it needs.
        let needed = self.blocks.len() * BLOCK_ROWS * visible.len().min(ATTEND_QUERIES);
        if weights.capacity() < needed {
            *weights = Vec::with_capacity(needed);
        }
        self.with_blocks(|head| attend_each(isa, q, head, visible, weights, y));
    }

    /// How much a query attends to each of some rows.
    pub fn weights(&self, isa: Isa, q: &[f32], visible: &[Range<usize>], weights: &mut Vec<f32>) {
        self.with_blocks(|head| attention_weights(isa, q, head, visible, weights));
    }

    fn with_blocks(&self, f: impl FnOnce(KvHead<'_>)) {
        let view = |numbers| rows_of(self.format, numbers);
        let blocks: Vec<KvBlock<'_>> = self
            .blocks
            .iter()
            .map(|block| KvBlock { keys: view(&block.keys), values: view(&block.values) })
            .collect();
        f(KvHead { n: ATTENTION_HEAD, block_rows: BLOCK_ROWS, blocks: &blocks });
    }

    /// Keeps the rows that a query attends to most, in descending order, and the last ones.
    pub fn compress(&mut self, isa: Isa, q: &[f32], compression: &Compression, votes: &mut Vec<f32>) {
        let Compression { keep, window, .. } = *compression;
        if keep >= self.rows {
            return;
        }
        let past = self.rows - window;
        self.weights(isa, q, std::slice::from_ref(&(0..past)), votes);
        let mut order: Vec<usize> = (0..past).collect();
        order.sort_by(|&a, &b| votes[b].total_cmp(&votes[a]));
        order.truncate(keep - window);
        let mut kept = HeadRows::new(self.format);
        let (mut key, mut value) = ([0.0; ATTENTION_HEAD], [0.0; ATTENTION_HEAD]);
        for row in order.into_iter().chain(past..self.rows) {
            self.read(row, &mut key, &mut value);
            kept.append(&key, &value);
        }
        *self = kept;
    }
}

impl PartialEq for HeadRows {
    /// Compares bits of what is stored.
    fn eq(&self, other: &HeadRows) -> bool {
        let same = |a: &Floats, b: &Floats| a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits()));
        self.format == other.format
            && self.rows == other.rows
            && self.blocks.len() == other.blocks.len()
            && self
                .blocks
                .iter()
                .zip(&other.blocks)
                .all(|(a, b)| same(&a.keys, &b.keys) && same(&a.values, &b.values))
    }
}
