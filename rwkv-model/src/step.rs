//! One step: the next tokens of one or many sessions, in one sweep over the weights.
//!
//! ```text
//! rows = the tokens of all feeds, one after another; each feed's rows are contiguous
//! x = embedding of every row (ln0 applied)
//! for each block:
//!     rows    x += what the last matrix gave;  X = ln1(x);  six token-shift mixes
//!     phase   r, k, v and the first low-rank matrices                       (tiles)
//!     phase   second low-rank matrices, wkv7, group norm, gate              (heads)
//!     phase   output matrix                                                 (tiles)
//!     rows    x += that;  X = ln2(x);  one token-shift mix
//!     phase   key matrix and relu^2                                         (tiles)
//!     phase   value matrix, columns of zeros skipped                        (outputs)
//! after the last block of a run, in RWKV-X, an attention block:
//!     rows    x += that;  X = ln1(x)
//!     phase   q, k, v                                                       (tiles)
//!     phase   keys and values into the cache; attention                     (heads and feeds)
//!     phase   output matrix                                                 (tiles)
//!     and a channel mix as above
//! rows whose logits are wanted: x += that;  ln_out;  head, part by part     (tiles)
//! ```
//!
//! A phase is one hand-off to the team. Work is split by outputs and heads, never within a sum, and
//! no kernel mixes rows: so threads, company, and the split of a prompt into steps and sweeps change no bit.

mod attention;
mod channel_mix;
mod head;
mod rows;
mod scratch;
mod sweep;
mod tasks;
mod time_mix;
mod visible;

pub(crate) use scratch::Scratch;

use std::ops::Range;

use crate::block::Block;
use crate::error::{Result, bail};
use crate::model::Model;
use crate::state::State;
use rows::Pass;
use sweep::sweeps;

/// Which logits of a feed's tokens are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Logits {
    /// None: the head is not read for them.
    None,
    /// Those after the last token.
    #[default]
    Last,
    /// Those after every token.
    All,
}

/// A session's next tokens.
#[derive(Debug)]
pub struct Feed<'a> {
    /// What the session remembers; the step updates it.
    pub state: &'a mut State,
    /// One or many tokens. None at all is allowed, and changes nothing.
    pub tokens: &'a [u32],
    /// Which logits are wanted.
    pub logits: Logits,
}

impl<'a> Feed<'a> {
    /// A session's next tokens.
    pub fn new(state: &'a mut State, tokens: &'a [u32], logits: Logits) -> Feed<'a> {
        Feed { state, tokens, logits }
    }

    fn logit_rows(&self) -> usize {
        match self.logits {
            Logits::None => 0,
            Logits::Last => self.tokens.len().min(1),
            Logits::All => self.tokens.len(),
        }
    }
}

/// The logits of a step.
#[derive(Debug)]
pub struct StepOutput<'m> {
    logits: &'m [f32],
    feeds: Vec<Range<usize>>,
}

impl<'m> StepOutput<'m> {
    /// The logits that a feed asked for: row-major `[n, vocab]`, where `n` is 0 for [`Logits::None`], 1 for
    /// [`Logits::Last`] and the number of tokens for [`Logits::All`]; a feed of no tokens has none.
    ///
    /// # Panics
    /// The step had no such feed.
    pub fn logits(&self, feed: usize) -> &'m [f32] {
        &self.logits[self.feeds[feed].clone()]
    }
}

impl Model {
    /// Feeds each session its tokens, and returns the logits that were asked for.
    ///
    /// The logits and the states after it depend on the tokens and the states before it alone, to the last bit: not on
    /// what else is in the list, nor on how tokens are split over steps. A step without feeds, and a feed without
    /// tokens, do nothing.
    ///
    /// The logits of all feeds are in memory at once: 4 bytes times the vocabulary for each. Feed a long prompt of which
    /// all logits are wanted in several steps.
    ///
    /// # Errors
    /// Before anything is touched: a token outside the vocabulary, a state of another model, a
    /// [poisoned](State::is_poisoned) state, key/value caches that would outgrow
    /// [their limit](crate::ModelOptions::kv_bytes). After that, unreadable weights or a value that is not finite: the error
    /// names the block, and all states of this step that were fed tokens are poisoned. The model can go on with others.
    pub fn step(&mut self, feeds: &mut [Feed<'_>]) -> Result<StepOutput<'_>> {
        for feed in feeds.iter() {
            feed.state.check_usable()?;
            if !feed.state.belongs_to(&self.identity) {
                bail!(State, "a state belongs to {}; expected {}", feed.state.identity(), self.identity);
            }
            feed.tokens.iter().try_for_each(|&token| self.check_token(token))?;
        }
        let peaks = self.check_kv(feeds)?;
        let vocab = self.config().vocab;
        let mut ranges = Vec::with_capacity(feeds.len());
        let mut end = 0;
        for feed in feeds.iter() {
            let begin = end;
            end += feed.logit_rows() * vocab;
            ranges.push(begin..end);
        }
        // The memory of a step that wanted very many logits is not kept for ever.
        if self.logits.capacity() > (4 * end).max(16 * vocab) {
            self.logits = Vec::new();
        }
        self.logits.resize(end, 0.0);
        let live = || feeds.iter().filter(|feed| !feed.tokens.is_empty());
        let rows: usize = live().map(|feed| feed.tokens.len()).sum();
        for (feed, peak) in feeds.iter_mut().zip(peaks).filter(|(feed, _)| !feed.tokens.is_empty()) {
            feed.state.poison();
            feed.state.charge_kv(&self.kv_budget, peak);
        }
        for sweep in sweeps(feeds, self.chunk_rows) {
            let mut pass = Pass::new(self, feeds, &sweep);
            pass.embed()?;
            for block in pass.weights.config.blocks() {
                match block {
                    Block::Rwkv(number) => pass.time_mix(number)?,
                    Block::Attention(number) => pass.attention(number)?,
                }
                pass.channel_mix(block)?;
            }
            pass.head()?;
            self.counters.sweeps += 1;
            self.counters.dense_bytes += self.swept_bytes(!sweep.wanted.is_empty());
        }
        self.counters.tokens += rows as u64;
        for feed in feeds.iter_mut().filter(|feed| !feed.tokens.is_empty()) {
            feed.state.commit(feed.tokens.len());
        }
        Ok(StepOutput { logits: &self.logits, feeds: ranges })
    }

    /// The most bytes that each feed's key/value cache will take, if there is room for them.
    fn check_kv(&self, feeds: &[Feed<'_>]) -> Result<Vec<u64>> {
        let peak = |feed: &Feed<'_>| feed.state.kv_peak_bytes(feed.tokens.len(), self.chunk_rows);
        let peaks: Vec<u64> = feeds.iter().map(peak).collect();
        let needs = feeds.iter().zip(&peaks).map(|(feed, &peak)| feed.state.kv_needs(&self.kv_budget, peak));
        self.kv_budget.check(needs.fold(0, u64::saturating_add))?;
        Ok(peaks)
    }
}
