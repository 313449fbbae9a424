//! `rwkv pack`: a checkpoint as a pack.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use rwkv_model::kernels::Codec;
use rwkv_model::pack::Checkpoint;
use serde::Serialize;

use crate::args::codec_parser;
use crate::console::Console;
use crate::exit::Stop;
use crate::model_file::{self, Recipe};
use crate::output::Output;

const AFTER_HELP: &str = "\
The checkpoint may be a .safetensors file or a .pth file of PyTorch. Its tensors are read one at a time, so a large one \
needs little memory. The pack appears whole or not at all.

The codec holds for the large matrices and the head: u8 is 8 bits with a scale and minimum for 64 weights, u4 is 4 bits \
with a scale and minimum for 32, and u8 for the head and the channel mix's keys, which would lose most. f32 makes \
everything f32, without loss. Norms stay f32, the embedding and the low-rank matrices 16 bits. --codec-for gives \
tensors another codec by their names in the checkpoint, in which * stands for anything; the last that matches decides.

Examples:
  rwkv pack rwkv7-g1-1.5b.pth
  rwkv pack rwkv7-g1-1.5b.pth --codec u4 --codec-for '*.ffn.key.weight=u4' -o small.rwkv
  rwkv pack model.safetensors --codec-for 'blocks.*.ffn.value.weight=f16'";

/// Arguments of `rwkv pack`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct PackArgs {
    /// The checkpoint (.safetensors, .pth)
    checkpoint: PathBuf,

    /// The pack to write [default: beside the checkpoint, as NAME.CODEC.rwkv]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    /// The codec of the large matrices
    #[arg(long, value_name = "CODEC", value_parser = codec_parser(), default_value = model_file::DEFAULT_CODEC.name())]
    codec: Codec,

    /// Another codec for tensors whose names match; may be repeated
    #[arg(long, value_name = "PATTERN=CODEC", value_parser = override_of)]
    codec_for: Vec<(String, Codec)>,

    /// Name the tokenizer in the pack [default: known for World models]
    #[arg(long, value_name = "NAME")]
    tokenizer: Option<String>,

    /// Replace a file that exists
    #[arg(long)]
    force: bool,

    /// Print one JSON object about the pack
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    pack: String,
    bytes: u64,
    source_bytes: u64,
    parameters: u64,
    codec: &'static str,
    notes: &'a [String],
}

fn override_of(text: &str) -> Result<(String, Codec), String> {
    let (pattern, codec) = text.rsplit_once('=').ok_or("expected PATTERN=CODEC, such as head.weight=f16")?;
    let codec = codec.parse::<Codec>().map_err(|error| error.to_string())?;
    Ok((pattern.to_owned(), codec))
}

/// Runs `rwkv pack`.
pub fn run(args: &PackArgs, console: Console) -> Result<()> {
    let checkpoint = Checkpoint::open(&args.checkpoint)?;
    let out = match &args.output {
        Some(out) => out.clone(),
        None => model_file::default_name(&args.checkpoint, args.codec),
    };
    check_output(&args.checkpoint, &out, args.force)?;
    let recipe = Recipe {
        codec: args.codec,
        overrides: args.codec_for.clone(),
        tokenizer: args.tokenizer.clone(),
        replace: args.force,
    };
    let report = recipe.pack(&checkpoint, &out, console)?;
    if args.json {
        let mut output = Output::stdout();
        output.json(&Report {
            pack: out.display().to_string(),
            bytes: report.bytes,
            source_bytes: checkpoint.file_len(),
            parameters: report.config.parameters(),
            codec: args.codec.name(),
            notes: &report.notes,
        })?;
        output.finish()?;
    }
    Ok(())
}

fn check_output(checkpoint: &Path, out: &Path, force: bool) -> Result<()> {
    let shown = out.display();
    if out.is_dir() {
        return Err(Stop::usage(format!("{shown}: is a directory; expected the name of a file")));
    }
    if out.symlink_metadata().is_err() {
        return Ok(());
    }
    let same = || anyhow::Ok(checkpoint.canonicalize()? == out.canonicalize()?);
    if same().unwrap_or(false) {
        return Err(Stop::usage(format!("{shown}: is the checkpoint itself; name another file with -o")));
    }
    if !force {
        return Err(Stop::usage(format!("{shown}: exists already; --force replaces it")))
            .context("the pack is not written");
    }
    Ok(())
}
