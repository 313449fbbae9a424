//! The key/value cache of an attention block: it grows in blocks of rows, head by head.

mod budget;
mod head;
mod limits;
mod room;

pub(crate) use budget::{Budget, Charge};
pub(crate) use head::HeadRows;
pub(crate) use limits::KvLimits;
pub(crate) use room::Room;

use rwkv_kernels::KvFormat;

use crate::attention::Attention;
use crate::config::{ATTENTION_HEAD, Config};

/// Rows by which a cache grows.
pub(crate) const BLOCK_ROWS: usize = 64;

/// The rows of one attention block.
///
/// Rows that a window has left behind are dropped in whole blocks; what is stored begins at a multiple of [`BLOCK_ROWS`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KvCache {
    pub heads: Vec<HeadRows>,
    /// Rows so far, dropped ones included, those that were compressed away not.
    rows: usize,
    dropped: usize,
}

impl KvCache {
    pub fn new(config: &Config, format: KvFormat) -> KvCache {
        let heads = config.width / ATTENTION_HEAD;
        KvCache { heads: (0..heads).map(|_| HeadRows::new(format)).collect(), rows: 0, dropped: 0 }
    }

    /// Rows so far.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Rows that are no longer stored: the first ones.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// Says that the heads have so many rows now, and drops those that no later token will see.
    pub fn set_rows(&mut self, rows: usize, attention: &Attention) {
        self.rows = rows;
        if let Attention::Window(window) = attention {
            let unseen = (rows + 1).saturating_sub(*window);
            let blocks = (unseen - self.dropped.min(unseen)) / BLOCK_ROWS;
            self.heads.iter_mut().for_each(|head| head.drop_blocks(blocks));
            self.dropped += blocks * BLOCK_ROWS;
        }
    }

    pub fn clear(&mut self) {
        self.heads.iter_mut().for_each(HeadRows::clear);
        (self.rows, self.dropped) = (0, 0);
    }

    /// Takes rows from a file: `[rows, C]` each, the first of them being row `dropped`.
    pub fn fill(&mut self, dropped: usize, keys: &[f32], values: &[f32]) {
        let width = self.heads.len() * ATTENTION_HEAD;
        let rows = keys.len() / width;
        for (index, head) in self.heads.iter_mut().enumerate() {
            for (row, (key, value)) in keys.chunks_exact(width).zip(values.chunks_exact(width)).enumerate() {
                let channels = index * ATTENTION_HEAD..(index + 1) * ATTENTION_HEAD;
                head.write(row, &key[channels.clone()], &value[channels]);
            }
        }
        (self.dropped, self.rows) = (dropped, dropped + rows);
    }

    /// The stored keys, and the stored values: `[rows, C]` each.
    pub fn to_rows(&self) -> [Vec<f32>; 2] {
        let width = self.heads.len() * ATTENTION_HEAD;
        let stored = self.rows - self.dropped;
        let mut both = [vec![0.0; stored * width], vec![0.0; stored * width]];
        let [keys, values] = &mut both;
        for (index, head) in self.heads.iter().enumerate() {
            for row in 0..stored {
                let at = row * width + index * ATTENTION_HEAD;
                let channels = at..at + ATTENTION_HEAD;
                head.read(row, &mut keys[channels.clone()], &mut values[channels]);
            }
        }
        both
    }
}

/// Bytes of the caches of all attention blocks when each stores so many rows.
pub(crate) fn bytes_of(config: &Config, format: KvFormat, attention: &Attention, rows: usize) -> u64 {
    let means = attention.top_k().map_or(0, |top_k| rows / top_k.chunk_rows);
    let mean_bytes = (means * config.attention * config.width * 4) as u64;
    rows.next_multiple_of(BLOCK_ROWS) as u64 * config.kv_row_bytes(format) + mean_bytes
}

/// The most rows that a cache stores at a time while it takes in tokens, at most `chunk` in one go.
pub(crate) fn peak_rows(attention: &Attention, stored: usize, tokens: usize, chunk: usize) -> usize {
    let all = stored + tokens;
    match (attention, attention.compression()) {
        (Attention::Window(window), _) => all.min((window + chunk + BLOCK_ROWS).max(stored + chunk)),
        (_, Some(compression)) => all.min((compression.above + 1).max(stored)),
        _ => all,
    }
}
