//! What the settings cost on this machine, measured when somebody asks.

use std::time::{Duration, Instant};

use anyhow::Result;
use rwkv_model::cache::ReadAhead;
use rwkv_model::{Model, ModelOptions};
use serde::Serialize;

use super::desk::{Base, Desk};
use super::session::{self, Session};
use super::settings::{SESSIONS, Settings};

/// A measurement takes at least so long, and so many passes.
const LEAST_TIME: Duration = Duration::from_millis(1500);
const LEAST_PASSES: u32 = 4;
const WARM_UP_PASSES: u32 = 2;
/// Shares of the way from the smallest budget to all weights in memory.
const SHARES: [f64; 4] = [0.0, 0.25, 0.5, 0.75];

/// What can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Comparison {
    /// One session, with weights in memory and streamed within several budgets.
    Budgets,
    /// One session streamed within the present budget, by each way to read ahead.
    ReadAhead,
    /// The present budget with 1, 2 and 4 sessions, against as many one after another.
    Sessions,
}

/// What is known of a comparison.
#[derive(Debug, Serialize)]
struct Progress {
    comparison: Comparison,
    bars: Vec<Bar>,
    of: usize,
    done: bool,
    /// Why there are no more.
    message: Option<String>,
}

/// A bar of the chart.
#[derive(Debug, Clone, Serialize)]
struct Bar {
    budget_bytes: Option<u64>,
    read_ahead: String,
    sessions: usize,
    /// All sessions' together.
    tokens_per_s: f64,
    read_bytes_per_token: u64,
    /// The share of the time that was spent waiting for reads.
    wait_share: f64,
    /// Tokens per second of the same sessions one after another, if they were held against that.
    one_by_one: Option<f64>,
}

/// Measures, and says after each bar what it is.
///
/// # Errors
/// The model cannot be opened, or fails.
pub fn run(desk: &Desk, base: &Base, comparison: Comparison, now: Option<Settings>, turn: u64) -> Result<()> {
    let mut progress = Progress { comparison, bars: Vec::new(), of: 0, done: false, message: None };
    let result = all_bars(desk, base, &mut progress, now, turn);
    progress.done = true;
    if let Err(error) = &result {
        progress.message = Some(format!("{error:#}"));
    }
    desk.keep(comparison.message(), &progress);
    result
}

fn all_bars(
    desk: &Desk,
    base: &Base,
    progress: &mut Progress,
    now: Option<Settings>,
    turn: u64,
) -> Result<()> {
    let comparison = progress.comparison;
    let cases = cases(base, comparison, now)?;
    progress.of = cases.len();
    for settings in cases {
        desk.keep(comparison.message(), progress);
        if let Err(refused) = settings.plan(&base.pack, &base.options) {
            progress.message = Some(refused);
            progress.of -= 1;
            continue;
        }
        let one_by_one = comparison == Comparison::Sessions && settings.sessions > 1;
        let Some(bar) = measure(desk, base, settings, one_by_one, turn)? else {
            progress.message = Some("It was broken off.".into());
            break;
        };
        progress.bars.push(bar);
    }
    Ok(())
}

impl Comparison {
    /// The comparison of a name.
    pub fn of(name: &str) -> Option<Comparison> {
        let all = [Comparison::Budgets, Comparison::ReadAhead, Comparison::Sessions];
        all.into_iter().find(|comparison| comparison.message().strip_prefix("compare-") == Some(name))
    }

    /// The name of its message.
    fn message(self) -> &'static str {
        match self {
            Comparison::Budgets => "compare-budgets",
            Comparison::ReadAhead => "compare-read-ahead",
            Comparison::Sessions => "compare-sessions",
        }
    }
}

fn cases(base: &Base, comparison: Comparison, now: Option<Settings>) -> Result<Vec<Settings>> {
    let present = now.and_then(|settings| settings.budget_bytes);
    let plan = |sessions| {
        let resident = Settings { read_ahead: ReadAhead::Adaptive, budget_bytes: None, sessions };
        Model::plan(&base.pack, &resident.options(&base.options))
    };
    let read_ahead = now.map_or(ReadAhead::Adaptive, |settings| settings.read_ahead);
    let one = plan(1)?;
    let (smallest, most) = (one.smallest_budget, one.memory_bytes());
    let between = |share: f64| smallest + (most.saturating_sub(smallest) as f64 * share) as u64;
    Ok(match comparison {
        Comparison::Budgets => {
            let streamed = SHARES.map(|share| Some(between(share)));
            let budgets = std::iter::once(None).chain(streamed.into_iter().rev());
            budgets.map(|budget_bytes| Settings { read_ahead, budget_bytes, sessions: 1 }).collect()
        }
        Comparison::ReadAhead => {
            let budget_bytes = Some(present.unwrap_or(between(0.25)));
            let ways = [ReadAhead::Off, ReadAhead::Next, ReadAhead::Adaptive];
            ways.map(|read_ahead| Settings { read_ahead, budget_bytes, sessions: 1 }).to_vec()
        }
        Comparison::Sessions => {
            // The budget has to have room for the most of them.
            let least = plan(SESSIONS[SESSIONS.len() - 1])?.smallest_budget;
            let budget_bytes = present.map(|bytes| bytes.max(least));
            SESSIONS.map(|sessions| Settings { read_ahead, budget_bytes, sessions }).to_vec()
        }
    })
}

/// Runs the sessions together, and then one after another if that is wanted. `None` if something else was wished for meanwhile.
fn measure(desk: &Desk, base: &Base, settings: Settings, one_by_one: bool, turn: u64) -> Result<Option<Bar>> {
    let options: ModelOptions = settings.options(&base.options);
    let mut model = Model::open(&base.pack, options)?;
    let sessions = (0..settings.sessions).map(|number| Session::new(number, &mut model, &base.vocabulary));
    let mut sessions = sessions.collect::<rwkv_model::Result<Vec<_>>>()?;
    for _ in 0..WARM_UP_PASSES {
        session::pass(&mut model, &mut sessions, &base.vocabulary, false)?;
    }
    let before = model.cache_stats().total;
    let timed = |model: &mut Model, sessions: &mut [Session], passes, least| -> Result<_> {
        let begin = Instant::now();
        let mut done = 0;
        while done < passes || begin.elapsed() < least {
            if !desk.is_turn(turn) {
                return Ok(None);
            }
            session::pass(model, sessions, &base.vocabulary, false)?;
            done += 1;
        }
        Ok(Some((done, begin.elapsed())))
    };
    let Some((passes, time)) = timed(&mut model, &mut sessions, LEAST_PASSES, LEAST_TIME)? else {
        return Ok(None);
    };
    let counted = model.cache_stats().total - before;
    let tokens = f64::from(passes) * settings.sessions as f64;
    let mut alone = Duration::ZERO;
    for session in sessions.chunks_mut(1).filter(|_| one_by_one) {
        // As many tokens as together.
        let Some((_, time)) = timed(&mut model, session, passes, Duration::ZERO)? else { return Ok(None) };
        alone += time;
    }
    Ok(Some(Bar {
        budget_bytes: settings.budget_bytes,
        read_ahead: settings.read_ahead.to_string(),
        sessions: settings.sessions,
        tokens_per_s: tokens / time.as_secs_f64(),
        read_bytes_per_token: (counted.bytes as f64 / tokens) as u64,
        wait_share: counted.wait.as_secs_f64() / time.as_secs_f64(),
        one_by_one: one_by_one.then(|| tokens / alone.as_secs_f64()),
    }))
}
