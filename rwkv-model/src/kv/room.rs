use rwkv_kernels::{ATTEND_QUERIES, KvFormat};

use super::{BLOCK_ROWS, bytes_of, peak_rows};
use crate::attention::Attention;
use crate::config::{ATTENTION_HEAD, Config};

/// What keys and values take, and what attention takes to go over them.
///
/// Attention has a list of weights for each query at a time of each head, one number for each row that is seen. One block is
/// attended to after the other, so this is a fixed share of what the rows take themselves.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    config: &'a Config,
    attention: Attention,
    format: KvFormat,
    chunk_rows: usize,
}

impl<'a> Room<'a> {
    pub fn new(config: &'a Config, attention: Attention, format: KvFormat, chunk_rows: usize) -> Room<'a> {
        Room { config, attention, format, chunk_rows: chunk_rows.min(MOST_TOKENS) }
    }

    /// Keys and values of a session that takes in so many tokens, chunk by chunk.
    pub fn session_bytes(&self, tokens: usize) -> u64 {
        let tokens = tokens.min(MOST_TOKENS);
        let most_stored = match (&self.attention, self.attention.compression()) {
            // Rows are dropped in whole blocks, once no later token sees them.
            (Attention::Window(rows), _) => rows + BLOCK_ROWS,
            (_, Some(compression)) => compression.above + 1,
            _ => tokens,
        };
        let stored = tokens.saturating_sub(self.chunk_rows).min(most_stored);
        let rows = peak_rows(&self.attention, stored, tokens - stored, self.chunk_rows);
        // Whole rows, so that the memory for them is enough for them.
        let [row, _] = self.row();
        bytes_of(self.config, self.format, &self.attention, rows).next_multiple_of(row)
    }

    /// The memory for so many bytes of keys and values.
    pub fn memory_of(&self, kv_bytes: u64) -> u64 {
        let [row, weights] = self.row();
        kv_bytes.saturating_add((kv_bytes / row).saturating_add(1).saturating_mul(weights))
    }

    /// The most bytes of keys and values that this much memory is enough for.
    pub fn within(&self, memory: u64) -> u64 {
        let [row, weights] = self.row();
        let kv_bytes =
            u128::from(memory.saturating_sub(weights)) * u128::from(row) / u128::from(row + weights);
        kv_bytes as u64
    }

    /// Bytes of a row in all blocks, and of the weights of all queries for it.
    fn row(&self) -> [u64; 2] {
        let heads = self.config.width / ATTENTION_HEAD;
        [self.config.kv_row_bytes(self.format), (heads * ATTEND_QUERIES * 4) as u64]
    }
}

/// More than any session has, and few enough for its bytes to be counted.
const MOST_TOKENS: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::{Compression, TopK};

    #[test]
    fn what_fits_takes_no_more_than_there_is() {
        let config = Config::official("x-0.2b").unwrap();
        for format in [KvFormat::F16, KvFormat::F32] {
            let room = Room::new(&config, Attention::Full, format, 256);
            for memory in (0..3_000_000).step_by(99_991).chain([u64::MAX / 2, u64::MAX]) {
                let kv_bytes = room.within(memory);
                assert!(kv_bytes == 0 || room.memory_of(kv_bytes) <= memory, "{kv_bytes} of {memory}");
                let missing = memory - kv_bytes;
                assert!(missing < memory / 20 + 20_000, "{kv_bytes} of {memory} is little");
            }
        }
    }

    #[test]
    fn what_is_compressed_has_an_end() {
        let config = Config::official("x-0.2b").unwrap();
        let compression = Some(Compression { above: 400, keep: 100, window: 6 });
        let attention = Attention::TopK(TopK { compression, ..TopK::default() });
        let room = Room::new(&config, attention, KvFormat::F16, 32);
        assert_eq!(room.session_bytes(usize::MAX), room.session_bytes(401));
        assert!(room.session_bytes(300) < room.session_bytes(401));
    }

    #[test]
    fn a_window_has_an_end() {
        let config = Config::official("x-0.2b").unwrap();
        let row = config.kv_row_bytes(KvFormat::F16);
        let rows =
            |attention, tokens| Room::new(&config, attention, KvFormat::F16, 256).session_bytes(tokens) / row;
        assert_eq!([1, 64, 65].map(|tokens| rows(Attention::Full, tokens)), [64, 64, 128]);
        assert_eq!(rows(Attention::Full, 100_000), 100_032);
        assert_eq!(rows(Attention::Window(2048), 100), 128);
        assert_eq!(rows(Attention::Window(2048), 100_000), 2048 + 64 + 256);
        assert_eq!(rows(Attention::Window(2048), usize::MAX), 2048 + 64 + 256);
    }
}
