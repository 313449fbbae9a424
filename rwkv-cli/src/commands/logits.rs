//! `rwkv logits`: the numbers behind the text, for comparisons with other implementations and for research.

mod capture;
mod tensor_file;

use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use clap::Args;
use rwkv_model::{Feed, Logits, Model, ModelOptions};

use crate::args::{ModelArgs, PromptArgs, VocabularyArgs, named_model};
use crate::console::Console;
use crate::exit::Stop;
use crate::interrupt::Interruptible;
use crate::output::Output;
use crate::progress::Progress;
use crate::session::{Session, check_readable, check_writable};
use capture::{Capture, SharedSink, What};
use tensor_file::TensorFile;

const AFTER_HELP: &str = "\
Without --output, stdout gets {\"tokens\":[..],\"logits\":[[..],..]}: a row for each token with --all, else one row, for the last. \
Numbers are written so that they read back as the same 32-bit floats.

With --output, a safetensors file gets the tensor `logits`, F32 [rows, vocabulary].

With --capture, the file gets more tensors, F32, with a row for each of the n tokens. `embeddings`: `blocks.I.input` and \
`blocks.I.output`, and `attention.J.input` and `attention.J.output` in RWKV-X, [n, width], the residual stream before and after \
each block. `attention`: `attention.J.weights`, [heads, n, rows], how much each token attends to each row; a row is the \
position of a token, counted from the beginning of the state, and where it is not seen the weight is 0.

The split into steps and the number of threads change no bit of the result.

Examples:
  rwkv logits model.pth --codec f32 --tokens 510,12,99 --all -o logits.safetensors
  rwkv logits model.rwkv --prompt 'Hello' --all --capture embeddings -o inside.safetensors
  rwkv logits model.rwkv --prompt 'The Eiffel tower is in' | jq '.logits[0] | max'";

/// Arguments of `rwkv logits`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP, mut_args(named_model))]
pub struct LogitsArgs {
    /// The tokens, instead of a text
    #[arg(long, value_name = "ID,ID,..", value_delimiter = ',', conflicts_with_all = ["prompt", "prompt_file"])]
    tokens: Option<Vec<u32>>,

    #[command(flatten)]
    prompt: PromptArgs,

    #[command(flatten)]
    vocabulary: VocabularyArgs,

    /// Logits after every token, not only after the last
    #[arg(long)]
    all: bool,

    /// Write a safetensors file
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Also write what goes on inside of the model
    #[arg(long, value_name = "WHAT,..", value_delimiter = ',', requires = "output")]
    capture: Vec<What>,

    /// Feed so many tokens at a time
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = chunk)]
    chunk: usize,

    /// Feed one token at a time
    #[arg(long, conflicts_with = "chunk")]
    step: bool,

    /// Go on from a saved state
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,

    #[command(flatten)]
    model: ModelArgs,
}

fn chunk(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("expected at least 1".into()),
        Ok(chunk) => Ok(chunk),
        Err(error) => Err(error.to_string()),
    }
}

/// Runs `rwkv logits`.
pub fn run(args: &LogitsArgs, console: Console) -> Result<()> {
    if let Some(path) = &args.output {
        check_writable("--output", path)?;
    }
    if let Some(path) = &args.state {
        check_readable(path)?;
    }
    let chunk = if args.step { 1 } else { args.chunk };
    let (mut tokens, text) = match &args.tokens {
        Some(tokens) => (tokens.clone(), None),
        None => {
            let vocabulary = args.vocabulary.load_for(&args.model)?;
            let ids = vocabulary.try_encode(args.prompt.open(console)?.read_all()?)?;
            (ids, Some(vocabulary))
        }
    };
    let mut model =
        args.model.open(console, ModelOptions::default().chunk_rows(chunk).all_logits(args.all))?;
    // A budget may have room for fewer rows.
    let chunk = chunk.min(model.chunk_rows());
    let vocab = model.config().vocab;
    match text {
        Some(vocabulary) => {
            vocabulary.warn_unless_fit(vocab, console);
            vocabulary.check(&tokens, vocab)?;
        }
        None => {
            if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocab) {
                return Err(Stop::usage(format!(
                    "token {token} is not in the model's vocabulary of {vocab}"
                )));
            }
        }
    }
    let mut session = match &args.state {
        Some(path) => Session::load(path, model.identity())?,
        None => Session::new(model.new_state()),
    };
    tokens.splice(0..0, std::mem::take(&mut session.tail.unfed));
    if model.config().attention == 0 && args.capture.contains(&What::Attention) {
        let family = model.config().family();
        return Err(Stop::usage(format!(
            "the model is {family}, without attention that --capture could write"
        )));
    }
    if tokens.is_empty() {
        return Err(Stop::usage("there are no tokens, so there are no logits"));
    }
    let rows = if args.all { tokens.len() } else { 1 };
    let section = Interruptible::begin();
    let mut sink = match &args.output {
        Some(path) => {
            let mut tensors = vec![("logits".to_owned(), vec![rows as u64, vocab as u64])];
            tensors.extend(capture::tensors(&args.capture, model.config(), &session.state, tokens.len()));
            let sink = capture::Sink::new(TensorFile::create(path, &tensors)?);
            if !args.capture.is_empty() {
                let capture = Capture::new(Arc::clone(&sink), &args.capture, &session.state, tokens.len());
                model.observe(Some(Box::new(capture)));
            }
            Sink::File { sink, done: 0 }
        }
        None => Sink::stdout(&tokens)?,
    };
    compute(&mut model, session, &tokens, args.all, chunk, console, &mut |logits| {
        section.check()?;
        sink.check()?;
        logits.chunks_exact(vocab).try_for_each(|row| sink.row(row))
    })?;
    model.observe(None);
    sink.finish()
}

/// Feeds the tokens, and hands on the logits of each step.
fn compute(
    model: &mut Model,
    mut session: Session,
    tokens: &[u32],
    all: bool,
    chunk: usize,
    console: Console,
    take: &mut dyn FnMut(&[f32]) -> Result<()>,
) -> Result<()> {
    let progress = Progress::count(console, "computing", tokens.len() as u64);
    let mut done = 0;
    for part in tokens.chunks(chunk) {
        done += part.len();
        let wanted = match all {
            true => Logits::All,
            false if done == tokens.len() => Logits::Last,
            false => Logits::None,
        };
        let out = model.step(&mut [Feed::new(&mut session.state, part, wanted)])?;
        take(out.logits(0))?;
        progress.set(done as u64);
    }
    Ok(())
}

/// Where the rows go, one after another.
enum Sink {
    Json { output: Output, rows: usize },
    File { sink: SharedSink, done: u64 },
}

impl Sink {
    fn stdout(tokens: &[u32]) -> Result<Sink> {
        let mut output = Output::stdout();
        output.bytes(format!("{{\"tokens\":{},\"logits\":[", serde_json::to_string(tokens)?).as_bytes())?;
        Ok(Sink::Json { output, rows: 0 })
    }

    fn row(&mut self, logits: &[f32]) -> Result<()> {
        match self {
            Sink::Json { output, rows } => {
                let comma: &[u8] = if *rows == 0 { b"" } else { b"," };
                *rows += 1;
                output.bytes(comma)?;
                output.bytes(serde_json::to_string(logits)?.as_bytes())?;
            }
            Sink::File { sink, done } => {
                locked(sink).file.write("logits", *done, logits)?;
                *done += logits.len() as u64;
            }
        }
        Ok(())
    }

    /// Whether all that was captured so far could be written.
    fn check(&self) -> Result<()> {
        match self {
            Sink::Json { .. } => Ok(()),
            Sink::File { sink, .. } => locked(sink).check(),
        }
    }

    fn finish(self) -> Result<()> {
        match self {
            Sink::Json { mut output, .. } => {
                output.line("]}")?;
                Ok(output.finish()?)
            }
            Sink::File { sink, .. } => {
                let sink = Arc::into_inner(sink).context("the file is still being written")?;
                sink.into_inner().unwrap_or_else(PoisonError::into_inner).file.finish()
            }
        }
    }
}

fn locked(sink: &SharedSink) -> MutexGuard<'_, capture::Sink> {
    sink.lock().unwrap_or_else(PoisonError::into_inner)
}
