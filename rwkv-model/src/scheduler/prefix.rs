//! States after known token sequences, so that a prompt which begins with one goes on from there.
//!
//! A state is exact: the model goes on from it in the same bits as if it had been fed the tokens. So what is found depends on the
//! history of requests, and what is generated does not.
//!
//! States cannot be cut, unlike caches of keys and values: a state is of use at its very position alone. Kept are those
//! that are likely to be met again:
//! - after a prompt, with its logits: for the same prompt once more, and what goes on from it;
//! - after the generated text, and a few tokens before its end: for the next turn of a chat, even if that spells the end
//!   of the text in other tokens;
//! - where a prompt parts from a known sequence: both began with the same preamble, so others will.
//!
//! What was used last stays longest.

use crate::state::State;

/// Sequences shorter than this are read as quickly as they are found.
pub(super) const LEAST_TOKENS: usize = 8;

/// What the prefix cache has done, and what it holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixStats {
    /// States in memory.
    pub entries: usize,
    /// Their bytes, with their tokens and logits.
    pub bytes: u64,
    /// The most that they may take.
    pub limit_bytes: u64,
    /// Requests that went on from a state.
    pub hits: u64,
    /// Requests that were looked up in vain.
    pub misses: u64,
    /// Tokens that were not fed because of that.
    pub reused_tokens: u64,
    /// States that made room for others.
    pub evicted: u64,
}

/// A state that was found.
#[derive(Debug)]
pub(super) struct Hit {
    pub tokens: usize,
    pub state: State,
    /// Those after the last token, if they were kept.
    pub logits: Option<Vec<f32>>,
}

#[derive(Debug)]
struct Entry {
    tokens: Vec<u32>,
    state: State,
    logits: Option<Vec<f32>>,
    used: u64,
}

impl Entry {
    fn bytes(&self) -> u64 {
        let logits = self.logits.as_ref().map_or(0, Vec::len);
        self.state.bytes() + 4 * (self.tokens.len() + logits) as u64
    }
}

/// The cache.
#[derive(Debug)]
pub(super) struct PrefixCache {
    entries: Vec<Entry>,
    clock: u64,
    stats: PrefixStats,
}

impl PrefixCache {
    /// A cache of so many bytes.
    pub fn new(limit_bytes: u64) -> PrefixCache {
        let stats = PrefixStats { limit_bytes, ..PrefixStats::default() };
        PrefixCache { entries: Vec::new(), clock: 0, stats }
    }

    pub fn stats(&self) -> PrefixStats {
        PrefixStats { entries: self.entries.len(), ..self.stats }
    }

    pub fn is_enabled(&self) -> bool {
        self.stats.limit_bytes > 0
    }

    /// The longest known sequence that the prompt begins with.
    ///
    /// If logits after the prompt are wanted, the whole of it is known only together with them.
    pub fn find(&mut self, prompt: &[u32], wants_logits: bool) -> Option<Hit> {
        let is_usable = |entry: &&mut Entry| {
            let len = entry.tokens.len();
            prompt.starts_with(&entry.tokens)
                && (len < prompt.len() || !wants_logits || entry.logits.is_some())
        };
        let found = self.entries.iter_mut().filter(is_usable).max_by_key(|entry| entry.tokens.len());
        let Some(entry) = found else {
            self.stats.misses += 1;
            return None;
        };
        self.clock += 1;
        entry.used = self.clock;
        self.stats.hits += 1;
        self.stats.reused_tokens += entry.tokens.len() as u64;
        let logits = if entry.tokens.len() == prompt.len() { entry.logits.clone() } else { None };
        Some(Hit { tokens: entry.tokens.len(), state: entry.state.clone(), logits })
    }

    /// How many tokens the prompt has in common with the known sequence that it follows longest.
    pub fn shared(&self, prompt: &[u32]) -> usize {
        let common = |entry: &Entry| entry.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        self.entries.iter().map(common).max().unwrap_or(0)
    }

    /// Keeps what is after these tokens, a state and perhaps logits, and drops what was not used for longest to make room. One
    /// that is known already counts as used.
    pub fn keep(&mut self, tokens: &[u32], after: impl FnOnce() -> (State, Option<Vec<f32>>)) {
        if !self.is_enabled() || tokens.len() < LEAST_TOKENS {
            return;
        }
        self.clock += 1;
        let known = self.entries.iter().position(|entry| entry.tokens == tokens);
        if let Some(index) = known {
            let entry = &mut self.entries[index];
            entry.used = self.clock;
            if entry.logits.is_some() {
                return;
            }
        }
        let (state, logits) = after();
        if known.is_some() && logits.is_none() {
            return;
        }
        let entry = Entry { tokens: tokens.to_vec(), state, logits, used: self.clock };
        if entry.state.is_poisoned() || entry.bytes() > self.stats.limit_bytes {
            return;
        }
        if let Some(index) = known {
            self.remove(index);
        }
        while self.stats.bytes + entry.bytes() > self.stats.limit_bytes && self.evict() {}
        self.stats.bytes += entry.bytes();
        self.entries.push(entry);
    }

    /// Drops the state that was not used for longest; whether there was one.
    pub fn evict(&mut self) -> bool {
        let oldest = (0..self.entries.len()).min_by_key(|&index| self.entries[index].used);
        if let Some(index) = oldest {
            self.remove(index);
            self.stats.evicted += 1;
        }
        oldest.is_some()
    }

    fn remove(&mut self, index: usize) -> Entry {
        let entry = self.entries.swap_remove(index);
        self.stats.bytes -= entry.bytes();
        entry
    }
}
