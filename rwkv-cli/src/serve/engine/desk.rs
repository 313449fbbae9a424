//! Where requests leave what they want of the demonstration engine, and what it tells those who look on.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rwkv_model::ModelOptions;
use serde::Serialize;
use tokio::sync::{broadcast, watch};

use super::compare::Comparison;
use super::demonstration;
use super::settings::Settings;
use crate::vocabulary::Vocabulary;

/// Messages that an onlooker may fall behind before some are dropped for it.
const BACKLOG: usize = 64;
/// Onlookers at the same time.
pub const MOST_ONLOOKERS: usize = 16;

/// The name of the last message.
pub const END: &str = "end";
/// The status before anybody asked for anything.
const IDLE: &str = r#"{"state":"idle","settings":null,"message":null,"memory":null}"#;

/// What the engine is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Nothing: its memory is given back.
    Stop,
    /// Generate text, and show how.
    Run(Settings),
    /// Measure, then do what it did before.
    Compare(Comparison),
}

/// What the engine is made of.
#[derive(Debug, Clone)]
pub struct Base {
    pub pack: PathBuf,
    pub options: ModelOptions,
    pub vocabulary: Arc<Vocabulary>,
}

/// A message for everybody who looks on: its name and its JSON.
pub type Message = (&'static str, Arc<str>);

/// The desk. There is one, and at most one demonstration engine.
#[derive(Debug)]
pub struct Desk {
    slip: Mutex<Slip>,
    changed: Condvar,
    /// Counts the wishes.
    turn: AtomicU64,
    feed: broadcast::Sender<Message>,
    passes: watch::Sender<Option<Arc<str>>>,
    /// The last message of each name that newcomers are told.
    kept: Mutex<Vec<Message>>,
}

#[derive(Debug, Default)]
struct Slip {
    wish: Option<Wish>,
    has_engine: bool,
    is_closed: bool,
}

impl Default for Desk {
    fn default() -> Desk {
        Desk {
            slip: Mutex::default(),
            changed: Condvar::new(),
            turn: AtomicU64::new(0),
            feed: broadcast::Sender::new(BACKLOG),
            passes: watch::Sender::new(None),
            kept: Mutex::new(vec![("status", IDLE.into())]),
        }
    }
}

impl Desk {
    /// Leaves a wish, in the place of one that is not taken up yet or being carried out. Starts the engine's thread if there is none.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn ask(self: &Arc<Desk>, wish: Wish, base: &Base) -> std::io::Result<()> {
        let mut slip = self.slip();
        if slip.is_closed || (wish == Wish::Stop && !slip.has_engine) {
            return Ok(());
        }
        if !slip.has_engine {
            let (desk, base) = (Arc::clone(self), base.clone());
            let builder = std::thread::Builder::new().name("demonstration".into());
            builder.spawn(move || demonstration::live(&desk, &base))?;
            slip.has_engine = true;
        }
        slip.wish = Some(wish);
        self.turn.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
        Ok(())
    }

    /// The next wish and its turn, if one comes within `patience`; with `None` the engine's thread has to end.
    pub fn next(&self, patience: Duration) -> Option<(Wish, u64)> {
        let slip = self.slip();
        let (mut slip, _) = self
            .changed
            .wait_timeout_while(slip, patience, |slip| slip.wish.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        match slip.wish.take() {
            Some(wish) => Some((wish, self.turn.load(Ordering::Acquire))),
            None => {
                slip.has_engine = false;
                None
            }
        }
    }

    /// The engine's thread has ended by a panic.
    pub fn engine_is_gone(&self) {
        self.slip().has_engine = false;
    }

    /// Whether there is an engine, or one is being opened.
    pub fn has_engine(&self) -> bool {
        self.slip().has_engine
    }

    /// Whether nothing else was wished for since.
    pub fn is_turn(&self, turn: u64) -> bool {
        self.turn.load(Ordering::Acquire) == turn
    }

    /// Waits until something happens at the desk, or for so long.
    pub fn wait(&self, most: Duration) {
        let slip = self.slip();
        let waited = self.changed.wait_timeout_while(slip, most, |slip| slip.wish.is_none());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// How many look on.
    pub fn onlookers(&self) -> usize {
        self.feed.receiver_count()
    }

    /// What was said before and holds still, and what will be said. `None` if there are too many onlookers, or the server ends.
    pub fn look_on(&self) -> Option<(Vec<Message>, broadcast::Receiver<Message>)> {
        let kept = self.kept();
        if self.slip().is_closed || self.onlookers() >= MOST_ONLOOKERS {
            return None;
        }
        Some((kept.clone(), self.feed.subscribe()))
    }

    /// The server ends: the engine does, and all who look on are sent away.
    pub fn close(&self) {
        let mut slip = self.slip();
        slip.is_closed = true;
        if slip.has_engine {
            slip.wish = Some(Wish::Stop);
            self.turn.fetch_add(1, Ordering::Release);
            self.changed.notify_all();
        }
        drop(slip);
        let _ = self.feed.send((END, "{}".into()));
    }

    /// Tells everybody. Nobody is waited for.
    pub fn tell(&self, name: &'static str, message: &impl Serialize) {
        if self.onlookers() > 0 {
            // Without a receiver there is nobody to tell.
            let _ = self.feed.send((name, json(message)));
        }
    }

    /// Tells everybody, and those who come later.
    pub fn keep(&self, name: &'static str, message: &impl Serialize) {
        let message = (name, json(message));
        let mut kept = self.kept();
        kept.retain(|(other, _)| *other != name);
        kept.push(message.clone());
        let _ = self.feed.send(message);
    }

    /// Whether somebody waits for a recorded pass.
    pub fn wants_pass(&self) -> bool {
        self.passes.receiver_count() > 0
    }

    /// Hands a recorded pass to all who wait for one.
    pub fn give_pass(&self, pass: &impl Serialize) {
        self.passes.send_replace(Some(json(pass)));
    }

    /// Waits for passes.
    pub fn passes(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.passes.subscribe()
    }

    fn slip(&self) -> MutexGuard<'_, Slip> {
        self.slip.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Message>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn json(message: &impl Serialize) -> Arc<str> {
    // Maps have strings as keys, and no type here fails on its own.
    serde_json::to_string(message).expect("messages can be written as JSON").into()
}
