//! Many sessions in one sweep, held against the same requests one after another.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rwkv_model::{Model, Request, SamplerParams, Scheduler, SchedulerOptions, SessionEvent, Sink};
use serde::Serialize;

use super::measure::{Tokens, median};
use crate::model_file::main_codec;
use crate::output::Output;
use crate::progress::Progress;

/// What is measured.
#[derive(Debug)]
pub struct Plan {
    /// Numbers of sessions, one after another.
    pub sessions: Vec<usize>,
    /// Tokens of each prompt.
    pub prompt_tokens: usize,
    /// Tokens that each session generates.
    pub tokens: usize,
    /// Repetitions.
    pub repeat: u32,
}

impl Plan {
    /// The most sessions at once.
    pub fn most(&self) -> usize {
        self.sessions.iter().copied().max().unwrap_or(1)
    }
}

/// One number of sessions' results. The names are part of what scripts rely on.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    model: String,
    codec: String,
    isa: &'static str,
    threads: usize,
    repetitions: u32,
    sessions: usize,
    prompt_tokens: usize,
    tokens_per_session: usize,
    /// Tokens that all sessions generate together.
    combined_tokens_per_s: f64,
    /// The same requests, one after another.
    one_by_one_tokens_per_s: f64,
    speedup: f64,
    /// Of the sweeps with all sessions.
    ms_per_sweep: f64,
    /// 0 when all weights stay in memory.
    read_bytes_per_sweep: f64,
    pinned_bytes: u64,
}

/// What is known of a model before the scheduler has it.
struct About {
    codec: String,
    isa: &'static str,
    threads: usize,
}

/// Measures a model with as many sessions as the plan says.
///
/// # Errors
/// A session fails.
pub fn measure(name: &str, model: Model, plan: &Plan, progress: &Progress) -> Result<Vec<Report>> {
    let about = About {
        codec: main_codec(model.manifest()).unwrap_or("mixed").to_owned(),
        isa: model.isa().name(),
        threads: model.threads(),
    };
    let options = SchedulerOptions {
        queue: plan.most(),
        sessions: plan.most(),
        // The text is noise: a token is any two bytes.
        ..SchedulerOptions::new(Arc::new(|token, bytes| bytes.extend((token as u16).to_le_bytes())))
    };
    let scheduler = Scheduler::start(model, options)?;
    let mut tokens = Tokens::new(scheduler.config().vocab);
    let requests: Vec<Request> =
        (0..plan.most()).map(|seed| request(&mut tokens, plan, seed as u64)).collect();
    progress.message("warming up");
    run(&scheduler, &requests[..1])?;
    let mut alone: Vec<Vec<Duration>> = vec![Vec::new(); requests.len()];
    let mut together: Vec<Vec<Run>> = vec![Vec::new(); plan.sessions.len()];
    for round in 1..=plan.repeat {
        // In turns, so that what else the machine does meets all of them.
        for (times, request) in alone.iter_mut().zip(&requests) {
            progress.message(format!("one after another, {round} of {}", plan.repeat));
            times.push(run(&scheduler, std::slice::from_ref(request))?.time);
        }
        for (runs, &sessions) in together.iter_mut().zip(&plan.sessions) {
            progress.message(format!("{sessions} sessions, {round} of {}", plan.repeat));
            runs.push(run(&scheduler, &requests[..sessions])?);
        }
    }
    let pinned_bytes = scheduler.stats().cache.pinned_bytes;
    let report = |(runs, &sessions): (&Vec<Run>, &usize)| {
        let all = (sessions * plan.tokens) as f64;
        let one_by_one = |round: usize| alone[..sessions].iter().map(|times| times[round]).sum::<Duration>();
        let speed = |time: Duration| all / time.as_secs_f64();
        let combined = median(runs.iter().map(|run| speed(run.time)).collect());
        let one_by_one = median((0..runs.len()).map(|round| speed(one_by_one(round))).collect());
        Report {
            model: name.to_owned(),
            codec: about.codec.clone(),
            isa: about.isa,
            threads: about.threads,
            repetitions: plan.repeat,
            sessions,
            prompt_tokens: plan.prompt_tokens,
            tokens_per_session: plan.tokens,
            combined_tokens_per_s: combined,
            one_by_one_tokens_per_s: one_by_one,
            speedup: combined / one_by_one,
            ms_per_sweep: median(runs.iter().map(|run| 1e3 * run.seconds_per_sweep).collect()),
            read_bytes_per_sweep: median(runs.iter().map(|run| run.bytes_per_sweep).collect()),
            pinned_bytes,
        }
    };
    let reports = together.iter().zip(&plan.sessions).map(report).collect();
    scheduler.shutdown(Duration::ZERO);
    Ok(reports)
}

fn request(tokens: &mut Tokens, plan: &Plan, seed: u64) -> Request {
    Request {
        params: SamplerParams { seed: Some(seed), ..SamplerParams::default() },
        max_tokens: Some(plan.tokens),
        stop_tokens: Vec::new(),
        ..Request::new(tokens.take(plan.prompt_tokens).collect())
    }
}

/// Requests that ran at once.
#[derive(Debug, Clone)]
struct Run {
    time: Duration,
    seconds_per_sweep: f64,
    bytes_per_sweep: f64,
}

fn run(scheduler: &Scheduler, requests: &[Request]) -> Result<Run> {
    let before = scheduler.stats();
    let begin = Instant::now();
    let (sender, ends) = channel();
    scheduler.submit_all(requests.iter().map(|request| (request.clone(), sink(sender.clone()))))?;
    drop(sender);
    for _ in requests {
        ends.recv().context("the engine is gone")??;
    }
    let time = begin.elapsed();
    let after = scheduler.stats();
    let sweeps = (after.sweeps - before.sweeps).max(1) as f64;
    Ok(Run {
        time,
        seconds_per_sweep: (after.sweep_time - before.sweep_time).as_secs_f64() / sweeps,
        bytes_per_sweep: (after.cache.total.bytes - before.cache.total.bytes) as f64 / sweeps,
    })
}

/// Says when a session has ended.
fn sink(sender: Sender<Result<()>>) -> Sink {
    Box::new(move |event| {
        let ended = match event {
            SessionEvent::Finished(_) => Ok(()),
            SessionEvent::Failed(error) => Err(error.into()),
            _ => return ControlFlow::Continue(()),
        };
        // Who measures waits for it.
        let _ = sender.send(ended);
        ControlFlow::Continue(())
    })
}

/// Prints a table with a line for each report.
pub fn print(reports: &[Report], output: &mut Output) -> io::Result<()> {
    let Some(first) = reports.first() else { return Ok(()) };
    output.line(format_args!(
        "{}, codec {}, {}; medians of {}; requests of {} + {} tokens",
        first.model, first.codec, first.isa, first.repetitions, first.prompt_tokens, first.tokens_per_session
    ))?;
    output.line("")?;
    output.line(format_args!(
        "{:>7} {:>8} {:>12} {:>12} {:>8} {:>9} {:>14}",
        "threads", "sessions", "tokens/s", "one by one", "speedup", "ms/sweep", "MB read/sweep"
    ))?;
    for report in reports {
        output.line(format_args!(
            "{:>7} {:>8} {:>12.1} {:>12.1} {:>8.2} {:>9.1} {:>14.1}",
            report.threads,
            report.sessions,
            report.combined_tokens_per_s,
            report.one_by_one_tokens_per_s,
            report.speedup,
            report.ms_per_sweep,
            report.read_bytes_per_sweep / 1e6
        ))?;
    }
    Ok(())
}
