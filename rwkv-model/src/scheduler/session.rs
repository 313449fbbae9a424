use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rwkv_kernels::Isa;

use super::event::{Finished, SessionEvent, Timings};
use super::logprobs::TokenLogprobs;
use super::request::{Request, Sink};
use crate::error::ModelError;
use crate::generate::FinishReason;
use crate::kv::Budget;
use crate::sampler::Sampler;
use crate::state::State;
use crate::step::{Feed, Logits};
use crate::text::Text;

/// A request that was found good.
pub(super) struct Pending {
    pub id: u64,
    pub cancelled: Arc<AtomicBool>,
    pub request: Request,
    pub sampler: Sampler,
    pub text: Text,
    pub sink: Sink,
    pub submitted: Instant,
}

/// Why a session ends.
#[derive(Debug)]
pub(super) enum End {
    Finished(FinishReason),
    Failed(ModelError),
    /// The sink broke off: nobody is told.
    Gone,
}

/// What is left of a session.
pub(super) struct Ended {
    pub ending: Ending,
    /// The tokens that the state has seen.
    pub tokens: Vec<u32>,
    /// Unless it went to the one who asked for it.
    pub state: Option<State>,
    pub last: LastEvent,
}

/// The event that says how a session ended, and its sink. It is told when all else that follows from the end is done, so that
/// whoever hears it finds the session counted and its state kept.
#[must_use]
pub(super) struct LastEvent(Option<(Sink, SessionEvent)>);

impl LastEvent {
    pub fn tell(self) {
        if let Some((mut sink, event)) = self.0 {
            let _ = tell(&mut sink, event);
        }
    }
}

/// How a session ended, for the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Completed,
    Cancelled,
    TimedOut,
    Failed,
}

/// A session that runs.
pub(super) struct Session {
    pub id: u64,
    cancelled: Arc<AtomicBool>,
    pub request: Request,
    sampler: Sampler,
    text: Text,
    sink: Sink,
    pub state: State,
    /// The prompt and what was generated.
    pub tokens: Vec<u32>,
    prompt: usize,
    /// Tokens that the state has seen.
    pub fed: usize,
    reused: usize,
    completion: usize,
    hidden_sum: Option<Vec<f64>>,
    prompt_logprobs: Vec<TokenLogprobs>,
    /// Whether what its prompt has in common with others may be read once.
    pub shares: bool,
    /// Whether it began with a new state.
    pub is_new: bool,
    /// Where the prompt is to be cut, so that the state there can be kept.
    pub cut: Option<usize>,
    /// The most rows that it wants of a sweep: fewer after each for which its keys and values had no room.
    most_rows: usize,
    /// The state after so many tokens, on the way.
    pub checkpoint: Option<(usize, State)>,
    drawn: Option<Result<u32, ModelError>>,
    submitted: Instant,
    began: Instant,
    first_token: Option<Instant>,
}

impl Session {
    /// Begins a session with a state that has seen so many tokens of the prompt.
    pub fn begin(pending: Pending, state: State, reused: usize, width: usize) -> (Session, Result<(), End>) {
        let Pending { id, cancelled, mut request, sampler, text, sink, submitted } = pending;
        let tokens = std::mem::take(&mut request.prompt);
        let hidden_sum = request.embedding.then(|| vec![0.0; width]);
        let mut session = Session {
            id,
            cancelled,
            request,
            sampler,
            text,
            sink,
            state,
            prompt: tokens.len(),
            tokens,
            fed: reused,
            reused,
            completion: 0,
            hidden_sum,
            prompt_logprobs: Vec::new(),
            shares: false,
            is_new: false,
            cut: None,
            most_rows: usize::MAX,
            checkpoint: None,
            drawn: None,
            submitted,
            began: Instant::now(),
            first_token: None,
        };
        let queued = session.began - submitted;
        let told = session.tell(SessionEvent::Started { reused, queued });
        (session, told)
    }

    /// Whether some of the prompt is not fed yet.
    pub fn is_prefilling(&self) -> bool {
        self.fed < self.prompt
    }

    /// The tokens of the prompt.
    pub fn prompt(&self) -> &[u32] {
        &self.tokens[..self.prompt]
    }

    /// Whether it may go on from what another session has read.
    pub fn can_follow(&self) -> bool {
        self.shares && self.is_prefilling() && !self.request.is_whole()
    }

    /// Whether others may go on from what it reads, as fast as they would read it themselves.
    pub fn can_lead(&self) -> bool {
        self.shares && self.is_prefilling() && self.request.prompt_logprobs.is_none()
    }

    /// Whether tokens are to be generated.
    pub fn generates(&self) -> bool {
        self.request.max_tokens != Some(0)
    }

    /// How many tokens were generated.
    pub fn completion(&self) -> usize {
        self.completion
    }

    pub fn vocab(&self) -> usize {
        self.sampler.vocab()
    }

    /// How many tokens can be fed next.
    pub fn wanted(&self, logit_rows: usize) -> usize {
        // A session that begins again has more tokens than its prompt, whose end is a place to stop at as before.
        let end = if self.is_prefilling() { self.prompt } else { self.tokens.len() };
        let end = self.cut.filter(|&cut| self.fed < cut).unwrap_or(end);
        let most = if self.request.prompt_logprobs.is_some() { logit_rows } else { usize::MAX };
        (end - self.fed).min(most).min(self.most_rows)
    }

    /// The next tokens.
    pub fn feed(&mut self, rows: usize) -> Feed<'_> {
        let end = self.fed + rows;
        let logits = if self.request.prompt_logprobs.is_some() && self.fed < self.prompt {
            Logits::All
        } else if end == self.tokens.len() && self.generates() {
            Logits::Last
        } else {
            Logits::None
        };
        let hidden_sum = if self.fed < self.prompt { self.hidden_sum.as_deref_mut() } else { None };
        Feed { hidden_sum, ..Feed::new(&mut self.state, &self.tokens[self.fed..end], logits) }
    }

    /// Takes in that tokens were fed, with the logits that were wanted.
    pub fn fed(&mut self, rows: usize, logits: &[f32], isa: Isa) -> Result<(), End> {
        let was_prefilling = self.is_prefilling();
        if let (Some(count), true) = (self.request.prompt_logprobs, was_prefilling) {
            let nexts = self.tokens[self.fed + 1..self.prompt.min(self.fed + rows + 1)].iter();
            let vocab = self.sampler.vocab();
            let found = nexts
                .zip(logits.chunks_exact(vocab))
                .map(|(&next, logits)| TokenLogprobs::new(isa, logits, next, count));
            self.prompt_logprobs.extend(found);
        }
        self.fed += rows;
        self.most_rows = self.most_rows.saturating_mul(2);
        if was_prefilling { self.tell_prefill() } else { Ok(()) }
    }

    /// Says how far the prompt is read.
    pub fn tell_prefill(&mut self) -> Result<(), End> {
        if self.completion > 0 {
            return Ok(());
        }
        self.tell(SessionEvent::Prefill { done: self.fed, total: self.prompt })
    }

    /// Goes on from a state that has seen so many tokens of the prompt.
    pub fn go_on_from(&mut self, state: State, fed: usize) {
        (self.state, self.fed, self.reused) = (state, fed, fed);
    }

    /// Whether the state has seen all tokens, and the next one is to be chosen.
    pub fn is_ready(&self) -> bool {
        self.fed == self.tokens.len()
    }

    /// Whether the state will have seen all tokens after so many more, and a token is to be chosen then.
    pub fn chooses_after(&self, rows: usize) -> bool {
        self.generates() && self.fed + rows == self.tokens.len()
    }

    /// Draws the next token, for [`Session::choose`] to take: the part of it that takes time and needs nobody else.
    pub fn draw(&mut self, logits: &[f32]) {
        self.drawn = Some(self.sampler.sample(logits));
    }

    /// Chooses a token.
    pub fn choose(
        &mut self,
        logits: &[f32],
        isa: Isa,
        token_bytes: &dyn Fn(u32, &mut Vec<u8>),
    ) -> Result<(), End> {
        let drawn = self.drawn.take().unwrap_or_else(|| self.sampler.sample(logits));
        let token = drawn.map_err(End::Failed)?;
        if self.first_token.is_none() {
            self.first_token = Some(Instant::now());
        }
        if self.request.stop_tokens.contains(&token) {
            return Err(End::Finished(FinishReason::StopToken(token)));
        }
        self.sampler.accept(token);
        self.tokens.push(token);
        self.completion += 1;
        let found = self.text.push(token, token_bytes);
        let logprobs = self.request.logprobs.map(|count| TokenLogprobs::new(isa, logits, token, count));
        let bytes = self.text.released().to_vec();
        self.tell(SessionEvent::Token { id: token, bytes, logprobs })?;
        match found {
            Some(index) => Err(End::Finished(FinishReason::StopString(index))),
            None if Some(self.completion) == self.request.max_tokens => {
                Err(End::Finished(FinishReason::Length))
            }
            None => Ok(()),
        }
    }

    /// There was no memory for the keys and values of so many rows: it wants fewer next time. Whether it can.
    pub fn want_less(&mut self, rows: usize) -> bool {
        self.most_rows = (rows / 2).max(1);
        rows > 1
    }

    /// Whether its state can be given away and made again from its tokens, and nobody has asked for what came with it.
    pub fn can_restart(&self) -> bool {
        // A state that is wanted, or what the whole prompt gave, is not to be made again once there is something to lose.
        self.is_new
            && (self.completion == 0 || !self.request.keep_state)
            && (self.is_prefilling() || !self.request.is_whole())
    }

    /// Begins again with a new state, which is to see the prompt and what was generated so far. It reads for itself then.
    pub fn restart(&mut self, state: State) {
        self.go_on_from(state, 0);
        self.shares = false;
        self.checkpoint = None;
        self.prompt_logprobs.clear();
        if let Some(sum) = &mut self.hidden_sum {
            sum.fill(0.0);
        }
    }

    /// Bytes of a budget that its states have.
    pub fn kv_charge(&self, budget: &Arc<Budget>) -> u64 {
        let checkpoint = self.checkpoint.as_ref().map_or(0, |(_, state)| state.kv_charge(budget));
        self.state.kv_charge(budget) + checkpoint
    }

    /// Its end, if there is no memory for its keys and values: what it has generated stays.
    pub fn out_of_memory(&self, error: ModelError) -> End {
        if self.completion > 0 { End::Finished(FinishReason::Memory) } else { End::Failed(error) }
    }

    /// Whether someone, or its time, has ended it.
    pub fn check(&self, now: Instant) -> Result<(), End> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(End::Finished(FinishReason::Cancelled));
        }
        match self.request.time_limit {
            Some(limit) if now.saturating_duration_since(self.began) >= limit => {
                Err(End::Finished(FinishReason::TimeLimit))
            }
            _ => Ok(()),
        }
    }

    /// What is left of it, the event that says that it is over among it.
    pub fn end(self, end: End) -> Ended {
        let now = Instant::now();
        let Session { request, state, mut tokens, mut text, mut sink, .. } = self;
        let ending = Ending::of(&end);
        let unfed = if self.fed < self.prompt { None } else { tokens.get(self.fed).copied() };
        tokens.truncate(self.fed);
        let reason = match end {
            End::Finished(reason) => reason,
            End::Failed(error) => {
                let last = LastEvent(Some((sink, SessionEvent::Failed(error))));
                return Ended { ending, tokens, state: None, last };
            }
            End::Gone => return Ended { ending, tokens, state: Some(state), last: LastEvent(None) },
        };
        if reason.has_rest() && text.finish() {
            // The text has ended already: there is nothing left to break off.
            let _ = tell(&mut sink, SessionEvent::Rest { bytes: text.released().to_vec() });
        }
        let first_token = self.first_token.unwrap_or(now);
        let embedding = self.hidden_sum.filter(|_| self.fed >= self.prompt);
        let (kept, rest) = if request.keep_state { (Some(state), None) } else { (None, Some(state)) };
        let finished = Finished {
            reason,
            prompt_tokens: self.prompt,
            reused_tokens: self.reused,
            completion_tokens: self.completion,
            embedding: embedding.map(|sum| sum.iter().map(|sum| (sum / self.prompt as f64) as f32).collect()),
            prompt_logprobs: self.prompt_logprobs,
            state: kept,
            unfed,
            seed: self.sampler.seed(),
            timings: Timings {
                queued: self.began - self.submitted,
                prefill: first_token - self.began,
                decode: now - first_token,
            },
        };
        let last = LastEvent(Some((sink, SessionEvent::Finished(Box::new(finished)))));
        Ended { ending, tokens, state: rest, last }
    }

    fn tell(&mut self, event: SessionEvent) -> Result<(), End> {
        tell(&mut self.sink, event)
    }
}

impl Pending {
    /// Ends a request that has not begun.
    pub fn end(self, end: End) -> (Ending, LastEvent) {
        let ending = Ending::of(&end);
        let event = match end {
            End::Gone => return (ending, LastEvent(None)),
            End::Failed(error) => SessionEvent::Failed(error),
            End::Finished(reason) => SessionEvent::Finished(Box::new(Finished {
                reason,
                prompt_tokens: self.request.prompt.len(),
                reused_tokens: 0,
                completion_tokens: 0,
                embedding: None,
                prompt_logprobs: Vec::new(),
                state: self.request.state.filter(|_| self.request.keep_state),
                unfed: None,
                seed: self.sampler.seed(),
                timings: Timings { queued: self.submitted.elapsed(), ..Timings::default() },
            })),
        };
        (ending, LastEvent(Some((self.sink, event))))
    }

    /// Whether someone, or its time, has ended it.
    pub fn check(&self, now: Instant) -> Result<(), End> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(End::Finished(FinishReason::Cancelled));
        }
        match self.request.queue_limit {
            Some(limit) if now.saturating_duration_since(self.submitted) >= limit => {
                Err(End::Finished(FinishReason::QueueLimit))
            }
            _ => Ok(()),
        }
    }
}

impl Ending {
    fn of(end: &End) -> Ending {
        match end {
            End::Failed(_) => Ending::Failed,
            End::Gone | End::Finished(FinishReason::Cancelled) => Ending::Cancelled,
            End::Finished(FinishReason::TimeLimit | FinishReason::QueueLimit) => Ending::TimedOut,
            End::Finished(_) => Ending::Completed,
        }
    }
}

/// Takes out those of which `check` says that they end; it is asked about each in turn.
pub(super) fn take_ended<T>(all: &mut Vec<T>, mut check: impl FnMut(&T) -> Result<(), End>) -> Vec<(T, End)> {
    let mut ended = Vec::new();
    for one in std::mem::take(all) {
        match check(&one) {
            Ok(()) => all.push(one),
            Err(end) => ended.push((one, end)),
        }
    }
    ended
}

/// Hands an event to a sink.
fn tell(sink: &mut Sink, event: SessionEvent) -> Result<(), End> {
    match catch_unwind(AssertUnwindSafe(|| sink(event))) {
        Ok(ControlFlow::Continue(())) => Ok(()),
        Ok(ControlFlow::Break(())) => Err(End::Gone),
        Err(_) => {
            tracing::error!("the sink of a session panicked; the session is cancelled");
            Err(End::Gone)
        }
    }
}
