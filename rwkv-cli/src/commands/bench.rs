//! `rwkv bench`: how fast a model runs, held against what the machine can do.

mod measure;
mod report;
mod sessions;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{ArgGroup, Args};
use rwkv_model::kernels::Codec;
use rwkv_model::pack::Pack;
use rwkv_model::{Config, Model, ModelOptions, Synthetic, WeightSource};

use crate::args::{AttentionArgs, MemoryArgs, codec_parser, thread_parser};
use crate::console::Console;
use crate::directories;
use crate::machine::{Disk, Limits};
use crate::model_file::{self, DEFAULT_CODEC, Recipe};
use crate::output::Output;
use crate::progress::Progress;
use crate::statistics::forget_peak_rss;
use measure::Plan;
use report::Report;

const AFTER_HELP: &str = "\
Decoding goes over all weights for each token, so it is held against the bandwidth of the memory; reading a prompt (prefill) is \
arithmetic, and is held against the peak of the integer dot products. Both limits are measured in the same run, with as many threads, \
just before and just after each repetition. Speeds, limits and shares of them are medians over repetitions. Bytes per token count \
every weight, also those whose columns are skipped because their input is zero: therefore a decode can be faster than the memory.

With --ram, weights that do not fit are read for each token, and the speed of that is held against plain reads of the same file in \
the same mode, just before and after each decode. Direct reads go past the page cache; buffered ones go through it, and it is told to forget them; \
with --io mmap it answers what it still has.

In RWKV-X a token also reads the keys and values of the tokens that it attends to: --context says how many there are when the \
decode begins.

--synthetic makes a pack of random weights in the shape of an official model, and keeps it in the cache directory. Its text is \
noise, its speed is real.

With --sessions, so many requests run at once, in one sweep over the weights for all of them, and the same requests one after \
another: what is compared is all that they generate, from the first request to the end of the last answer. Their prompts are of one \
token, or as --prompt-tokens says.

With --json, stdout gets one object for each number of threads, and of sessions. GB are 10^9 bytes, GMAC 10^9 multiply-adds.

Examples:
  rwkv bench model.rwkv
  rwkv bench --synthetic 1.5b --threads 1,2
  rwkv bench --synthetic 0.1b --codec f16 --json
  rwkv bench --synthetic 1.5b --ram 512MiB
  rwkv bench --synthetic 1.5b --sessions 1,2,4,8
  rwkv bench --synthetic x-0.2b --context 8192 --kv f16";

/// Random weights are made from this seed.
const SEED: u64 = 1;

/// Arguments of `rwkv bench`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP, group = ArgGroup::new("what").args(["model", "synthetic"]).required(true))]
pub struct BenchArgs {
    /// A pack or a checkpoint, or `demo`
    model: Option<PathBuf>,

    /// Random weights in the shape of an official model
    #[arg(long, value_name = "SIZE", value_parser = Config::official_names().collect::<Vec<_>>())]
    synthetic: Option<String>,

    /// The share of the channel mix's activations that are zero, as in trained models
    #[arg(long, value_name = "SHARE", default_value_t = 0.85, conflicts_with = "model")]
    relu_zeros: f64,

    /// How the matrices are packed [default: u8]
    #[arg(long, value_name = "CODEC", value_parser = codec_parser())]
    codec: Option<Codec>,

    /// Threads that compute; several numbers are measured one after another [default: all processors]
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = thread_parser())]
    threads: Vec<usize>,

    /// Tokens of the prompt [default: 256, or 1 with --sessions]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    prompt_tokens: Option<u32>,

    /// Run so many requests at once, against the same ones one after another
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=256))]
    sessions: Vec<u32>,

    /// Tokens that each session generates
    #[arg(long, value_name = "N", default_value_t = 32, requires = "sessions", value_parser = clap::value_parser!(u32).range(2..=65536))]
    tokens: u32,

    /// Tokens that were taken in before the decode is measured: RWKV-X attends to them
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1048576))]
    context: u32,

    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    attention: AttentionArgs,

    #[command(flatten)]
    memory: MemoryArgs,
}

/// Runs `rwkv bench`.
pub fn run(args: &BenchArgs, console: Console) -> Result<()> {
    let (pack, name) = args.pack(console)?;
    let threads = match args.threads.as_slice() {
        [] => vec![std::thread::available_parallelism().map_or(1, usize::from)],
        threads => threads.to_vec(),
    };
    if !args.sessions.is_empty() {
        return args.run_sessions(&pack, &name, &threads, console);
    }
    let plan = Plan {
        prompt_tokens: args.prompt_tokens.unwrap_or(256) as usize,
        context: args.context as usize,
        repeat: args.repeat,
    };
    let mut limits = Limits::new().context("cannot allocate memory to measure its bandwidth with")?;
    let mut output = Output::stdout();
    let mut reports = Vec::new();
    for threads in threads {
        let progress = Progress::spinner(console, &format!("{name}, threads: {threads},"));
        progress.message("loading");
        forget_peak_rss();
        let options = args.memory.apply(ModelOptions::default().threads(threads))?;
        let mut model = Model::open(&pack, args.attention.apply(options))?;
        args.attention.check(&name, model.config())?;
        let stats = model.cache_stats();
        let mut disk = match stats.slots {
            0 => None,
            _ => Some(Disk::open(&pack, args.memory.io(), stats.ring_bytes)?),
        };
        limits.use_threads(model.isa(), threads);
        let measured = measure::measure(&mut model, &mut limits, disk.as_mut(), &plan, &progress)?;
        let report = Report::new(&name, &model, &plan, &measured);
        drop(progress);
        if args.json {
            output.json(&report)?;
            output.flush()?;
        }
        reports.push(report);
    }
    if !args.json {
        report::print(&reports, &mut output)?;
    }
    Ok(output.finish()?)
}

impl BenchArgs {
    /// Measures sessions that run at once.
    fn run_sessions(&self, pack: &Path, name: &str, threads: &[usize], console: Console) -> Result<()> {
        let plan = sessions::Plan {
            sessions: self.sessions.iter().map(|&sessions| sessions as usize).collect(),
            prompt_tokens: self.prompt_tokens.unwrap_or(1) as usize,
            tokens: self.tokens as usize,
            repeat: self.repeat,
        };
        let mut output = Output::stdout();
        let mut reports = Vec::new();
        for &threads in threads {
            let progress = Progress::spinner(console, &format!("{name}, threads: {threads},"));
            progress.message("loading");
            let options = ModelOptions::default().threads(threads).sessions(plan.most());
            let model = Model::open(pack, self.attention.apply(self.memory.apply(options)?))?;
            self.attention.check(name, model.config())?;
            let measured = sessions::measure(name, model, &plan, &progress)?;
            drop(progress);
            if self.json {
                measured.iter().try_for_each(|report| output.json(report))?;
                output.flush()?;
            }
            reports.extend(measured);
        }
        if !self.json {
            sessions::print(&reports, &mut output)?;
        }
        Ok(output.finish()?)
    }

    /// The pack to measure, and what it is called.
    fn pack(&self, console: Console) -> Result<(PathBuf, String)> {
        if let Some(size) = &self.synthetic {
            let codec = self.codec.unwrap_or(DEFAULT_CODEC);
            return Ok((synthetic(size, codec, self.relu_zeros, console)?, format!("synthetic {size}")));
        }
        let path = self.model.as_deref().context("no model is given")?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok((model_file::resolve(path, self.codec, console)?, name))
    }
}

/// Finds the pack of random weights, or makes it.
fn synthetic(size: &str, codec: Codec, relu_zeros: f64, console: Console) -> Result<PathBuf> {
    let config = Config::official(size).context("the size is none of the official ones")?;
    let source = Synthetic::new(config, SEED).relu_zeros(relu_zeros)?;
    let dir = directories::cache()?.join("synthetic");
    let path = dir.join(format!("{size}-{codec}-zeros{relu_zeros}.rwkv"));
    if is_pack_of(&path, &source) {
        return Ok(path);
    }
    fs::create_dir_all(&dir).with_context(|| format!("{}: cannot be created", dir.display()))?;
    Recipe::new(codec).pack(&source, &path, console)?;
    Ok(path)
}

fn is_pack_of(path: &Path, source: &Synthetic) -> bool {
    let info = source.info(&mut |_, _| {});
    matches!((Pack::open(path), info), (Ok(pack), Ok(info)) if pack.manifest().source == info)
}
