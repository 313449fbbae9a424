use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::event::SessionEvent;
use super::sweep::SweepReport;
use crate::model::Model;
use crate::sampler::SamplerParams;
use crate::state::State;

/// Appends a token's bytes. Tokens need not be whole characters.
pub type TokenBytes = Arc<dyn Fn(u32, &mut Vec<u8>) + Send + Sync>;

/// Takes a session's events. It is called on the engine's thread, so it must not block; `Break` cancels the session, of which
/// it hears nothing more then. One that panics cancels its session, too.
pub type Sink = Box<dyn FnMut(SessionEvent) -> ControlFlow<()> + Send>;

/// Hears of every sweep, on the engine's thread: it must not block.
pub type OnSweep = Arc<dyn Fn(&Model, &SweepReport) + Send + Sync>;

/// How a [`Scheduler`](super::Scheduler) works.
#[derive(Clone)]
pub struct SchedulerOptions {
    /// How many requests may wait, beside those that there is room to run.
    pub queue: usize,
    /// How many sessions run at once at most. There are never more than a sweep has rows. 0 counts as 1.
    pub sessions: usize,
    /// The most rows of a sweep. `None` is as many as the model's budget has room for, and while sessions decode so many that, by
    /// the speed measured so far, a sweep takes no longer than three times what it would take without a prompt.
    pub rows: Option<usize>,
    /// Memory for states after known prefixes, in bytes; 0 keeps none. Of a model that streams within a budget, it is no more than
    /// was [reserved](crate::ModelOptions::reserve) there.
    pub prefix_cache_bytes: u64,
    /// A directory for states that no longer fit that memory, each a file; `None` drops them. They are found again by the next
    /// scheduler with the same pack. They tell what was said, so the directory should be the user's alone.
    pub spill: Option<PathBuf>,
    /// The most bytes of those files.
    pub spill_bytes: u64,
    /// What tokens are as text.
    pub token_bytes: TokenBytes,
    /// Hears of every sweep.
    pub on_sweep: Option<OnSweep>,
}

impl SchedulerOptions {
    /// 64 waiting requests, 8 sessions at once, rows as they fit, and no prefix cache.
    pub fn new(token_bytes: TokenBytes) -> SchedulerOptions {
        SchedulerOptions {
            queue: 64,
            sessions: 8,
            rows: None,
            prefix_cache_bytes: 0,
            spill: None,
            spill_bytes: 1 << 30,
            token_bytes,
            on_sweep: None,
        }
    }
}

impl fmt::Debug for SchedulerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SchedulerOptions")
            .field("queue", &self.queue)
            .field("sessions", &self.sessions)
            .field("rows", &self.rows)
            .field("prefix_cache_bytes", &self.prefix_cache_bytes)
            .field("spill", &self.spill)
            .field("spill_bytes", &self.spill_bytes)
            .finish_non_exhaustive()
    }
}

/// What a session is to do: read a prompt, and generate text after it.
#[derive(Debug, Clone)]
pub struct Request {
    /// The tokens to go on from. May be empty if nothing is to be generated.
    pub prompt: Vec<u32>,
    /// What the session remembers before the prompt. `None` is a new state.
    pub state: Option<State>,
    /// How tokens are chosen.
    pub params: SamplerParams,
    /// The most tokens to generate. `None` is no limit; 0 only feeds the prompt.
    pub max_tokens: Option<usize>,
    /// Tokens that end the text and are no part of it.
    pub stop_tokens: Vec<u32>,
    /// Strings that end the text and are no part of it. They may begin and end within tokens.
    pub stop_strings: Vec<Vec<u8>>,
    /// With each generated token its logarithmic probability, and those of so many of the likeliest tokens.
    pub logprobs: Option<usize>,
    /// The same for each token of the prompt but the first. The whole prompt is fed then, with all its logits.
    pub prompt_logprobs: Option<usize>,
    /// Whether the mean of the hidden states of the prompt's tokens is wanted: what the head is multiplied with, `ln_out` of the
    /// last block's output. The whole prompt is fed then.
    pub embedding: bool,
    /// Whether the state is wanted at the end.
    pub keep_state: bool,
    /// How long the request may wait for its beginning.
    pub queue_limit: Option<Duration>,
    /// How long it may run after that. What was generated until then is the text.
    pub time_limit: Option<Duration>,
    /// Whether states of known prefixes may be used, and those of this session kept for others; and whether what its prompt has
    /// in common with those of other sessions may be read once for all of them. With a state of its own, a session only shares
    /// its prompt, and only with those that begin at the same time from the same state.
    pub reuse: bool,
}

impl Request {
    /// A request with the sampler's defaults, without limits, that ends with the token 0.
    pub fn new(prompt: Vec<u32>) -> Request {
        Request {
            prompt,
            state: None,
            params: SamplerParams::default(),
            max_tokens: None,
            stop_tokens: vec![0],
            stop_strings: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
            embedding: false,
            keep_state: false,
            queue_limit: None,
            time_limit: None,
            reuse: true,
        }
    }

    /// Whether something is wanted that is only found by feeding all of the prompt.
    pub(super) fn is_whole(&self) -> bool {
        self.embedding || self.prompt_logprobs.is_some()
    }
}
