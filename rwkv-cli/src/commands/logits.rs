//! `rwkv logits`: the numbers behind the text, for comparisons with other implementations.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use rwkv_model::{Feed, Logits, Model, ModelOptions};
use serde_json::json;
use tempfile::NamedTempFile;

use crate::args::{ModelArgs, PromptArgs, VocabularyArgs, named_model};
use crate::console::Console;
use crate::exit::Stop;
use crate::interrupt::Interruptible;
use crate::output::Output;
use crate::progress::Progress;
use crate::session::{Session, check_writable};

const AFTER_HELP: &str = "\
Without --output, stdout gets {\"tokens\":[..],\"logits\":[[..],..]}: a row for each token with --all, else one row, for the last. \
Numbers are written so that they read back as the same 32-bit floats.

With --output, a safetensors file gets the tensor `logits`, F32 [rows, vocabulary].

The split into steps and the number of threads change no bit of the result.

Examples:
  rwkv logits model.pth --codec f32 --tokens 510,12,99 --all --output logits.safetensors
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
    let chunk = if args.step { 1 } else { args.chunk };
    let (mut tokens, text) = match &args.tokens {
        Some(tokens) => (tokens.clone(), None),
        None => {
            let vocabulary = args.vocabulary.load_for(&args.model)?;
            let ids = vocabulary.try_encode(args.prompt.open(console)?.read_all()?)?;
            (ids, Some(vocabulary))
        }
    };
    let mut model = args.model.open(console, ModelOptions::default().chunk_rows(chunk))?;
    // A budget may have room for fewer rows.
    let chunk = chunk.min(model.chunk_rows());
    let vocab = model.config().vocab;
    if let Some(vocabulary) = text {
        vocabulary.warn_unless_fit(vocab, console);
        vocabulary.check(&tokens, vocab)?;
    }
    let mut session = match &args.state {
        Some(path) => Session::load(path, model.identity())?,
        None => Session::new(model.new_state()),
    };
    tokens.splice(0..0, std::mem::take(&mut session.tail.unfed));
    if tokens.is_empty() {
        return Err(Stop::usage("there are no tokens, so there are no logits"));
    }
    let rows = if args.all { tokens.len() } else { 1 };
    let section = Interruptible::begin();
    let mut sink = match &args.output {
        Some(path) => Sink::file(path, rows, vocab)?,
        None => Sink::stdout(&tokens)?,
    };
    compute(&mut model, session, &tokens, args.all, chunk, console, &mut |logits| {
        section.check()?;
        logits.chunks_exact(vocab).try_for_each(|row| sink.row(row))
    })?;
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
    File { file: BufWriter<NamedTempFile>, path: PathBuf },
}

impl Sink {
    fn stdout(tokens: &[u32]) -> Result<Sink> {
        let mut output = Output::stdout();
        output.bytes(format!("{{\"tokens\":{},\"logits\":[", serde_json::to_string(tokens)?).as_bytes())?;
        Ok(Sink::Json { output, rows: 0 })
    }

    fn file(path: &Path, rows: usize, vocab: usize) -> Result<Sink> {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = builder.prefix(".rwkv-logits-").tempfile_in(dir).with_context(|| unwritable(path))?;
        let mut file = BufWriter::new(file);
        let end = rows as u64 * vocab as u64 * 4;
        let header =
            json!({ "logits": { "dtype": "F32", "shape": [rows, vocab], "data_offsets": [0, end] } });
        let mut header = header.to_string();
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
        let write = |file: &mut BufWriter<NamedTempFile>| -> io::Result<()> {
            file.write_all(&(header.len() as u64).to_le_bytes())?;
            file.write_all(header.as_bytes())
        };
        write(&mut file).with_context(|| unwritable(path))?;
        Ok(Sink::File { file, path: path.to_owned() })
    }

    fn row(&mut self, logits: &[f32]) -> Result<()> {
        match self {
            Sink::Json { output, rows } => {
                let comma: &[u8] = if *rows == 0 { b"" } else { b"," };
                *rows += 1;
                output.bytes(comma)?;
                output.bytes(serde_json::to_string(logits)?.as_bytes())?;
            }
            Sink::File { file, path } => {
                for logit in logits {
                    file.write_all(&logit.to_le_bytes()).with_context(|| unwritable(path))?;
                }
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        match self {
            Sink::Json { mut output, .. } => {
                output.line("]}")?;
                Ok(output.finish()?)
            }
            Sink::File { file, path } => {
                let file = file.into_inner().map_err(io::IntoInnerError::into_error);
                let persisted = file.and_then(|file| {
                    file.as_file().sync_all()?;
                    file.persist(&path).map_err(|error| error.error)
                });
                persisted.map(|_: File| ()).with_context(|| unwritable(&path))
            }
        }
    }
}

fn unwritable(path: &Path) -> String {
    format!("{}: cannot be written", path.display())
}
