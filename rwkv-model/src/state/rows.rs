//! What a state remembers of attention blocks.

use super::*;

impl State {
    /// Which rows of the key/value cache each token attends to; chosen when the state was made.
    pub fn attention(&self) -> Attention {
        self.attention
    }

    /// How keys and values are stored; chosen when the state was made.
    pub fn kv_format(&self) -> KvFormat {
        self.kv_format
    }

    /// The `ln2` output of the last token in an attention block: `[C]`.
    ///
    /// # Panics
    /// The model has no such block.
    pub fn attention_shift(&self, block: usize) -> &[f32] {
        self.shift_of(Block::Attention(block))
    }

    /// The stored keys and values of an attention block, `[rows, C]` each, widened.
    ///
    /// # Panics
    /// The model has no such block.
    pub fn keys_and_values(&self, block: usize) -> [Vec<f32>; 2] {
        self.kv[block].to_rows()
    }

    /// The most rows that a token can see while so many more are fed: those of [`AttentionWeights::visible`] end there at most.
    ///
    /// [`AttentionWeights::visible`]: crate::AttentionWeights::visible
    pub fn most_attention_rows(&self, tokens: usize) -> usize {
        let cached = self.kv.first().map_or(0, KvCache::rows);
        match self.attention.compression() {
            Some(compression) => (cached + tokens).min(cached.max(compression.above + 1)),
            None => cached + tokens,
        }
    }

    pub(crate) fn kv(&self, block: usize) -> &KvCache {
        &self.kv[block]
    }

    pub(crate) fn kv_mut(&mut self, block: usize) -> &mut KvCache {
        &mut self.kv[block]
    }

    /// Says that a block's cache has so many rows now.
    pub(crate) fn set_kv_rows(&mut self, block: usize, rows: usize) {
        self.kv[block].set_rows(rows, &self.attention);
    }

    /// Stored rows, which are as many in every attention block.
    pub(super) fn kv_stored(&self) -> usize {
        self.kv.first().map_or(0, |cache| cache.rows() - cache.dropped())
    }

    pub(super) fn kv_bytes_of(&self, rows: usize) -> u64 {
        bytes_of(self.identity.config(), self.kv_format, &self.attention, rows)
    }

    /// Bytes that the cache will have at most while it takes in so many tokens, at most `chunk` in one go.
    pub(crate) fn kv_peak_bytes(&self, tokens: usize, chunk: usize) -> u64 {
        let rows = peak_rows(&self.attention, self.kv_stored(), tokens, chunk);
        if self.kv.is_empty() { 0 } else { self.kv_bytes_of(rows) }
    }

    /// The bytes that the budget would have to give for that.
    pub(crate) fn kv_needs(&self, budget: &Arc<Budget>, peak: u64) -> u64 {
        peak.saturating_sub(self.kv_charge(budget))
    }

    /// The bytes that the cache has of a budget.
    pub(crate) fn kv_charge(&self, budget: &Arc<Budget>) -> u64 {
        if self.charge.is_of(budget) { self.charge.bytes() } else { 0 }
    }

    /// Takes bytes for the cache from a budget.
    pub(crate) fn charge_kv(&mut self, budget: &Arc<Budget>, bytes: u64) {
        self.charge = Charge::new(Arc::clone(budget), bytes);
    }
}
