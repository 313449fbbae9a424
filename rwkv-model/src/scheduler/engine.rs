use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rwkv_kernels::Isa;

use super::follow::{Followers, Ready};
use super::inbox::{Inbox, Taken};
use super::pace::Pace;
use super::prefix::{LEAST_TOKENS, PrefixCache};
use super::request::{OnSweep, TokenBytes};
use super::session::{End, Ended, Ending, LastEvent, Pending, Session, take_ended};
use super::stats::SchedulerStats;
use super::sweep::{SweepReport, SweptSession, share};
use crate::error::{ErrorKind, ModelError};
use crate::generate::FinishReason;
use crate::kv::KvLimits;
use crate::model::Model;
use crate::step::{Feed, StepOutput};

/// Rows of a session in a sweep if the logits of all of them are wanted: their memory.
const LOGIT_ROWS: usize = 16;
/// How often in a sequence of generated tokens a state is kept that others may go on from.
const CHECKPOINT_TOKENS: usize = 16;
/// The share of the prefix cache that such a state may take, one of so many parts: caches of keys and values grow, and are not
/// copied again and again.
const CHECKPOINT_SHARE: u64 = 8;

/// How long sessions wait for memory that nobody here has, such as that of states on their way to the disk, or in other hands.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the engine pauses meanwhile, before it tries again.
const PAUSE: Duration = Duration::from_millis(2);

/// What the engine's thread owns.
pub(super) struct Engine {
    pub model: Model,
    pub kv: KvLimits,
    pub isa: Isa,
    pub inbox: Arc<Inbox>,
    pub token_bytes: TokenBytes,
    pub on_sweep: Option<OnSweep>,
    pub sessions: Vec<Session>,
    /// Those that gave back the memory of their keys and values, and feed their tokens again when another session has ended.
    pub parked: Vec<Session>,
    /// Since when sessions wait for memory that somebody else has.
    pub stalled: Option<Instant>,
    /// How many bytes of that were waited for in vain.
    pub given_up: u64,
    /// Those that wait for a session to read what their prompts have in common.
    pub followers: Followers,
    pub prefixes: PrefixCache,
    pub pace: Pace,
    /// How many sessions run at most.
    pub most_sessions: usize,
    /// The most rows of a sweep.
    pub most_rows: usize,
    /// Whether sweeps with decoding sessions have fewer, by the pace.
    pub is_paced: bool,
    pub totals: SchedulerStats,
    /// What the sessions that ended are still to be told.
    pub last_events: Vec<LastEvent>,
}

impl Engine {
    /// Works until there is nothing more to come.
    pub fn run(mut self) {
        if catch_unwind(AssertUnwindSafe(|| self.work())).is_err() {
            tracing::error!("the engine of a scheduler panicked; all its sessions fail");
        }
        self.inbox.close();
        let lost = || End::Failed(ModelError::new(ErrorKind::Engine, "the engine has stopped by a panic"));
        let sessions = std::mem::take(&mut self.sessions);
        let parked = std::mem::take(&mut self.parked);
        for session in sessions.into_iter().chain(self.followers.take_all()).chain(parked) {
            let Ended { ending, last, .. } = session.end(lost());
            self.ended(ending, last);
        }
        for pending in self.inbox.take_all() {
            let (ending, last) = pending.end(lost());
            self.ended(ending, last);
        }
        self.publish();
        self.prefixes.put_away();
        self.inbox.finish();
    }

    fn work(&mut self) {
        loop {
            // Nobody begins before those that had to give way.
            let free = if self.parked.is_empty() { self.most_sessions - self.running() } else { 0 };
            let Some(Taken { begin, ended, cancel_all }) = self.inbox.take(free, self.sessions.is_empty())
            else {
                return;
            };
            for (pending, end) in ended {
                let (ending, last) = pending.end(end);
                self.ended(ending, last);
            }
            begin.into_iter().for_each(|pending| self.begin(pending));
            let now = Instant::now();
            let check = |session: &Session| match cancel_all {
                true => Err(End::Finished(FinishReason::Cancelled)),
                false => session.check(now),
            };
            let mut ended = self.followers.take_ended(check);
            ended.extend(take_ended(&mut self.parked, check));
            for (session, end) in ended {
                self.end(session, end);
            }
            self.end_where(check);
            if !self.sessions.is_empty() {
                if !self.last_events.is_empty() {
                    self.publish();
                }
                self.sweep();
            }
            self.publish();
        }
    }

    /// Begins a session, with a state that is known if there is one.
    fn begin(&mut self, mut pending: Pending) {
        let request = &mut pending.request;
        let (shares, is_new) = (request.reuse, request.state.is_none());
        request.reuse &= is_new;
        let hit = match request.reuse && !request.is_whole() && self.prefixes.is_enabled() {
            true => self.prefixes.find(&request.prompt, request.max_tokens != Some(0)),
            false => None,
        };
        let shared = if request.reuse { self.prefixes.shared(&request.prompt) } else { 0 };
        let (reused, logits, state) = match hit {
            Some(hit) => (hit.tokens, hit.logits, hit.state),
            None => (0, None, request.state.take().unwrap_or_else(|| self.model.new_state())),
        };
        let (mut session, told) = Session::begin(pending, state, reused, self.model.config().width);
        (session.shares, session.is_new) = (shares, is_new);
        session.cut = Some(shared).filter(|&cut| cut >= reused + LEAST_TOKENS && cut < session.tokens.len());
        self.go_on(session, told, logits);
    }

    /// Goes on with a session that is not in the next sweep yet, where what is known of its prompt ends; with the logits there, if
    /// it is known to its end.
    fn go_on(&mut self, mut session: Session, told: Result<(), End>, logits: Option<Vec<f32>>) {
        let told = told.and_then(|()| match logits {
            _ if !session.is_ready() => Ok(()),
            Some(logits) if session.generates() => {
                let (prefixes, token_bytes) = (&mut self.prefixes, &*self.token_bytes);
                let (isa, kv, totals) = (self.isa, &self.kv, &mut self.totals);
                let mut after = After { prefixes, token_bytes, isa, kv, totals };
                after.choose(&mut session, &logits)
            }
            _ => Err(End::Finished(FinishReason::Length)),
        });
        match told {
            Ok(()) => self.join(session),
            Err(end) => self.end(session, end),
        }
    }

    /// Lets a session follow another one, or take part in the sweeps, with those that came first before it.
    fn join(&mut self, session: Session) {
        if let Some(session) = self.followers.take_in(session, &self.sessions) {
            insert_by_age(&mut self.sessions, session);
        }
    }

    /// Sessions that have begun and not ended.
    fn running(&self) -> usize {
        self.sessions.len() + self.followers.len() + self.parked.len()
    }

    /// The rows of each session in the next sweep.
    fn rows(&self) -> Vec<usize> {
        let wanted = |session: &Session| {
            let most = self.followers.stop(session).map_or(usize::MAX, |at| at - session.fed);
            session.wanted(LOGIT_ROWS).min(most)
        };
        let wanted: Vec<usize> = self.sessions.iter().map(wanted).collect();
        let prefilling = self.sessions.iter().filter(|session| session.is_prefilling()).count();
        let decoding = wanted.len() - prefilling;
        let mut rows = self.most_rows;
        if self.is_paced && decoding > 0 {
            rows = rows.min(decoding + self.pace.prompt_rows(decoding).max(prefilling));
        }
        share(&wanted, rows)
    }

    /// One sweep for all sessions.
    fn sweep(&mut self) {
        let rows = self.rows();
        let mut feeds: Vec<Feed<'_>> =
            self.sessions.iter_mut().zip(&rows).map(|(session, &rows)| session.feed(rows)).collect();
        let begin = Instant::now();
        let output = self.model.step_each(&mut feeds);
        let time = begin.elapsed();
        drop(feeds);
        let mut ends: Vec<Result<(), End>> = Vec::with_capacity(rows.len());
        let mut ready = Vec::new();
        // Sessions for which there is no memory, while others have it.
        let mut waiting = Vec::new();
        // What was refused was not swept.
        let mut swept = rows.clone();
        let report;
        match output {
            Err(error) => {
                report = report_of(&self.sessions, &swept, self.totals.sweeps, time);
                tracing::warn!(%error, sessions = rows.len(), "a sweep failed, and its sessions with it");
                ends.extend(rows.iter().map(|_| Err(End::Failed(error.clone()))));
            }
            Ok(mut output) => {
                let refused =
                    swept.iter_mut().enumerate().filter(|(index, _)| output.error(*index).is_some());
                refused.for_each(|(_, rows)| *rows = 0);
                report = report_of(&self.sessions, &swept, self.totals.sweeps, time);
                if report.rows > 0 {
                    self.pace.record(report.rows, time);
                }
                draw(&mut self.sessions, &rows, &mut output);
                let (prefixes, token_bytes) = (&mut self.prefixes, &*self.token_bytes);
                let (isa, kv, totals) = (self.isa, &self.kv, &mut self.totals);
                let mut after = After { prefixes, token_bytes, isa, kv, totals };
                for (index, (session, &rows)) in self.sessions.iter_mut().zip(&rows).enumerate() {
                    ends.push(match output.error(index) {
                        Some(error) => after.refused(session, rows, error).map(|waits| {
                            if waits {
                                waiting.push((index, error.clone()));
                            }
                        }),
                        None => after.fed(session, rows, output.logits(index)),
                    });
                }
                ready = self.followers.take_ready(&self.sessions, |index| output.logits(index));
            }
        }
        let parked = if waiting.len() == ends.len() {
            self.make_room(waiting, &mut ends)
        } else {
            self.stalled = None;
            if self.given_up > 0 {
                self.given_up = self.given_up.min(self.foreign());
            }
            None
        };
        if report.rows > 0 {
            self.totals.sweeps += 1;
            self.totals.sweep_time += time;
            (self.totals.last_rows, self.totals.last_sweep_time) = (report.rows, time);
            if let Some(on_sweep) = &self.on_sweep {
                on_sweep(&self.model, &report);
            }
        }
        let mut ends = ends.into_iter();
        self.end_where(|_| ends.next().expect("every session was in the sweep"));
        if let Some(index) = parked {
            self.park(index);
        }
        ready.into_iter().for_each(|ready| self.lead_on(ready));
    }

    /// Nobody gets memory for keys and values, so somebody has to give some back: one that waits for others to read; or whoever else
    /// has some, if it comes soon; or the last session that can feed its tokens again later, whose place in the list this returns; or
    /// the last one, which ends.
    fn make_room(
        &mut self,
        waiting: Vec<(usize, ModelError)>,
        ends: &mut [Result<(), End>],
    ) -> Option<usize> {
        let budget = &self.kv.budget;
        if self.followers.take_memory(budget, || self.model.new_state()) {
            return None;
        }
        let foreign = self.foreign();
        self.given_up = self.given_up.min(foreign);
        if foreign > self.given_up {
            if self.stalled.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                std::thread::sleep(PAUSE);
                return None;
            }
            self.given_up = foreign;
        }
        self.stalled = None;
        let has_some = |index: usize| self.sessions[index].kv_charge(budget) > 0;
        let gives = |index: usize| self.sessions[index].can_restart() && has_some(index);
        let last = |is_it: &dyn Fn(usize) -> bool| waiting.iter().rev().find(|(index, _)| is_it(*index));
        if self.sessions.len() > 1
            && let Some(&(index, _)) = last(&gives)
        {
            return Some(index);
        }
        let victim = last(&has_some).or(waiting.last());
        if let Some((index, error)) = victim {
            ends[*index] = Err(self.sessions[*index].out_of_memory(error.clone()));
        }
        None
    }

    /// What others than sessions have of the memory for keys and values.
    fn foreign(&self) -> u64 {
        self.kv.budget.used().saturating_sub(self.kv_charge())
    }

    /// What sessions have of it.
    fn kv_charge(&self) -> u64 {
        let sessions = self.sessions.iter().chain(&self.parked).chain(self.followers.sessions());
        sessions.map(|session| session.kv_charge(&self.kv.budget)).sum()
    }

    /// Takes a session out of the sweeps, and its memory from it.
    fn park(&mut self, index: usize) {
        let mut session = self.sessions.remove(index);
        let orphans = self.followers.take_led_by(session.id);
        session.restart(self.model.new_state());
        insert_by_age(&mut self.parked, session);
        orphans.into_iter().for_each(|orphan| self.join(orphan));
    }

    /// Lets those take part again that there is memory for, the first ones first; one at least if there is nobody else.
    fn unpark(&mut self) {
        while let Some(session) = self.parked.first() {
            let needed = self.kv.bytes(None, session.tokens.len() + 1);
            let (kv, budget) = (&self.kv, &self.kv.budget);
            // Those that have come back have not taken theirs yet.
            let held_by = |session: &Session| {
                let wanted = kv.bytes(Some(&session.state), session.tokens.len() - session.fed);
                session.kv_charge(budget).max(wanted)
            };
            let held: u64 = self.sessions.iter().map(held_by).sum();
            let held = held + self.followers.sessions().map(|session| session.kv_charge(budget)).sum::<u64>();
            if !self.sessions.is_empty() && held.saturating_add(needed) > self.kv.budget.limit() {
                return;
            }
            let session = self.parked.remove(0);
            self.join(session);
        }
    }

    /// Goes on with a session that has followed another one as far as their prompts are the same.
    fn lead_on(&mut self, Ready { mut session, gained, logits }: Ready) {
        self.totals.shared_tokens += gained as u64;
        if gained > 0 && session.request.reuse && !session.is_ready() {
            let kept = || (session.state.clone(), None);
            self.prefixes.keep(&session.tokens[..session.fed], session.state.bytes(), kept);
        }
        let told = if gained > 0 { session.tell_prefill() } else { Ok(()) };
        self.go_on(session, told, logits);
    }

    /// Ends the sessions of which `check` says so; it is asked about each in turn.
    fn end_where(&mut self, check: impl FnMut(&Session) -> Result<(), End>) {
        for (session, end) in take_ended(&mut self.sessions, check) {
            self.end(session, end);
        }
    }

    /// Ends a session, and keeps what others may go on from.
    fn end(&mut self, mut session: Session, end: End) {
        let mut orphans = self.followers.take_led_by(session.id);
        if let Some(heir) = orphans.first_mut()
            && !matches!(end, End::Failed(_))
            && session.fed > heir.fed
            && session.state.fits_again()
        {
            // The others follow this one now.
            heir.go_on_from(session.state.clone(), session.fed);
        }
        let (reuse, checkpoint) = (session.request.reuse, session.checkpoint.take());
        let Ended { ending, tokens, state, last } = session.end(end);
        self.ended(ending, last);
        orphans.into_iter().for_each(|orphan| self.join(orphan));
        self.unpark();
        if !reuse || ending == Ending::Failed {
            return;
        }
        if let Some((len, state)) = checkpoint
            && len < tokens.len()
        {
            self.prefixes.keep(&tokens[..len], state.bytes(), || (state, None));
        }
        if let Some(state) = state {
            self.prefixes.keep(&tokens, state.bytes(), || (state, None));
        }
    }

    /// Counts an end; who asked for the session is told when it is to be seen.
    fn ended(&mut self, ending: Ending, last: LastEvent) {
        self.last_events.push(last);
        let totals = &mut self.totals;
        *match ending {
            Ending::Completed => &mut totals.completed,
            Ending::Cancelled => &mut totals.cancelled,
            Ending::TimedOut => &mut totals.timed_out,
            Ending::Failed => &mut totals.failed,
        } += 1;
    }

    /// Lets others see the counters, then tells whose sessions ended.
    fn publish(&mut self) {
        let running = self.running();
        let totals = &mut self.totals;
        totals.running = running;
        totals.prefilling = self.sessions.iter().filter(|session| session.is_prefilling()).count();
        totals.prefix = self.prefixes.stats();
        totals.steps = self.model.counters();
        totals.cache = self.model.cache_stats();
        totals.kv_bytes = self.model.kv_bytes();
        self.inbox.publish(totals);
        self.last_events.drain(..).for_each(LastEvent::tell);
    }
}

/// Adds a session to others, where those that came first stand first.
fn insert_by_age(sessions: &mut Vec<Session>, session: Session) {
    let place = sessions.partition_point(|other| other.id < session.id);
    sessions.insert(place, session);
}

/// What was swept of each session.
fn report_of(sessions: &[Session], rows: &[usize], number: u64, time: Duration) -> SweepReport {
    let swept = sessions.iter().zip(rows).map(|(session, &rows)| SweptSession {
        id: session.id,
        rows,
        prefill: session.is_prefilling(),
    });
    SweepReport { number, time, rows: rows.iter().sum(), sessions: swept.collect() }
}

/// Draws the next token of each session that has come so far.
fn draw(sessions: &mut [Session], rows: &[usize], output: &mut StepOutput<'_>) {
    let draws = sessions.iter_mut().zip(rows).enumerate();
    let draws = draws
        .filter(|(feed, (session, rows))| output.error(*feed).is_none() && session.chooses_after(**rows));
    let mut draws: Vec<(&mut Session, &[f32])> =
        draws.map(|(feed, (session, _))| (session, output.logits(feed))).collect();
    output.for_each(&mut draws, |(session, logits)| {
        let vocab = session.vocab();
        session.draw(&logits[logits.len() - vocab..]);
    });
}

/// What follows on a sweep for each of its sessions.
struct After<'a> {
    prefixes: &'a mut PrefixCache,
    token_bytes: &'a dyn Fn(u32, &mut Vec<u8>),
    isa: Isa,
    kv: &'a KvLimits,
    totals: &'a mut SchedulerStats,
}

impl After<'_> {
    /// A session whose feed of so many rows had an error; whether it has to wait until others give back memory.
    fn refused(&mut self, session: &mut Session, rows: usize, error: &ModelError) -> Result<bool, End> {
        // States that are kept for later make room for those of sessions.
        let gives_way = |session: &mut Session, prefixes: &mut PrefixCache| {
            session.checkpoint.take().is_some() || prefixes.evict()
        };
        match error.kind() {
            ErrorKind::Budget if gives_way(session, self.prefixes) => Ok(false),
            // Not even with all memory of its own.
            ErrorKind::Budget if self.kv.check(Some(&session.state), 1).is_err() => {
                Err(session.out_of_memory(error.clone()))
            }
            ErrorKind::Budget => Ok(!session.want_less(rows)),
            _ => Err(End::Failed(error.clone())),
        }
    }

    /// A session that was fed.
    fn fed(&mut self, session: &mut Session, rows: usize, logits: &[f32]) -> Result<(), End> {
        let was_prefilling = session.is_prefilling();
        session.fed(rows, logits, self.isa)?;
        if was_prefilling {
            self.totals.prompt_tokens += rows as u64;
        }
        if session.cut == Some(session.fed) {
            session.cut = None;
            self.prefixes.keep(&session.tokens[..session.fed], session.state.bytes(), || {
                (session.state.clone(), None)
            });
        }
        if !session.is_ready() {
            return Ok(());
        }
        if !session.generates() {
            return Err(End::Finished(FinishReason::Length));
        }
        let vocab = session.vocab();
        let logits = &logits[logits.len() - vocab..];
        if session.request.reuse {
            if was_prefilling {
                let kept = || (session.state.clone(), Some(logits.to_vec()));
                self.prefixes.keep(&session.tokens, session.state.bytes(), kept);
            } else if session.completion().is_multiple_of(CHECKPOINT_TOKENS)
                && session.state.bytes() <= self.prefixes.limit_bytes() / CHECKPOINT_SHARE
            {
                session.checkpoint = Some((session.fed, session.state.clone()));
            }
        }
        self.choose(session, logits)
    }

    fn choose(&mut self, session: &mut Session, logits: &[f32]) -> Result<(), End> {
        let before = session.completion();
        let chosen = session.choose(logits, self.isa, self.token_bytes);
        self.totals.completion_tokens += (session.completion() - before) as u64;
        chosen
    }
}
