//! `rwkv plan`: what a budget of memory would do, before anything runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use indicatif::{BinaryBytes, DecimalBytes};
use rwkv_model::kernels::{Codec, Isa};
use rwkv_model::pack::Pack;
use rwkv_model::{Config, MemoryPlan, Model, ModelOptions, Residency};
use serde::Serialize;

use crate::args::{AttentionArgs, MemoryArgs, ThreadArgs, codec_parser};
use crate::console::Console;
use crate::machine::Disk;
use crate::model_file;
use crate::output::Output;
use crate::prediction::{self, Prediction, Speeds, ZEROS};
use crate::progress::Progress;

const AFTER_HELP: &str = "\
The plan is that of a run with the same options and one session. Bytes per token are what is read for a token that is generated, \
once all that stays in memory is loaded; a prompt takes as many for each sweep of up to so many rows.

The speed is predicted from a second of measurements: plain reads of the file as a run would read it, and products with weights of the model's codecs. It is the slower of the two, since the disk works while the processor does; 85 % of the channel mix's activations are taken to be zero, as in trained models. --no-probe leaves that out.

A budget that cannot work is an error that names the smallest that can.

Examples:
  rwkv plan model.rwkv --ram 1GiB
  rwkv plan model.rwkv --json | jq .smallest_budget";

/// Arguments of `rwkv plan`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct PlanArgs {
    /// A pack, or a checkpoint, which is packed first, or `demo`
    model: PathBuf,

    /// How a checkpoint's matrices are packed [default: u8]
    #[arg(long, value_name = "CODEC", value_parser = codec_parser())]
    codec: Option<Codec>,

    #[command(flatten)]
    threads: ThreadArgs,

    #[command(flatten)]
    attention: AttentionArgs,

    #[command(flatten)]
    memory: MemoryArgs,

    /// Measure nothing, and predict no speed
    #[arg(long)]
    no_probe: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What `--json` prints. All are bytes, where nothing else is said.
#[derive(Debug, Serialize)]
struct Report {
    /// `resident`, `stream` or `mmap`.
    residency: &'static str,
    budget: Option<u64>,
    /// What `auto` found.
    available: Option<u64>,
    smallest_budget: u64,
    memory: u64,
    pinned_bytes: u64,
    pinned_groups: usize,
    swept_groups: usize,
    slots: usize,
    slot_bytes: u64,
    chunk_rows: usize,
    scratch_bytes: u64,
    state_bytes: u64,
    logits_bytes: u64,
    /// The most that keys and values may take; nothing if there is no limit.
    kv_bytes: Option<u64>,
    kv_bytes_per_token: u64,
    attention_bytes: u64,
    bytes_per_sweep: u64,
    read_bytes_per_token: u64,
    #[serde(flatten)]
    probed: Option<Probed>,
}

/// What was measured, and what follows from it.
#[derive(Debug, Serialize)]
struct Probed {
    threads: usize,
    isa: &'static str,
    /// `direct`, `buffered`, `mmap`; of weights that stream, as is the next.
    io: Option<String>,
    disk_gb_per_s: Option<f64>,
    memory_gb_per_s: f64,
    /// Of products with weights of each codec.
    kernel_gb_per_s: BTreeMap<&'static str, f64>,
    /// Nothing for weights that are left to the page cache.
    #[serde(flatten)]
    predicted: Option<Prediction>,
}

impl Report {
    fn new(plan: &MemoryPlan, probed: Option<Probed>) -> Report {
        let (residency, budget) = match plan.residency {
            Residency::Stream { budget_bytes } => ("stream", Some(budget_bytes)),
            Residency::Mapped => ("mmap", None),
            _ => ("resident", None),
        };
        Report {
            residency,
            budget,
            available: plan.available_bytes,
            smallest_budget: plan.smallest_budget,
            memory: plan.memory_bytes(),
            pinned_bytes: plan.pinned_bytes,
            pinned_groups: plan.pinned_groups,
            swept_groups: plan.swept_groups,
            slots: plan.slots,
            slot_bytes: plan.slot_bytes,
            chunk_rows: plan.chunk_rows,
            scratch_bytes: plan.scratch_bytes,
            state_bytes: plan.state_bytes,
            logits_bytes: plan.logits_bytes,
            kv_bytes: plan.kv_bytes,
            kv_bytes_per_token: plan.kv_bytes_per_token,
            attention_bytes: plan.attention_bytes,
            bytes_per_sweep: plan.bytes_per_sweep,
            read_bytes_per_token: plan.read_bytes_per_token,
            probed,
        }
    }
}

impl PlanArgs {
    fn probe(&self, pack: &Path, plan: &MemoryPlan, console: Console) -> Result<Probed> {
        let progress = Progress::spinner(console, "measuring");
        let manifest = Pack::open(pack)?.manifest().clone();
        let config = Config::from_manifest(&manifest)?;
        let threads = self.threads.count();
        let ring_bytes = plan.slots as u64 * plan.slot_bytes;
        let mut disk = match prediction::streams(plan) {
            true => Some(Disk::open(pack, self.memory.io(), ring_bytes)?),
            false => None,
        };
        let speeds = Speeds::measure(threads, config.width, prediction::codecs(&manifest), disk.as_mut())?;
        drop(progress);
        Ok(Probed {
            threads,
            isa: Isa::from_env()?.name(),
            io: disk.map(|disk| disk.info().mode.to_string()),
            disk_gb_per_s: speeds.disk.map(|speed| speed / 1e9),
            memory_gb_per_s: speeds.memory / 1e9,
            kernel_gb_per_s: speeds
                .codecs
                .iter()
                .map(|&(codec, speed)| (codec.name(), speed / 1e9))
                .collect(),
            predicted: Prediction::new(&manifest, &config, plan, &speeds),
        })
    }
}

/// Runs `rwkv plan`.
pub fn run(args: &PlanArgs, console: Console) -> Result<()> {
    let pack = model_file::resolve(&args.model, args.codec, console)?;
    let options = args.attention.apply(args.memory.apply(ModelOptions::default())?);
    let plan = Model::plan(&pack, &options)?;
    let probed = if args.no_probe { None } else { Some(args.probe(&pack, &plan, console)?) };
    let report = Report::new(&plan, probed);
    let mut output = Output::stdout();
    if args.json {
        output.json(&report)?;
        return Ok(output.finish()?);
    }
    let memory = |bytes| BinaryBytes(bytes).to_string();
    let mut line = |what: &str, text: String| output.line(format_args!("{what:<16} {text}"));
    line("residency", report.residency.to_owned())?;
    if let Some(budget) = report.budget {
        line("budget", memory(budget))?;
    }
    if let Some(available) = report.available {
        line("available", memory(available))?;
    }
    line(
        "smallest budget",
        format!("{} ({} bytes)", memory(report.smallest_budget), report.smallest_budget),
    )?;
    line("memory", memory(report.memory))?;
    let Report { pinned_groups, swept_groups, slots, chunk_rows, .. } = report;
    line("  pinned", format!("{}, {pinned_groups} of {swept_groups} groups", memory(report.pinned_bytes)))?;
    line("  ring", format!("{slots} slots of {}", memory(report.slot_bytes)))?;
    line("  buffers", format!("{}, up to {chunk_rows} rows in a sweep", memory(report.scratch_bytes)))?;
    line("  state", memory(report.state_bytes))?;
    line("  logits", memory(report.logits_bytes))?;
    if report.kv_bytes_per_token > 0 {
        let most =
            report.kv_bytes.map_or("no limit".to_owned(), |most| memory(most + report.attention_bytes));
        line("  keys, values", format!("{most}, {} for each token", memory(report.kv_bytes_per_token)))?;
    }
    let (read, swept) = (DecimalBytes(report.read_bytes_per_token), DecimalBytes(report.bytes_per_sweep));
    line("read per token", format!("{read}; a sweep goes over {swept}"))?;
    if let Some(probed) = &report.probed {
        if let (Some(io), Some(disk)) = (&probed.io, probed.disk_gb_per_s) {
            line("disk", format!("{disk:.2} GB/s, {io}"))?;
        }
        let kernels: Vec<String> =
            probed.kernel_gb_per_s.iter().map(|(codec, speed)| format!("{codec} {speed:.1} GB/s")).collect();
        line("kernels", format!("{}, {}, threads: {}", kernels.join(", "), probed.isa, probed.threads))?;
        let text = match probed.predicted {
            None => "nobody knows what the page cache keeps".to_owned(),
            Some(Prediction { tokens_per_s, compute_s_per_token, read_s_per_token }) => format!(
                "{} tokens/s: {} ms of reading and {} ms of computing for each, if {:.0} % of the channel mix's activations are zero",
                short(tokens_per_s),
                short(1e3 * read_s_per_token),
                short(1e3 * compute_s_per_token),
                100.0 * ZEROS
            ),
        };
        line("predicted", text)?;
    }
    Ok(output.finish()?)
}

/// A number with three digits that matter.
fn short(number: f64) -> String {
    let decimals = if number < 10.0 { 2 } else { usize::from(number < 100.0) };
    format!("{number:.decimals$}")
}
