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
//! What was used last stays longest; what goes from memory may go to the disk.

use super::spill::Spill;
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
    /// States on disk.
    pub files: usize,
    /// Their bytes.
    pub file_bytes: u64,
    /// States that were read back from there.
    pub restored: u64,
}

/// A state that was found.
#[derive(Debug)]
pub(super) struct Hit {
    pub tokens: usize,
    pub state: State,
    /// Those after the last token, if they were kept.
    pub logits: Option<Vec<f32>>,
}

/// What is kept: the state after tokens, and perhaps the logits.
#[derive(Debug)]
pub(super) struct Entry {
    pub tokens: Vec<u32>,
    pub state: State,
    pub logits: Option<Vec<f32>>,
    pub used: u64,
}

impl Entry {
    /// The same for a prompt that begins with the tokens.
    fn hit(&self, prompt: &[u32]) -> Hit {
        let logits = if self.tokens.len() == prompt.len() { self.logits.clone() } else { None };
        Hit { tokens: self.tokens.len(), state: self.state.clone(), logits }
    }

    /// The same, given away.
    fn into_hit(self, prompt: &[u32]) -> Hit {
        let Entry { tokens, state, logits, .. } = self;
        Hit { tokens: tokens.len(), state, logits: logits.filter(|_| tokens.len() == prompt.len()) }
    }

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
    spill: Option<Spill>,
}

impl PrefixCache {
    /// A cache of so many bytes, and of files.
    pub fn new(limit_bytes: u64, spill: Option<Spill>) -> PrefixCache {
        let stats = PrefixStats { limit_bytes, ..PrefixStats::default() };
        PrefixCache { entries: Vec::new(), clock: 0, stats, spill }
    }

    pub fn stats(&self) -> PrefixStats {
        let (files, file_bytes) = self.spill.as_ref().map_or((0, 0), Spill::len_and_bytes);
        PrefixStats { entries: self.entries.len(), files, file_bytes, ..self.stats }
    }

    pub fn is_enabled(&self) -> bool {
        self.limit_bytes() > 0
    }

    /// The most bytes of states in memory.
    pub fn limit_bytes(&self) -> u64 {
        self.stats.limit_bytes
    }

    /// The longest known sequence that the prompt begins with: a copy, or the state itself where its keys and values have no room
    /// once more.
    ///
    /// If logits after the prompt are wanted, the whole of it is known only together with them.
    pub fn find(&mut self, prompt: &[u32], wants_logits: bool) -> Option<Hit> {
        self.clock += 1;
        let is_usable = |&index: &usize| {
            let Entry { tokens, logits, .. } = &self.entries[index];
            prompt.starts_with(tokens) && (tokens.len() < prompt.len() || !wants_logits || logits.is_some())
        };
        let known = (0..self.entries.len()).filter(is_usable);
        let best = known.max_by_key(|&index| self.entries[index].tokens.len());
        let len = best.map_or(0, |index| self.entries[index].tokens.len());
        let on_disk = self.spill.as_ref().and_then(|spill| spill.find(prompt, wants_logits, len));
        let hit = if let Some(entry) = on_disk {
            self.stats.restored += 1;
            let hit = entry.hit(prompt);
            self.push(Entry { used: self.clock, ..entry });
            hit
        } else if let Some(index) = best {
            self.entries[index].used = self.clock;
            match self.entries[index].state.fits_again() {
                true => self.entries[index].hit(prompt),
                false => self.remove(index).into_hit(prompt),
            }
        } else {
            self.stats.misses += 1;
            return None;
        };
        self.stats.hits += 1;
        self.stats.reused_tokens += hit.tokens as u64;
        Some(hit)
    }

    /// How many tokens the prompt has in common with the known sequence that it follows longest.
    pub fn shared(&self, prompt: &[u32]) -> usize {
        let in_memory = self.entries.iter().map(|entry| common(&entry.tokens, prompt)).max();
        let on_disk = self.spill.as_ref().map_or(0, |spill| spill.shared(prompt));
        on_disk.max(in_memory.unwrap_or(0))
    }

    /// Keeps what is after these tokens, a state and perhaps logits, and drops what was not used for longest to make room. One
    /// that is known already counts as used. `state_bytes` is how large the state is: one that cannot stay is not asked for.
    pub fn keep(
        &mut self,
        tokens: &[u32],
        state_bytes: u64,
        after: impl FnOnce() -> (State, Option<Vec<f32>>),
    ) {
        if tokens.len() < LEAST_TOKENS || state_bytes >= self.limit_bytes() {
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
        self.push(Entry { tokens: tokens.to_vec(), state, logits, used: self.clock });
    }

    /// Takes in an entry, if it is any good and there can be room for it, in the place of one of the same tokens.
    fn push(&mut self, entry: Entry) {
        if entry.state.is_poisoned() {
            return;
        }
        if let Some(same) = self.entries.iter().position(|other| other.tokens == entry.tokens) {
            self.remove(same);
        }
        let bytes = entry.bytes();
        if bytes > self.stats.limit_bytes {
            return;
        }
        while self.stats.bytes + bytes > self.stats.limit_bytes && self.evict() {}
        self.stats.bytes += bytes;
        self.entries.push(entry);
    }

    /// Drops the state that was not used for longest; whether there was one.
    pub fn evict(&mut self) -> bool {
        let oldest = (0..self.entries.len()).min_by_key(|&index| self.entries[index].used);
        if let Some(index) = oldest {
            let entry = self.remove(index);
            self.stats.evicted += 1;
            self.spilled(entry);
        }
        oldest.is_some()
    }

    fn remove(&mut self, index: usize) -> Entry {
        let entry = self.entries.swap_remove(index);
        self.stats.bytes -= entry.bytes();
        entry
    }

    fn spilled(&self, entry: Entry) {
        if let Some(spill) = &self.spill {
            spill.offer(entry);
        }
    }

    /// Ends the cache: what is in memory goes to the disk.
    pub fn put_away(&mut self) {
        let mut entries = std::mem::take(&mut self.entries);
        self.stats.bytes = 0;
        if let Some(spill) = self.spill.take() {
            entries.sort_by_key(|entry| entry.used);
            entries.into_iter().for_each(|entry| spill.put(entry));
        }
    }
}

/// How many tokens two sequences begin with in common.
pub(super) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
