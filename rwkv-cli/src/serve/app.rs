//! What the handlers share.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::Result;
use axum::http::{HeaderMap, header};
use rwkv_model::{ModelOptions, Request, SamplerParams, Scheduler, State};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::blocking;
use super::engine::Desk;
use super::error::ApiError;
use super::guard::Guard;
use super::metrics::Metrics;
use super::settings::Settings;
use super::states::{StateName, States};
use super::template::ChatTemplate;
use crate::args::check_stops;
use crate::commands::serve::ServeArgs;
use crate::console::Console;
use crate::exit::Stop;
use crate::session::Tail;
use crate::vocabulary::Vocabulary;

/// Bodies of the largest size that may be on their way at once.
const LARGEST_BODIES: u64 = 8;
/// The unit in which memory for bodies is counted.
const BODY_UNIT: u64 = 1024;
/// Bodies up to this size wait for nobody: the number of connections bounds them.
const SMALL_BODY_BYTES: u64 = 64 << 10;

/// The server, as its handlers see it. Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Shared>);

struct Shared {
    args: Arc<ServeArgs>,
    console: Console,
    guard: Guard,
    template: ChatTemplate,
    states: Option<Arc<States>>,
    metrics: Arc<Metrics>,
    desk: Arc<Desk>,
    loaded: OnceLock<Loaded>,
    bodies: Arc<Semaphore>,
    ids: RandomState,
    next_id: AtomicU64,
}

/// What there is once the model is loaded.
pub struct Loaded {
    /// What the model is called.
    pub name: String,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    /// Its pack.
    pub pack: PathBuf,
    /// How it was opened, and how another one of it can be opened.
    pub options: ModelOptions,
    /// Its tokenizer.
    pub vocabulary: Arc<Vocabulary>,
    /// What runs it.
    pub scheduler: Scheduler,
}

impl Loaded {
    /// The tokens of a text.
    ///
    /// # Errors
    /// 400: the vocabulary has no tokens for it, or the model does not have them.
    pub fn encode(&self, text: &str, param: &str) -> Result<Vec<u32>, ApiError> {
        let ids = self
            .vocabulary
            .try_encode(text)
            .map_err(|error| ApiError::field(param, format!("{param} cannot be tokenised: {error}")))?;
        let vocab = self.scheduler.config().vocab;
        match ids.iter().find(|&&id| id as usize >= vocab) {
            Some(id) => {
                let message = format!(
                    "{param} has token {id}, but the model has only {vocab}: its vocabulary is another one"
                );
                Err(ApiError::field(param, message))
            }
            None => Ok(ids),
        }
    }
}

/// Where a session begins.
#[derive(Debug, Default)]
pub struct Start {
    /// What it remembers.
    pub state: Option<State>,
    /// What is to be fed before anything else.
    pub unfed: Vec<u32>,
    /// The end of what was said before, if something was.
    tail: Option<Tail>,
}

impl Start {
    /// A turn of a chat, with what has to stand between it and what was said before.
    pub fn before(&self, turn: String) -> String {
        match &self.tail {
            Some(tail) => tail.before(&turn),
            None => turn,
        }
    }
}

impl App {
    /// A server whose model is not loaded yet.
    ///
    /// # Errors
    /// An argument cannot be used.
    pub fn new(args: Arc<ServeArgs>, console: Console) -> Result<App> {
        check_stops(&args.stop)?;
        let limits = &args.limits;
        if args.prefix_dir.is_some() && limits.prefix_cache == 0 {
            return Err(Stop::usage("--prefix-dir has nothing to keep with --prefix-cache 0"));
        }
        let room = limits.body_limit.div_ceil(BODY_UNIT).saturating_mul(LARGEST_BODIES);
        let room = usize::try_from(room).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        let states = match &args.state_dir {
            Some(dir) => Some(Arc::new(States::open(dir, limits.state_bytes)?)),
            None => None,
        };
        if let (Some(states), Some(prefixes)) = (&states, &args.prefix_dir)
            && states.is_at(prefixes)
        {
            // Requests may list and delete what is in the one, and know nothing of the other.
            return Err(Stop::usage("--state-dir and --prefix-dir are the same folder; expected two"));
        }
        Ok(App(Arc::new(Shared {
            guard: Guard::new(&args)?,
            template: match &args.template {
                Some(path) => ChatTemplate::from_path(path)?,
                None => ChatTemplate::G1,
            },
            states,
            metrics: Arc::default(),
            desk: Arc::default(),
            loaded: OnceLock::new(),
            bodies: Arc::new(Semaphore::new(room)),
            ids: RandomState::new(),
            next_id: AtomicU64::new(0),
            args,
            console,
        })))
    }

    /// The command line.
    pub fn args(&self) -> &ServeArgs {
        &self.0.args
    }

    /// Where the server says what happens.
    pub fn console(&self) -> Console {
        self.0.console
    }

    /// Who may ask.
    pub fn guard(&self) -> &Guard {
        &self.0.guard
    }

    /// What is counted.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    /// Where the page asks for its demonstration engine.
    pub fn desk(&self) -> &Arc<Desk> {
        &self.0.desk
    }

    /// How messages become text.
    pub fn template(&self) -> &ChatTemplate {
        &self.0.template
    }

    /// Where an answer of a chat ends, beside where the request says.
    pub fn chat_stops(&self) -> Vec<String> {
        if self.args().stop.is_empty() { self.template().stops() } else { self.args().stop.clone() }
    }

    /// The model.
    ///
    /// # Errors
    /// 503: it is not loaded yet.
    pub fn loaded(&self) -> Result<&Loaded, ApiError> {
        self.0.loaded.get().ok_or_else(ApiError::loading)
    }

    /// The model is there.
    ///
    /// # Panics
    /// It was there before.
    pub fn set_loaded(&self, loaded: Loaded) {
        assert!(self.0.loaded.set(loaded).is_ok(), "a server loads one model");
    }

    /// The folder of states.
    ///
    /// # Errors
    /// 501: there is none.
    pub fn states(&self) -> Result<&Arc<States>, ApiError> {
        self.0.states.as_ref().ok_or_else(ApiError::no_states)
    }

    /// Where a session begins: with nothing, or with a state.
    ///
    /// # Errors
    /// The state cannot be read.
    pub async fn start(&self, name: Option<&StateName>) -> Result<Start, ApiError> {
        let Some(name) = name.cloned() else { return Ok(Start::default()) };
        let states = Arc::clone(self.states()?);
        let identity = self.loaded()?.scheduler.identity().clone();
        let session = blocking(move || states.load(&name, &identity)).await?;
        let is_spoken = !session.is_new() && matches!(self.template(), ChatTemplate::G1);
        let unfed = session.tail.unfed.clone();
        Ok(Start { state: Some(session.state), unfed, tail: is_spoken.then_some(session.tail) })
    }

    /// A request with the server's limits, that generates nothing special.
    pub fn request(&self, prompt: Vec<u32>) -> Request {
        let limits = &self.args().limits;
        Request {
            queue_limit: Some(limits.queue_timeout),
            time_limit: Some(limits.time_limit),
            max_tokens: limits.max_tokens,
            ..Request::new(prompt)
        }
    }

    /// A request for text. Each choice has its own random numbers.
    pub fn text_request(&self, prompt: Vec<u32>, settings: &Settings, choice: usize) -> Request {
        let request = self.request(prompt);
        let seed = settings.params.seed.map(|seed| seed.wrapping_add(choice as u64));
        let most = [settings.max_tokens, request.max_tokens];
        Request {
            params: SamplerParams { seed, ..settings.params.clone() },
            max_tokens: most.into_iter().flatten().min(),
            stop_strings: settings.stop.iter().map(|stop| stop.as_bytes().to_vec()).collect(),
            keep_state: settings.save_state.is_some(),
            ..request
        }
    }

    /// A name for an answer, which is not given twice.
    pub fn new_id(&self, prefix: &str) -> String {
        let number = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        let mut hasher = self.0.ids.build_hasher();
        hasher.write_u64(number);
        format!("{prefix}-{:016x}{number:08x}", hasher.finish())
    }

    /// Waits until there is memory for a request's body, which is held until it was read.
    ///
    /// # Errors
    /// 413: it says that it is too long.
    pub async fn room_for_body(&self, headers: &HeaderMap) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        let most = self.args().limits.body_limit;
        let length =
            headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let length = length.unwrap_or(most);
        if length > most {
            return Err(ApiError::long_body(most));
        }
        if length <= SMALL_BODY_BYTES {
            return Ok(None);
        }
        let units = u32::try_from(length.div_ceil(BODY_UNIT)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.0.bodies).acquire_many_owned(units).await;
        Ok(Some(room.expect("it is never closed")))
    }
}
