//! `rwkv verify`: are all bytes of a model file what they were?

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use indicatif::HumanBytes;
use rwkv_model::pack::{Checkpoint, FileFormat, Pack};
use serde_json::json;

use crate::console::{self, Console};
use crate::exit::Stop;
use crate::model_file;
use crate::output::Output;
use crate::progress::Progress;

const AFTER_HELP: &str = "\
A pack has a checksum for each group of tensors. A .pth has one for each tensor. A .safetensors has none: its structure is \
checked, and that all of it can be read.

Examples:
  rwkv verify model.u8.rwkv
  rwkv verify *.rwkv";

/// Arguments of `rwkv verify`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct VerifyArgs {
    /// Packs or checkpoints
    #[arg(required = true)]
    files: Vec<PathBuf>,

    /// Print one JSON object for each good file
    #[arg(long)]
    json: bool,
}

/// Runs `rwkv verify`.
pub fn run(args: &VerifyArgs, console: Console) -> Result<()> {
    let mut output = Output::stdout();
    let mut bad = 0;
    for path in &args.files {
        match verify(path, console) {
            Ok(good) if args.json => {
                let Good { format, what, bytes } = good;
                let file = path.display().to_string();
                output.json(
                    &json!({ "file": file, "ok": true, "format": format, "checked": what, "bytes": bytes }),
                )?;
            }
            Ok(Good { what, bytes, .. }) => {
                output.line(format_args!("{}: ok, {what}, {}", path.display(), HumanBytes(bytes)))?;
            }
            // A single file's error is the command's.
            Err(error) if args.files.len() == 1 => return Err(error),
            Err(error) => {
                bad += 1;
                console::error(&error);
            }
        }
        output.flush()?;
    }
    match bad {
        0 => Ok(()),
        bad => Err(Stop::BadModel(format!("{bad} of {} files are bad", args.files.len())).into()),
    }
}

/// What was found to be in order.
struct Good {
    format: &'static str,
    what: String,
    bytes: u64,
}

fn verify(path: &Path, console: Console) -> Result<Good> {
    if model_file::is_demo(path) {
        return verify(&model_file::resolve(path, None, console)?, console);
    }
    let format = FileFormat::detect(path)?;
    if format == FileFormat::Pack {
        let pack = Pack::open(path)?;
        let progress = Progress::bytes(console, "verifying", pack.manifest().data_len());
        pack.verify(|done, _| progress.set(done))?;
        let what = format!("{} groups", pack.manifest().groups.len());
        return Ok(Good { format: "pack", what, bytes: pack.file_len() });
    }
    let checkpoint = Checkpoint::open(path)?;
    let progress = Progress::bytes(console, "reading", checkpoint.file_len());
    let (mut bytes, mut done) = (Vec::new(), 0);
    for index in 0..checkpoint.tensors().len() {
        checkpoint.read(index, &mut bytes)?;
        done += bytes.len() as u64;
        progress.set(done);
    }
    let count = checkpoint.tensors().len();
    let (format, what) = if format == FileFormat::Torch {
        ("torch", format!("{count} tensors"))
    } else {
        ("safetensors", format!("{count} tensors (this format has no checksums)"))
    };
    Ok(Good { format, what, bytes: checkpoint.file_len() })
}
