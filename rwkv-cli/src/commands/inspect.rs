//! `rwkv inspect`: what a model file is.

mod human;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use rwkv_model::pack::{Checkpoint, FileFormat, Manifest, Pack, TensorInfo};
use rwkv_model::{Config, Family};
use serde::Serialize;

use crate::console::Console;
use crate::model_file::{self, is_demo, main_codec};
use crate::output::Output;

const AFTER_HELP: &str = "\
With --json, stdout gets one object. For a pack these are the facts of its manifest (version, model, tokenizer, source, groups with \
their extents, checksums and tensors), and format, file, file_bytes, codec, codecs, parameters, swept_bytes and state_bytes. \
For a checkpoint: format, file, file_bytes, family, model (null unless RWKV-7 or RWKV-X), metadata and tensors.

Examples:
  rwkv inspect model.pth
  rwkv inspect model.rwkv --tensors
  rwkv inspect model.rwkv --json | jq .model";

/// Arguments of `rwkv inspect`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct InspectArgs {
    /// A pack or a checkpoint, or `demo`
    file: PathBuf,

    /// List all tensors
    #[arg(long)]
    tensors: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The facts about a file.
#[derive(Serialize)]
#[serde(tag = "format", rename_all = "lowercase")]
enum Facts {
    Pack(Box<PackFacts>),
    Safetensors(CheckpointFacts),
    Torch(CheckpointFacts),
}

#[derive(Serialize)]
struct PackFacts {
    file: String,
    file_bytes: u64,
    /// The codec of most weights.
    codec: Option<String>,
    codecs: BTreeMap<String, CodecShare>,
    /// `None` for a model that this program does not know.
    parameters: Option<u64>,
    /// Bytes that each token goes over.
    swept_bytes: u64,
    /// Bytes of a session's state.
    state_bytes: Option<u64>,
    #[serde(flatten)]
    manifest: Manifest,
}

/// What is stored with a codec.
#[derive(Serialize, Default)]
struct CodecShare {
    tensors: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct CheckpointFacts {
    file: String,
    file_bytes: u64,
    family: String,
    model: Option<Config>,
    /// Why it is no model that this program runs.
    problem: Option<String>,
    parameters: u64,
    metadata: BTreeMap<String, String>,
    tensors: Vec<TensorFacts>,
}

#[derive(Serialize)]
struct TensorFacts {
    name: String,
    dtype: String,
    shape: Vec<usize>,
}

/// Runs `rwkv inspect`.
pub fn run(args: &InspectArgs, console: Console) -> Result<()> {
    let file = match is_demo(&args.file) {
        true => &model_file::resolve(&args.file, None, console)?,
        false => &args.file,
    };
    let facts = match FileFormat::detect(file)? {
        FileFormat::Pack => Facts::Pack(Box::new(pack_facts(file)?)),
        FileFormat::Torch => Facts::Torch(checkpoint_facts(file)?),
        _ => Facts::Safetensors(checkpoint_facts(file)?),
    };
    let mut output = Output::stdout();
    if args.json {
        output.json(&facts)?;
    } else {
        human::print(&facts, args.tensors, &mut output)?;
    }
    Ok(output.finish()?)
}

fn pack_facts(path: &Path) -> Result<PackFacts> {
    let pack = Pack::open(path)?;
    let manifest = pack.manifest().clone();
    let mut codecs: BTreeMap<String, CodecShare> = BTreeMap::new();
    for tensor in manifest.groups.iter().flat_map(|group| &group.tensors) {
        let share = codecs.entry(tensor.codec.clone()).or_default();
        share.tensors += 1;
        share.bytes += tensor.len;
    }
    let config = Config::from_manifest(&manifest).ok();
    Ok(PackFacts {
        file: path.display().to_string(),
        file_bytes: pack.file_len(),
        codec: main_codec(&manifest).map(str::to_owned),
        codecs,
        parameters: config.as_ref().map(Config::parameters),
        swept_bytes: manifest.groups.iter().filter(|group| group.swept).map(|group| group.len).sum(),
        state_bytes: config.as_ref().map(Config::state_bytes),
        manifest,
    })
}

fn checkpoint_facts(path: &Path) -> Result<CheckpointFacts> {
    let checkpoint = Checkpoint::open(path)?;
    let shapes = || checkpoint.tensors().iter().map(|tensor| (tensor.name.as_str(), &*tensor.shape));
    let family = Family::detect(shapes()).with_context(|| path.display().to_string())?;
    let (model, problem) = match Config::from_shapes(shapes()) {
        Ok(config) => (Some(config), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let count = |tensor: &TensorInfo| tensor.shape.iter().fold(1u64, |n, &dim| n.saturating_mul(dim as u64));
    Ok(CheckpointFacts {
        file: path.display().to_string(),
        file_bytes: checkpoint.file_len(),
        family: family.to_string(),
        model,
        problem,
        parameters: checkpoint.tensors().iter().map(count).fold(0, u64::saturating_add),
        metadata: checkpoint.metadata().clone(),
        tensors: checkpoint
            .tensors()
            .iter()
            .map(|tensor| TensorFacts {
                name: tensor.name.clone(),
                dtype: tensor.dtype.to_string(),
                shape: tensor.shape.clone(),
            })
            .collect(),
    })
}
