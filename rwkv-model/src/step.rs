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
//!     phase   key matrix, relu^2, what is not zero of it                    (tiles)
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
mod watch;

pub(crate) use scratch::Scratch;
pub(crate) use time_mix::HEAD_BUFFERS;

use std::ops::Range;

use rwkv_kernels::Team;

use crate::block::Block;
use crate::error::{ModelError, Result, bail};
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
    /// If given, `[C]`: the hidden state of each token, which is what the head is multiplied with, is added to it, token by
    /// token, so that the sum does not depend on how tokens are split over steps.
    pub hidden_sum: Option<&'a mut [f64]>,
}

impl<'a> Feed<'a> {
    /// A session's next tokens.
    pub fn new(state: &'a mut State, tokens: &'a [u32], logits: Logits) -> Feed<'a> {
        Feed { state, tokens, logits, hidden_sum: None }
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
    errors: Errors,
    team: &'m mut Team,
}

/// What went wrong with each feed.
type Errors = Vec<Option<ModelError>>;

impl<'m> StepOutput<'m> {
    /// The logits that a feed asked for: row-major `[n, vocab]`, where `n` is 0 for [`Logits::None`], 1 for
    /// [`Logits::Last`] and the number of tokens for [`Logits::All`]; a feed of no tokens has none.
    ///
    /// # Panics
    /// The step had no such feed.
    pub fn logits(&self, feed: usize) -> &'m [f32] {
        &self.logits[self.feeds[feed].clone()]
    }

    /// What went wrong with a feed, of a step in which [each stands for itself](Model::step_each).
    ///
    /// # Panics
    /// The step had no such feed.
    pub fn error(&self, feed: usize) -> Option<&ModelError> {
        self.errors[feed].as_ref()
    }

    /// Does something with each item, on the model's threads if there are several.
    pub(crate) fn for_each<T: Send>(&mut self, items: &mut [T], f: impl Fn(&mut T) + Sync) {
        match items {
            [] => {}
            [item] => f(item),
            items => self.team.for_each(items, f),
        }
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
    ///
    /// # Panics
    /// A [`Feed::hidden_sum`] has another length than the model's width.
    pub fn step(&mut self, feeds: &mut [Feed<'_>]) -> Result<StepOutput<'_>> {
        let mut errors = self.check(feeds);
        if let Some(error) = take_first(&mut errors) {
            return Err(error);
        }
        let (ranges, mut errors) = self.run(feeds, errors)?;
        if let Some(error) = take_first(&mut errors) {
            fed(feeds).for_each(|feed| feed.state.poison());
            return Err(error);
        }
        Ok(StepOutput { logits: &self.logits, feeds: ranges, errors, team: &mut self.team })
    }

    /// A [step](Model::step) in which what is wrong with one feed harms no other: [`StepOutput::error`] says what it was. Such
    /// a feed has no logits. If it was refused before anything was touched, its state is as before; if a value was not finite,
    /// it is poisoned.
    ///
    /// Where key/value caches of all feeds have no room together, the first ones get it.
    ///
    /// # Errors
    /// Unreadable weights alone. All states of this step that were fed tokens are poisoned then.
    ///
    /// # Panics
    /// As [`Model::step`].
    pub fn step_each(&mut self, feeds: &mut [Feed<'_>]) -> Result<StepOutput<'_>> {
        let errors = self.check(feeds);
        let (ranges, errors) = self.run(feeds, errors)?;
        Ok(StepOutput { logits: &self.logits, feeds: ranges, errors, team: &mut self.team })
    }

    /// What is wrong with feeds before anything is touched.
    fn check(&self, feeds: &[Feed<'_>]) -> Errors {
        let mut more = 0;
        let mut check = |feed: &Feed<'_>| {
            self.check_feed(feed)?;
            let peak = self.kv_peak(feed);
            let needs = feed.state.kv_needs(&self.kv_budget, peak);
            self.kv_budget.check(more + needs)?;
            more += needs;
            Ok(())
        };
        feeds.iter().map(|feed| check(feed).err()).collect()
    }

    fn check_feed(&self, feed: &Feed<'_>) -> Result<()> {
        feed.state.check_usable()?;
        if !feed.state.belongs_to(&self.identity) {
            bail!(State, "a state belongs to {}; expected {}", feed.state.identity(), self.identity);
        }
        if let Some(sum) = &feed.hidden_sum {
            let width = self.config().width;
            assert_eq!(sum.len(), width, "a sum of hidden states has one number for each channel");
        }
        feed.tokens.iter().try_for_each(|&token| self.check_token(token))
    }

    /// Steps with the feeds that have no error, and says where the logits are and what went wrong.
    fn run(&mut self, feeds: &mut [Feed<'_>], mut errors: Errors) -> Result<(Vec<Range<usize>>, Errors)> {
        // A feed that was refused is one without tokens.
        let mut refused: Vec<(usize, &[u32])> = Vec::new();
        for (index, feed) in feeds.iter_mut().enumerate().filter(|(index, _)| errors[*index].is_some()) {
            refused.push((index, std::mem::take(&mut feed.tokens)));
        }
        let ranges = self.make_room_for_logits(feeds);
        for feed in fed(feeds) {
            let peak = self.kv_peak(feed);
            feed.state.poison();
            feed.state.charge_kv(&self.kv_budget, peak);
        }
        let done = self.sweep_all(feeds, &mut errors);
        if done.is_ok() {
            for (feed, error) in feeds.iter_mut().zip(&errors) {
                if error.is_none() && !feed.tokens.is_empty() {
                    self.counters.tokens += feed.tokens.len() as u64;
                    feed.state.commit(feed.tokens.len());
                }
            }
        }
        for (index, tokens) in refused {
            feeds[index].tokens = tokens;
        }
        done.map(|()| (ranges, errors))
    }

    /// Where the logits of each feed are.
    fn make_room_for_logits(&mut self, feeds: &[Feed<'_>]) -> Vec<Range<usize>> {
        let vocab = self.config().vocab;
        let mut end = 0;
        let ranges = feeds.iter().map(|feed| {
            let begin = end;
            end += feed.logit_rows() * vocab;
            begin..end
        });
        let ranges = ranges.collect();
        // The memory of a step that wanted very many logits is not kept for ever.
        if self.logits.capacity() > (4 * end).max(16 * vocab) {
            self.logits = Vec::new();
        }
        self.logits.resize(end, 0.0);
        ranges
    }

    fn sweep_all(&mut self, feeds: &mut [Feed<'_>], errors: &mut Errors) -> Result<()> {
        for sweep in sweeps(feeds, self.chunk_rows) {
            let mut pass = Pass::new(self, feeds, &sweep, errors);
            pass.embed()?;
            for block in pass.weights.config.blocks() {
                match block {
                    Block::Rwkv(number) => pass.time_mix(number)?,
                    Block::Attention(number) => pass.attention(number)?,
                }
                pass.channel_mix(block)?;
            }
            pass.head()?;
            pass.watch.end();
            self.counters.sweeps += 1;
            self.counters.dense_bytes += self.swept_bytes(!sweep.wanted.is_empty());
        }
        Ok(())
    }

    /// The most bytes that a feed's key/value cache will take.
    fn kv_peak(&self, feed: &Feed<'_>) -> u64 {
        feed.state.kv_peak_bytes(feed.tokens.len(), self.chunk_rows)
    }
}

/// The feeds that are fed something.
fn fed<'s, 'a>(feeds: &'s mut [Feed<'a>]) -> impl Iterator<Item = &'s mut Feed<'a>> {
    feeds.iter_mut().filter(|feed| !feed.tokens.is_empty())
}

fn take_first(errors: &mut Errors) -> Option<ModelError> {
    errors.iter_mut().find_map(Option::take)
}
