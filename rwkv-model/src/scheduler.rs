//! Many sessions, one sweep.
//!
//! ```text
//! one thread owns the model:
//!     take arrivals, cancellations and limits of time; begin what there is room for
//!     rows of the next sweep: one for each session that decodes,
//!         the rest for prompts, shared equally among them
//!     one step with all of it
//!     for each session: what is wrong with it ends it alone;
//!         once its prompt is read, choose a token and tell its sink
//! ```
//!
//! **Fairness.** Sessions that decode have a row in every sweep, so between two tokens of a session there is one sweep,
//! whatever else runs; and every session that reads a prompt gets on in every sweep, by an equal share. How long a sweep
//! takes is bounded by its rows, see [`SchedulerOptions::rows`]: without a number, prompts make it at most three times as long as the
//! decoding sessions alone would, as far as the speed measured so far foretells.
//!
//! **Prompts that begin alike** are read once: by one of the sessions, while the others wait for its state
//! (`follow.rs`). So many answers to one prompt cost as much reading as one.
//!
//! **The same bits.** A step's logits depend on the session alone, and so do its sampler and its text: what a request
//! generates is what it would generate alone, whatever comes, goes, or fails beside it.
//!
//! **Errors.** What is wrong with one session ends that session. Weights that cannot be read are tried once more, in
//! their place in the sweep; where that fails, too, the sessions of the sweep have lost their states and end with the error.
//! The engine goes on with the next ones. States are not copied before each sweep to spare those sessions: that would
//! take as long as a large part of the sweep.

mod engine;
mod event;
mod follow;
mod inbox;
mod logprobs;
mod pace;
mod prefix;
mod request;
mod session;
mod spill;
mod stats;
mod sweep;

pub use event::{Finished, SessionEvent, Timings};
pub use logprobs::TokenLogprobs;
pub use prefix::PrefixStats;
pub use request::{OnSweep, Request, SchedulerOptions, Sink, TokenBytes};
pub use stats::SchedulerStats;
pub use sweep::{SweepReport, SweptSession};

use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::error::{ErrorKind, ModelError, Result, bail};
use crate::identity::Identity;
use crate::kv::KvLimits;
use crate::model::Model;
use crate::residency::Residency;
use crate::sampler::{Sampler, is_uncounted_text};
use crate::text::Text;
use engine::Engine;
use follow::Followers;
use inbox::{Inbox, Refused};
use pace::Pace;
use prefix::PrefixCache;
use session::Pending;
use spill::Spill;

/// Runs many sessions on one model, in one sweep over the weights for all of them.
///
/// A handle: it is cloned, sent and shared. The model belongs to a thread that ends once the scheduler is closed, or
/// all handles are gone, and the last session has ended.
///
/// Each session hears what happens to it through its [`Sink`]. The text of a session is bit for bit what the same request
/// generates alone.
#[derive(Clone)]
pub struct Scheduler {
    handle: Arc<Handle>,
}

struct Handle {
    inbox: Arc<Inbox>,
    identity: Arc<Identity>,
    kv: KvLimits,
    /// By token: whether the frequency penalty spares it.
    uncounted: Vec<bool>,
    next_id: AtomicU64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

impl Scheduler {
    /// Starts the thread that runs the model.
    ///
    /// # Errors
    /// The system gives no thread, or the directory for states cannot be used.
    pub fn start(model: Model, options: SchedulerOptions) -> Result<Scheduler> {
        let identity = Arc::clone(&model.identity);
        let kv = model.kv_limits();
        let most_rows = options.rows.unwrap_or(usize::MAX).clamp(1, model.chunk_rows());
        let most_sessions = options.sessions.clamp(1, most_rows);
        let uncounted = uncounted(identity.config().vocab, &options.token_bytes);
        let prefix_bytes = match model.memory_plan() {
            plan if matches!(plan.residency, Residency::Stream { .. }) => {
                options.prefix_cache_bytes.min(plan.reserved_bytes)
            }
            _ => options.prefix_cache_bytes,
        };
        let spill = match &options.spill {
            Some(dir) if prefix_bytes > 0 => Some(Spill::open(dir, &model, options.spill_bytes)?),
            _ => None,
        };
        let prefixes = PrefixCache::new(prefix_bytes, spill);
        let totals = first_stats(&model, prefixes.stats());
        let inbox = Arc::new(Inbox::new(options.queue, most_sessions, totals.clone()));
        let engine = Engine {
            isa: model.isa(),
            model,
            kv: kv.clone(),
            inbox: Arc::clone(&inbox),
            token_bytes: options.token_bytes,
            on_sweep: options.on_sweep,
            sessions: Vec::new(),
            parked: Vec::new(),
            stalled: None,
            given_up: 0,
            followers: Followers::default(),
            prefixes,
            pace: Pace::default(),
            most_sessions,
            most_rows,
            is_paced: options.rows.is_none(),
            totals,
            last_events: Vec::new(),
        };
        let thread = std::thread::Builder::new().name("rwkv-engine".into()).spawn(|| engine.run());
        let thread = thread.map_err(|error| {
            ModelError::new(ErrorKind::Engine, "the system gives no thread for the engine").caused_by(error)
        })?;
        let (next_id, thread) = (AtomicU64::new(0), Mutex::new(Some(thread)));
        Ok(Scheduler { handle: Arc::new(Handle { inbox, identity, kv, uncounted, next_id, thread }) })
    }

    /// Puts a request in the queue, and returns at once. What happens to it goes to `sink`.
    ///
    /// # Errors
    /// The request is wrong, which is found out here; the queue is full; the scheduler is closed. `sink` hears nothing then.
    pub fn submit(&self, request: Request, sink: Sink) -> Result<Ticket, SubmitError> {
        let mut tickets = self.submit_all([(request, sink)])?;
        Ok(tickets.pop().expect("a ticket for each request"))
    }

    /// Puts requests in the queue, all of them or none, so that those that there is room for begin in the same sweep.
    ///
    /// # Errors
    /// As [`submit`](Self::submit), for any of them; none is taken then.
    pub fn submit_all(
        &self,
        requests: impl IntoIterator<Item = (Request, Sink)>,
    ) -> Result<Vec<Ticket>, SubmitError> {
        let pending = requests.into_iter().map(|(request, sink)| self.pending(request, sink));
        let pending = pending.collect::<Result<Vec<_>>>()?;
        let ticket = |pending: &Pending| Ticket {
            id: pending.id,
            cancelled: Arc::clone(&pending.cancelled),
            inbox: Arc::clone(&self.handle.inbox),
        };
        let tickets = pending.iter().map(ticket).collect();
        match self.handle.inbox.put(pending) {
            Ok(()) => Ok(tickets),
            Err(Refused::Full) => Err(SubmitError::QueueFull),
            Err(Refused::Closed) => Err(SubmitError::Closed),
        }
    }

    fn pending(&self, request: Request, sink: Sink) -> Result<Pending> {
        self.check(&request)?;
        let sampler = Sampler::new(request.params.clone(), self.config().vocab)?;
        let uncounted = &self.handle.uncounted;
        Ok(Pending {
            id: self.handle.next_id.fetch_add(1, Ordering::Relaxed),
            cancelled: Arc::new(AtomicBool::new(false)),
            sampler: sampler.uncounted(|token| uncounted[token as usize]),
            text: Text::new(&request.stop_strings)?,
            request,
            sink,
            submitted: Instant::now(),
        })
    }

    fn check(&self, request: &Request) -> Result<()> {
        let vocab = self.config().vocab;
        if let Some(token) = request.prompt.iter().find(|&&token| token as usize >= vocab) {
            bail!(Token, "token {token} is not in the model's vocabulary of {vocab}");
        }
        if request.prompt.is_empty() && (request.max_tokens != Some(0) || request.embedding) {
            bail!(Parameter, "the prompt is empty; expected at least one token to go on from");
        }
        if let Some(state) = &request.state {
            state.check_usable()?;
            if !state.belongs_to(&self.handle.identity) {
                bail!(State, "a state belongs to {}; expected {}", state.identity(), self.identity());
            }
        }
        self.handle.kv.check(request.state.as_ref(), request.prompt.len())?;
        Ok(())
    }

    /// What the scheduler does and has done, as of the last sweep.
    pub fn stats(&self) -> SchedulerStats {
        self.handle.inbox.stats()
    }

    /// The sizes of the model.
    pub fn config(&self) -> &Config {
        self.handle.identity.config()
    }

    /// Which model this is; its states carry the same.
    pub fn identity(&self) -> &Identity {
        &self.handle.identity
    }

    /// Takes no more requests. Those that it has go on to their end.
    pub fn close(&self) {
        self.handle.inbox.close();
    }

    /// Takes no more requests, waits up to a limit for the end of those that it has, cancels the rest, and waits for that,
    /// which takes one sweep.
    ///
    /// It must not be called by a sink.
    pub fn shutdown(self, limit: Duration) {
        let Handle { inbox, thread, .. } = &*self.handle;
        inbox.close();
        if !inbox.wait_finished(limit) {
            inbox.cancel_all();
        }
        if let Some(thread) = thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // The engine catches its panics.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler").field("inbox", &self.handle.inbox).finish_non_exhaustive()
    }
}

/// Names a request. It may be dropped; that cancels nothing.
#[derive(Debug, Clone)]
pub struct Ticket {
    id: u64,
    cancelled: Arc<AtomicBool>,
    inbox: Arc<Inbox>,
}

impl Ticket {
    /// The number of the request, counted from 0.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Ends the session, at the next sweep at the latest. Its sink hears of it.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        self.inbox.notify();
    }
}

/// Why a request is not taken.
#[derive(Debug)]
#[non_exhaustive]
pub enum SubmitError {
    /// As many requests wait as may; it can be tried again later.
    QueueFull,
    /// No more requests are taken.
    Closed,
    /// The request cannot be carried out.
    Invalid(ModelError),
}

impl From<ModelError> for SubmitError {
    fn from(error: ModelError) -> SubmitError {
        SubmitError::Invalid(error)
    }
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SubmitError::QueueFull => f.write_str("the queue is full"),
            SubmitError::Closed => f.write_str("the scheduler is closed"),
            SubmitError::Invalid(error) => error.fmt(f),
        }
    }
}

impl Error for SubmitError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            SubmitError::Invalid(error) => error.source(),
            _ => None,
        }
    }
}

fn uncounted(vocab: usize, token_bytes: &TokenBytes) -> Vec<bool> {
    let mut bytes = Vec::new();
    let mut is_uncounted = |token| {
        bytes.clear();
        token_bytes(token, &mut bytes);
        // A token without text is none of the vocabulary's.
        !bytes.is_empty() && is_uncounted_text(&bytes)
    };
    (0..vocab as u32).map(&mut is_uncounted).collect()
}

fn first_stats(model: &Model, prefix: PrefixStats) -> SchedulerStats {
    SchedulerStats {
        queued: 0,
        running: 0,
        prefilling: 0,
        submitted: 0,
        refused: 0,
        completed: 0,
        cancelled: 0,
        timed_out: 0,
        failed: 0,
        prompt_tokens: 0,
        shared_tokens: 0,
        completion_tokens: 0,
        sweeps: 0,
        sweep_time: Duration::ZERO,
        last_rows: 0,
        last_sweep_time: Duration::ZERO,
        prefix,
        steps: model.counters(),
        cache: model.cache_stats(),
        memory: model.memory_plan().clone(),
        kv_bytes: model.kv_bytes(),
        is_open: true,
    }
}
