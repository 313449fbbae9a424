//! What happens in a run, layer by layer: shown as it happens, or written as a file for a trace viewer.
//!
//! The model tells of its stages on its own thread, the cache of its reads on those of its readers. Both come together here,
//! under one lock, which is taken some twenty times for a block.

mod chrome;
mod live;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use anyhow::Result;
use rwkv_model::cache::{self, EventKind, Extent, GroupId};
use rwkv_model::pack::Manifest;
use rwkv_model::{Model, ModelOptions, Observer, Stage, SweepRows};

use crate::console::Console;
use crate::interrupt;
use chrome::ChromeTrace;
use live::Live;

/// How long the end of the program waits for an event to be written.
const PATIENCE: Duration = Duration::from_secs(1);

/// Follows a run. Clones follow the same one.
#[derive(Clone)]
pub struct Tracer(Arc<Mutex<Sinks>>);

/// Where it is told.
struct Sinks {
    live: Option<Live>,
    file: Option<ChromeTrace>,
    groups: Vec<String>,
    /// Reads that have begun, and the number of each thread that reads.
    reads: HashMap<ThreadId, (usize, Option<(Instant, Extent)>)>,
}

/// A part of a group that was read.
#[derive(Debug, Clone, Copy)]
struct Read<'a> {
    group: GroupId,
    name: &'a str,
    extent: Extent,
    begin: Instant,
    end: Instant,
    /// Which of the threads that read.
    reader: usize,
}

impl Tracer {
    /// Shows what happens at the console if `live`, and writes it to a file if one is named. Nothing if neither is wanted.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn new(live: bool, file: Option<&Path>, console: Console) -> Result<Option<Tracer>> {
        if !live && file.is_none() {
            return Ok(None);
        }
        let sinks = Sinks {
            live: live.then(|| Live::new(console)),
            file: file.map(ChromeTrace::create).transpose()?,
            groups: Vec::new(),
            reads: HashMap::new(),
        };
        let tracer = Tracer(Arc::new(Mutex::new(sinks)));
        let at_exit = tracer.clone();
        interrupt::before_exit(move || at_exit.finish_in_passing());
        Ok(Some(tracer))
    }

    /// Follows the reads of a model that is opened with these options, from a pack with this manifest.
    pub fn follow_reads(&self, manifest: &Manifest, options: ModelOptions) -> ModelOptions {
        self.sinks().groups = manifest.groups.iter().map(|group| group.name.clone()).collect();
        options.cache_observer(Arc::new(self.clone()))
    }

    /// Follows the stages of a model.
    pub fn follow(&self, model: &mut Model) {
        model.observe(Some(Box::new(self.clone())));
    }

    /// A token was chosen.
    pub fn token(&self, text: &[u8]) {
        let mut sinks = self.sinks();
        if let Some(live) = &mut sinks.live {
            live.token(text);
        }
        if let Some(file) = &mut sinks.file {
            file.token(Instant::now(), text);
        }
    }

    /// Gives the file its name, whole. What happens after that is not in it.
    ///
    /// # Errors
    /// The file could not be written, now or before.
    pub fn finish(&self) -> Result<()> {
        let file = self.sinks().file.take();
        file.map_or(Ok(()), ChromeTrace::finish)
    }

    /// The same as the program ends, and with it whoever could be told of an error. If the model's thread cannot write, to a
    /// terminal that was halted, that is not waited for.
    fn finish_in_passing(&self) {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if let Ok(mut sinks) = self.0.try_lock() {
                let _ = sinks.file.take().map(ChromeTrace::finish);
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A panic elsewhere leaves a trace that lacks an event, at worst.
    fn sinks(&self) -> MutexGuard<'_, Sinks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Tracer {
    fn sweep_begin(&mut self, at: Instant, sweep: &SweepRows<'_>) {
        let mut sinks = self.sinks();
        if let Some(live) = &mut sinks.live {
            live.sweep_begin(at, sweep);
        }
        if let Some(file) = &mut sinks.file {
            file.sweep_begin(at, sweep);
        }
    }

    fn sweep_end(&mut self, at: Instant) {
        let mut sinks = self.sinks();
        if let Some(live) = &mut sinks.live {
            live.sweep_end(at);
        }
        if let Some(file) = &mut sinks.file {
            file.sweep_end(at);
        }
    }

    fn stage(&mut self, stage: &Stage<'_>) {
        let mut sinks = self.sinks();
        if let Some(live) = &mut sinks.live {
            live.stage(stage);
        }
        if let Some(file) = &mut sinks.file {
            file.stage(stage);
        }
    }
}

impl cache::Observer for Tracer {
    fn event(&self, event: cache::Event) {
        let mut sinks = self.sinks();
        let Sinks { live, file, groups, reads } = &mut *sinks;
        let number = reads.len();
        match event.kind {
            EventKind::ReadBegin(extent) => {
                let read = reads.entry(std::thread::current().id()).or_insert((number, None));
                read.1 = Some((event.at, extent));
            }
            EventKind::ReadEnd(..) => {
                let Some((reader, begun)) = reads.get_mut(&std::thread::current().id()) else { return };
                let Some((begin, extent)) = begun.take() else { return };
                let name = groups.get(event.group.index()).map_or("", String::as_str);
                let read = Read { group: event.group, name, extent, begin, end: event.at, reader: *reader };
                if let Some(live) = live {
                    live.read(&read);
                }
                if let Some(file) = file {
                    file.read(&read);
                }
            }
            _ => {}
        }
    }
}
