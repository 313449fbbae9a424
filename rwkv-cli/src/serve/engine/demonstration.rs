//! The demonstration engine: a second model of the same pack, on a thread of its own.
//!
//! It runs while somebody looks on, pauses when nobody does, and gives its memory back if nobody comes again. The server's own
//! model is not touched by any of this; both share the processors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use rwkv_model::pack::Pack;
use rwkv_model::{Model, Residency};
use serde::Serialize;

use super::compare;
use super::desk::{Base, Desk, Wish};
use super::session::{self, Report, Session};
use super::settings::{Settings, SettingsBody};
use super::tap::{Counters, Note, Slot, Stages, Taken, Tap};

/// How often onlookers are told what the tap has noted.
const TICK: Duration = Duration::from_millis(50);
/// How often they are told what the sessions say, and what their states are.
const REPORT: Duration = Duration::from_millis(120);
const STATES: Duration = Duration::from_millis(400);
/// How long an engine that nobody looks at keeps its memory.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long one runs without a word from anybody.
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// The group of the embedding.
const EMBEDDING: &str = "emb";

/// What the engine does.
#[derive(Debug, Serialize)]
struct Status<'a> {
    /// `idle`, `opening`, `running`, `comparing` or `failed`.
    state: &'a str,
    settings: Option<SettingsBody>,
    message: Option<String>,
    memory: Option<Memory>,
}

/// What the weights take.
#[derive(Debug, Serialize)]
struct Memory {
    pinned_bytes: u64,
    slots: usize,
    slot_bytes: u64,
    scratch_bytes: u64,
    state_bytes: u64,
    memory_bytes: u64,
    smallest_budget: u64,
    read_bytes_per_token: u64,
    bytes_per_sweep: u64,
    /// The groups that stay, by their place in the pack.
    pinned: Vec<usize>,
    source: String,
    threads: usize,
    isa: &'static str,
}

/// What happened in a tick.
#[derive(Debug, Serialize)]
struct Tick<'a> {
    at_ms: u64,
    #[serde(flatten)]
    taken: &'a Taken,
}

/// What the sessions say.
#[derive(Debug, Serialize)]
struct Sessions {
    sessions: Vec<Report>,
    /// Groups that are read ahead at present.
    depth: usize,
    /// Embedding rows that were read one by one.
    row_reads: u64,
}

/// The norm of each head's state, `[session][block * heads + head]`.
#[derive(Debug, Serialize)]
struct States {
    norms: Vec<Vec<f32>>,
}

/// A pass from its beginning to its end.
#[derive(Debug, Serialize)]
struct Pass {
    pass: u64,
    settings: SettingsBody,
    slots: Vec<Slot>,
    notes: Vec<Note>,
    end_ns: u64,
    counters: Counters,
}

/// The life of the engine's thread.
pub fn live(desk: &Desk, base: &Base) {
    struct Gone<'a>(&'a Desk);
    impl Drop for Gone<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                self.0.engine_is_gone();
                say(self.0, "failed", None, Some("it met a state that it should never be in".into()));
            }
        }
    }
    let _gone = Gone(desk);
    let mut before = None;
    while let Some((wish, turn)) = desk.next(PATIENCE) {
        let mut wish = wish;
        loop {
            match wish {
                Wish::Stop => {
                    before = None;
                    say(desk, "idle", None, None);
                }
                Wish::Run(settings) => {
                    before = Some(settings);
                    run(desk, base, settings, turn);
                }
                Wish::Compare(comparison) => {
                    say(desk, "comparing", before, None);
                    let result = compare::run(desk, base, comparison, before, turn);
                    if let Err(error) = result {
                        say(desk, "failed", before, Some(format!("{error:#}")));
                    } else if let Some(settings) = before.filter(|_| desk.is_turn(turn)) {
                        wish = Wish::Run(settings);
                        continue;
                    } else if desk.is_turn(turn) {
                        say(desk, "idle", None, None);
                    }
                }
            }
            break;
        }
    }
}

/// Runs until something else is wished for, or nobody looks on any more.
fn run(desk: &Desk, base: &Base, settings: Settings, turn: u64) {
    say(desk, "opening", Some(settings), None);
    match show(desk, base, settings, turn) {
        Err(error) => say(desk, "failed", Some(settings), Some(format!("{error:#}"))),
        Ok(message) if desk.is_turn(turn) => say(desk, "idle", Some(settings), Some(message.to_owned())),
        Ok(_) => {}
    }
}

/// Opens an engine and lets it run, while another thread tells what it does. Returns why it ended.
fn show(desk: &Desk, base: &Base, settings: Settings, turn: u64) -> Result<&'static str> {
    let pack = Pack::open(&base.pack)?;
    let tap = Arc::new(Tap::new(pack.manifest().groups.iter().map(|group| group.len).collect()));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ticks = scope.spawn(|| tick(desk, &tap, settings, &is_over));
        let ended = Engine::open(base, settings, &tap).and_then(|mut engine| {
            desk.keep("status", &engine.status());
            engine.generate(desk, turn)
        });
        is_over.store(true, Ordering::Release);
        ticks.thread().unpark();
        ended
    })
}

struct Engine<'a> {
    base: &'a Base,
    settings: Settings,
    model: Model,
    sessions: Vec<Session>,
}

impl Engine<'_> {
    fn open<'a>(base: &'a Base, settings: Settings, tap: &Arc<Tap>) -> Result<Engine<'a>> {
        let options = settings.options(&base.options).cache_observer(Arc::clone(tap) as _);
        let mut model = Model::open(&base.pack, options)?;
        let sessions =
            (0..settings.sessions).map(|number| Session::new(number, &mut model, &base.vocabulary));
        let sessions = sessions.collect::<rwkv_model::Result<_>>()?;
        // What it took to get here is another matter.
        tap.restart();
        model.observe(Some(Box::new(Stages(Arc::clone(tap)))));
        Ok(Engine { base, settings, model, sessions })
    }

    /// Returns why it ended.
    fn generate(&mut self, desk: &Desk, turn: u64) -> Result<&'static str> {
        let begin = Instant::now();
        let (mut report, mut draw) = (Every::new(REPORT), Every::new(STATES));
        while desk.is_turn(turn) {
            if begin.elapsed() > LONGEST {
                return Ok("It has run for a quarter of an hour and rests now.");
            }
            let alone = Instant::now();
            while desk.onlookers() == 0 && desk.is_turn(turn) {
                if alone.elapsed() > PATIENCE {
                    return Ok("Nobody looked on, so it gave its memory back.");
                }
                desk.wait(TICK);
            }
            let due = report.is_due();
            session::pass(&mut self.model, &mut self.sessions, &self.base.vocabulary, due)?;
            if due {
                let stats = self.model.cache_stats();
                let sessions = self.sessions.iter().map(Session::report).collect();
                desk.tell("sessions", &Sessions { sessions, depth: stats.depth, row_reads: stats.row_reads });
            }
            if draw.is_due() {
                desk.tell("states", &States { norms: self.sessions.iter().map(norms).collect() });
            }
        }
        Ok("")
    }

    fn status(&self) -> Status<'static> {
        let plan = self.model.memory_plan();
        let stats = self.model.cache_stats();
        // An embedding that is read by row is a group without bytes to the cache, and pinned as such.
        let by_row = matches!(plan.residency, Residency::Stream { .. });
        let groups = &self.model.manifest().groups;
        let stays =
            |&index: &usize| stats.groups[index].pinned && !(by_row && groups[index].name == EMBEDDING);
        let pinned = (0..groups.len()).filter(stays);
        let memory = Memory {
            pinned_bytes: plan.pinned_bytes,
            slots: plan.slots,
            slot_bytes: plan.slot_bytes,
            scratch_bytes: plan.scratch_bytes,
            state_bytes: plan.state_bytes + plan.logits_bytes,
            memory_bytes: plan.memory_bytes(),
            smallest_budget: plan.smallest_budget,
            read_bytes_per_token: plan.read_bytes_per_token,
            bytes_per_sweep: plan.bytes_per_sweep,
            pinned: pinned.collect(),
            source: stats.source.mode.to_string(),
            threads: self.model.threads(),
            isa: self.model.isa().name(),
        };
        Status { state: "running", settings: Some(self.settings.into()), message: None, memory: Some(memory) }
    }
}

/// Something that is due from time to time, and at first.
struct Every {
    period: Duration,
    last: Option<Instant>,
}

impl Every {
    fn new(period: Duration) -> Every {
        Every { period, last: None }
    }

    fn is_due(&mut self) -> bool {
        let is_due = self.last.is_none_or(|last| last.elapsed() >= self.period);
        if is_due {
            self.last = Some(Instant::now());
        }
        is_due
    }
}

/// Tells onlookers what the tap has noted, until it is over.
fn tick(desk: &Desk, tap: &Tap, settings: Settings, is_over: &AtomicBool) {
    let begin = Instant::now();
    let mut recorded: Option<Pass> = None;
    while !is_over.load(Ordering::Acquire) {
        std::thread::park_timeout(TICK);
        let mut taken = tap.take();
        desk.tell("tick", &Tick { at_ms: begin.elapsed().as_millis() as u64, taken: &taken });
        for part in taken.parts.drain(..) {
            if let Some(slots) = part.slots {
                let (settings, counters) = (settings.into(), taken.counters);
                recorded =
                    Some(Pass { pass: part.pass, settings, slots, notes: Vec::new(), end_ns: 0, counters });
            }
            let Some(mut pass) = recorded.take_if(|pass| pass.pass == part.pass) else { continue };
            if part.broken {
                continue;
            }
            pass.notes.extend(part.notes);
            match part.end_ns {
                Some(end_ns) if desk.wants_pass() => desk.give_pass(&Pass { end_ns, ..pass }),
                Some(_) => {}
                None => recorded = Some(pass),
            }
        }
    }
}

fn norms(session: &Session) -> Vec<f32> {
    let state = session.state();
    let config = state.identity().config();
    let heads = (0..config.layers).flat_map(|block| (0..config.heads).map(move |head| (block, head)));
    // Three digits are more than a colour can show.
    let short = |norm: f32| format!("{norm:.2e}").parse().unwrap_or(norm);
    heads.map(|(block, head)| short(state.wkv_norm(block, head))).collect()
}

fn say(desk: &Desk, state: &str, settings: Option<Settings>, message: Option<String>) {
    let settings = settings.map(SettingsBody::from);
    desk.keep("status", &Status { state, settings, message, memory: None });
}
