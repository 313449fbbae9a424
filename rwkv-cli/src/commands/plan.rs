//! `rwkv plan`: what a budget of memory would do, before anything runs.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use indicatif::{BinaryBytes, DecimalBytes};
use rwkv_model::kernels::Codec;
use rwkv_model::{MemoryPlan, Model, ModelOptions, Residency};
use serde::Serialize;

use crate::args::{MemoryArgs, codec_parser};
use crate::console::Console;
use crate::model_file;
use crate::output::Output;

const AFTER_HELP: &str = "\
The plan is that of a run with the same options and one session. Bytes per token are what is read for a token that is generated, \
once all that stays in memory is loaded; a prompt takes as many for each sweep of up to so many rows.

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
    memory: MemoryArgs,

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
    bytes_per_sweep: u64,
    read_bytes_per_token: u64,
}

impl Report {
    fn new(plan: &MemoryPlan) -> Report {
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
            bytes_per_sweep: plan.bytes_per_sweep,
            read_bytes_per_token: plan.read_bytes_per_token,
        }
    }
}

/// Runs `rwkv plan`.
pub fn run(args: &PlanArgs, console: Console) -> Result<()> {
    let pack = model_file::resolve(&args.model, args.codec, console)?;
    let plan = Model::plan(&pack, &args.memory.apply(ModelOptions::default())?)?;
    let report = Report::new(&plan);
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
    let (read, swept) = (DecimalBytes(report.read_bytes_per_token), DecimalBytes(report.bytes_per_sweep));
    line("read per token", format!("{read} of {swept}"))?;
    Ok(output.finish()?)
}
