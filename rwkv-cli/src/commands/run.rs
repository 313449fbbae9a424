//! `rwkv run`: continue a text.

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, Parser};
use rwkv_model::pack::Pack;
use rwkv_model::{
    Event, Feed, FinishReason, GenerateOptions, Generated, Logits, Model, ModelOptions, Sampler,
    SamplerParams,
};
use serde::Serialize;

use crate::args::{ModelArgs, PromptArgs, PromptSource, SamplingArgs, VocabularyArgs, check_stops};
use crate::console::Console;
use crate::demo;
use crate::exit::Stop;
use crate::feed::feed_text;
use crate::interrupt::Interruptible;
use crate::meter::{Meter, Watch};
use crate::output::Output;
use crate::session::{self, Session, Tail, check_writable};
use crate::statistics::Statistics;
use crate::trace::Tracer;
use crate::vocabulary::Vocabulary;

const AFTER_HELP: &str = "\
The text goes to stdout as it comes, and nothing else does. It ends at the token 0, at a stop string, at --max-tokens, or \
with Ctrl-C, which keeps what was written, saves the state where that was asked for, and exits with 130.

A prompt is fed exactly as it is, so `echo` adds a line feed that the model sees: use `printf %s`. It may be of any \
length, as it is read, tokenised and fed piece by piece.

A state is saved after the text, and --state goes on from there, with a further prompt or without one. The penalties and the \
random numbers begin anew then.

Examples:
  rwkv run model.pth --prompt 'Once upon a time' --max-tokens 200
  rwkv run model.pth --prompt-file book.txt --max-tokens 0 --save-state book.state
  rwkv run model.pth --state book.state --prompt 'In short, this book' --stop . --greedy
  rwkv run model.rwkv --prompt 'Once upon a time' --ram 1GiB --stats
  rwkv run --prompt 'The state of the Union is' --stats
  rwkv run model.rwkv --prompt 'Once upon a time' -n 2 --ram 1GiB --trace
  printf %s 'fn main() {' | rwkv run model.rwkv --temperature 0.5 --stop $'\\n}'";

/// Arguments of `rwkv run`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct RunArgs {
    #[command(flatten)]
    prompt: PromptArgs,

    #[command(flatten)]
    vocabulary: VocabularyArgs,

    /// End after so many tokens; 0 only reads the prompt [default: no limit; 256 for the demo model]
    #[arg(long, short = 'n', value_name = "N", allow_negative_numbers = true)]
    max_tokens: Option<usize>,

    /// End before this text; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,

    /// Go on from a saved state
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,

    /// Save the state after the text
    #[arg(long, value_name = "FILE")]
    save_state: Option<PathBuf>,

    /// Say at the end, on stderr, what was read, waited for, and held in memory
    #[arg(long)]
    stats: bool,

    /// Show, on stderr, what happens layer by layer; the text comes at the end
    #[arg(long)]
    trace: bool,

    /// Write what happens into a file for chrome://tracing or Perfetto
    #[arg(long, value_name = "FILE")]
    trace_file: Option<PathBuf>,

    /// Print one JSON object at the end instead of the text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    sampling: SamplingArgs,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    text: String,
    tokens: &'a [u32],
    /// `end`, `stop`, `length`, `memory` or `interrupted`.
    finish: &'static str,
    prompt_tokens: u64,
    seed: u64,
    prompt_tokens_per_s: f64,
    tokens_per_s: f64,
}

/// Runs `rwkv run`. The demo model has an opening of its own for a terminal that gives it none.
pub fn run(args: &RunArgs, console: Console) -> Result<()> {
    let is_alone = !args.prompt.is_given() && io::IsTerminal::is_terminal(&io::stdin());
    if is_alone && args.state.is_none() && args.model.is_demo() {
        return start(args, PromptSource::text(demo::OPENING), Some(demo::OPENING), console);
    }
    // A state can go on by itself: then a terminal is not asked for a prompt.
    let source = match is_alone && args.state.is_some() {
        true => PromptSource::text(""),
        false => args.prompt.open(console)?,
    };
    start(args, source, None, console)
}

/// The command line of a run without `run`.
#[derive(Debug, Parser)]
struct Unasked {
    #[command(flatten)]
    run: RunArgs,
}

/// Lets the demo model talk, for whoever has asked for nothing.
///
/// # Errors
/// As [`run`].
pub fn unasked(console: Console) -> Result<()> {
    let args = &Unasked::parse_from(["rwkv", "--stats"]).run;
    if !args.model.is_demo() {
        return Err(Stop::usage("no command is given (see --help)"));
    }
    console.note("Nothing was asked for, so here is the demo model. `rwkv --help` says what else there is.");
    start(args, PromptSource::text(demo::OPENING), Some(demo::OPENING), console)
}

/// Continues the text of `source`; `shown` is what of it stands before the continuation.
fn start(args: &RunArgs, source: PromptSource, shown: Option<&str>, console: Console) -> Result<()> {
    let tracer = Tracer::new(args.trace, args.trace_file.as_deref(), console)?;
    let done = follow(args, source, shown, console, tracer.as_ref());
    // A trace of what went wrong is worth having, too.
    let traced = tracer.map_or(Ok(()), |tracer| tracer.finish());
    done.and(traced)
}

/// The same, followed by a tracer if one is wanted.
fn follow(
    args: &RunArgs,
    source: PromptSource,
    shown: Option<&str>,
    console: Console,
    tracer: Option<&Tracer>,
) -> Result<()> {
    // Before a checkpoint is packed, which takes long.
    if let Some(path) = &args.save_state {
        check_writable("--save-state", path)?;
    }
    if let Some(path) = &args.state {
        session::check_readable(path)?;
    }
    check_stops(&args.stop)?;
    args.sampling.check()?;
    let vocabulary = args.vocabulary.load_for(&args.model)?;
    let mut options = ModelOptions::default();
    let has_terminal = console.shows_progress() && io::IsTerminal::is_terminal(&io::stdout());
    // A trace shows more, and a cache tells one observer.
    let watch = (has_terminal && !args.json && tracer.is_none()).then(Arc::<Watch>::default);
    if let Some(watch) = &watch {
        options = options.cache_observer(Arc::clone(watch) as _);
    }
    let pack = args.model.resolve(console)?;
    let mut options = args.model.options(&pack, options)?;
    if let Some(tracer) = tracer {
        options = tracer.follow_reads(Pack::open(&pack)?.manifest(), options);
    }
    let mut model = args.model.open_pack(&pack, console, options)?;
    if let Some(tracer) = tracer {
        tracer.follow(&mut model);
    }
    vocabulary.warn_unless_fit(model.config().vocab, console);
    let statistics = args.stats.then(|| Statistics::begin(&model));
    let mut sampler =
        args.sampling.sampler(args.model.sampler_params(SamplerParams::default()), &model, &vocabulary, 0)?;
    let mut session = match &args.state {
        Some(path) => Session::load(path, model.identity())?,
        None => Session::new(model.new_state()),
    };
    let first = std::mem::take(&mut session.tail).unfed;
    let fed = feed_text(&mut model, &mut session.state, &vocabulary, first, source, console)?;
    let prompt_tokens = fed.tokens + fed.rest.len() as u64;
    if prompt_tokens == 0 {
        let what = if args.state.is_some() { "the text of the state has ended; " } else { "" };
        return Err(Stop::usage(format!("{what}the prompt is empty: there is nothing to go on from")));
    }
    let max_tokens = args.max_tokens.or(args.model.is_demo().then_some(demo::TEXT_TOKENS));
    let run = Run {
        args,
        console,
        tracer,
        vocabulary: &vocabulary,
        watch,
        before: fed.time,
        prompt_tokens,
        max_tokens,
        shown,
    };
    let done = if max_tokens == Some(0) {
        run.only_read(&mut model, session, fed.rest)
    } else {
        run.generate(&mut model, session, &fed.rest, &mut sampler)
    };
    if let Some(statistics) = statistics {
        statistics.print(&model, console);
    }
    done
}

/// A run whose prompt was fed, but for the last tokens.
struct Run<'a> {
    args: &'a RunArgs,
    console: Console,
    tracer: Option<&'a Tracer>,
    vocabulary: &'a Vocabulary,
    /// Who knows how the weights stream, where there is a terminal to show it.
    watch: Option<Arc<Watch>>,
    before: Duration,
    prompt_tokens: u64,
    max_tokens: Option<usize>,
    /// Text that is written before what the model makes.
    shown: Option<&'a str>,
}

impl Run<'_> {
    /// Feeds the rest of the prompt, all but the last token, and generates nothing.
    fn only_read(&self, model: &mut Model, mut session: Session, mut rest: Vec<u32>) -> Result<()> {
        let begin = Instant::now();
        let unfed = rest.pop().into_iter().collect();
        model.step(&mut [Feed::new(&mut session.state, &rest, Logits::None)])?;
        session.tail = Tail { unfed, ..Tail::default() };
        self.save(&session)?;
        let speed = per_second(self.prompt_tokens, self.before + begin.elapsed());
        self.console.note(format_args!("read {} tokens, {speed:.1}/s", self.prompt_tokens));
        if self.args.json {
            let mut output = Output::stdout();
            output.json(&Report {
                text: String::new(),
                tokens: &[],
                finish: "length",
                prompt_tokens: self.prompt_tokens,
                seed: 0,
                prompt_tokens_per_s: speed,
                tokens_per_s: 0.0,
            })?;
            output.finish()?;
        }
        Ok(())
    }

    fn generate(
        &self,
        model: &mut Model,
        mut session: Session,
        rest: &[u32],
        sampler: &mut Sampler,
    ) -> Result<()> {
        let section = Interruptible::begin();
        let token_bytes = |id, text: &mut Vec<u8>| self.vocabulary.append(id, text);
        let options = GenerateOptions {
            max_tokens: self.max_tokens,
            stop_strings: self.args.stop.iter().map(|stop| stop.as_bytes().to_vec()).collect(),
            ..GenerateOptions::new(&token_bytes)
        };
        let mut output = Output::stdout();
        let mut written = Ok(());
        let mut text = self.shown.unwrap_or_default().as_bytes().to_vec();
        let streams = model.memory_plan().slots > 0;
        let mut meter = self.watch.clone().filter(|_| streams).map(|watch| Meter::begin(model, watch));
        let mut write = |bytes: &[u8], tokens| match &mut meter {
            Some(meter) => meter.text(&mut output, bytes, tokens),
            None => output.text(bytes),
        };
        if !self.args.json && !self.args.trace {
            write(&text, 0)?;
        }
        let begin = Instant::now();
        let mut first_token = None;
        let mut on_event = |event: Event<'_>| {
            if let Event::Token { bytes, .. } | Event::Rest { bytes } = event {
                first_token.get_or_insert_with(Instant::now);
                if let Some(tracer) = self.tracer {
                    tracer.token(bytes);
                }
                if self.args.json || self.args.trace {
                    text.extend_from_slice(bytes);
                } else {
                    written = write(bytes, 1);
                }
            }
            if written.is_err() || section.requested() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let generated = model.generate(&mut session.state, rest, sampler, &options, &mut on_event);
        let end = Instant::now();
        if let Some(meter) = meter {
            written = written.and(meter.end(&mut output));
        }
        if self.args.trace && !self.args.json {
            written = output.text(&text);
        }
        if !self.args.json {
            let ended = output.end_line();
            written = written.and(ended);
        }
        // What was written so far is a line of its own.
        let generated = generated?;
        let is_interrupted = section.requested();
        // Without a token, the prompt may not have been read to its end.
        if generated.tokens.is_empty() && is_interrupted {
            return Err(Stop::Interrupted.into());
        }
        session.tail = Tail { unfed: generated.unfed.into_iter().collect(), ..Tail::default() };
        self.save(&session)?;
        written?;
        let first_token = first_token.unwrap_or(end);
        // The first token comes with the prompt.
        let after_first = (generated.tokens.len() as u64).saturating_sub(1);
        let report = Report {
            text: String::from_utf8_lossy(&text).into_owned(),
            tokens: &generated.tokens,
            finish: finish(&generated),
            prompt_tokens: self.prompt_tokens,
            seed: sampler.seed(),
            prompt_tokens_per_s: per_second(self.prompt_tokens, self.before + (first_token - begin)),
            tokens_per_s: per_second(after_first, end - first_token),
        };
        if generated.finish == FinishReason::Memory {
            self.console.warn("the memory for keys and values is full; --kv-ram gives more, --attention window:N needs less");
        }
        let count = report.tokens.len();
        self.console.note(format_args!(
            "{count} token{}, {:.1}/s, after {} of prompt, {:.1}/s ({})",
            if count == 1 { "" } else { "s" },
            report.tokens_per_s,
            report.prompt_tokens,
            report.prompt_tokens_per_s,
            report.finish
        ));
        if self.args.json {
            output.json(&report)?;
        }
        output.finish()?;
        if is_interrupted { Err(Stop::Interrupted.into()) } else { Ok(()) }
    }

    fn save(&self, session: &Session) -> Result<()> {
        match &self.args.save_state {
            Some(path) => session.save(path),
            None => Ok(()),
        }
    }
}

fn finish(generated: &Generated) -> &'static str {
    match generated.finish {
        FinishReason::StopToken(_) => "end",
        FinishReason::StopString(_) => "stop",
        FinishReason::Length => "length",
        FinishReason::Memory => "memory",
        _ => "interrupted",
    }
}

fn per_second(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}
