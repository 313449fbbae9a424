//! `rwkv doctor`: what the machine is, and which sizes of model would run here, and how.

mod forecast;
mod print;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use rwkv_model::kernels::{Codec, Isa};
use serde::Serialize;
use tempfile::NamedTempFile;

use crate::args::{MemoryArgs, ThreadArgs};
use crate::console::Console;
use crate::directories;
use crate::exit::Stop;
use crate::interrupt::Interruptible;
use crate::machine::{Disk, Facts};
use crate::output::Output;
use crate::prediction::Speeds;
use crate::progress::Progress;
use forecast::Forecast;

const AFTER_HELP: &str = "\
Measured are the memory, products with weights of each codec, and plain reads of a file: of FILE, or of one of 256 MiB that is \
written for it. Predicted is, for the official sizes, how many tokens a second a model generates: resident if it fits the memory \
that is available (or --ram), else streamed within three quarters of it. It takes some seconds.

Examples:
  rwkv doctor
  rwkv doctor --dir /mnt/models --ram 4GiB
  rwkv doctor model.rwkv --json | jq .disk_gb_per_s";

/// Bytes of the file that the disk is measured with, if there is none: more than the caches of most disks' controllers.
const FILE_BYTES: u64 = 256 << 20;
/// Memory that is read into, about that of a ring.
const RING_BYTES: u64 = 64 << 20;
/// The codecs whose speeds are measured.
const CODECS: [Codec; 3] = [Codec::U8, Codec::U4, Codec::F16];
/// The width of the matrices for that: that of 1.5B. Speeds hardly depend on it.
const WIDTH: usize = 2048;

/// Arguments of `rwkv doctor`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct DoctorArgs {
    /// A file to measure the disk with, such as a model; it is only read
    #[arg(conflicts_with = "dir")]
    file: Option<PathBuf>,

    /// The directory whose disk is measured [default: the cache directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    #[command(flatten)]
    threads: ThreadArgs,

    #[command(flatten)]
    memory: MemoryArgs,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    #[serde(flatten)]
    facts: Facts,
    isa: &'static str,
    threads: usize,
    memory_gb_per_s: f64,
    /// Of products with weights of each codec.
    kernel_gb_per_s: BTreeMap<&'static str, f64>,
    /// What was read.
    disk: String,
    io: String,
    io_reason: String,
    disk_gb_per_s: f64,
    models: Vec<Forecast>,
}

/// Runs `rwkv doctor`.
pub fn run(args: &DoctorArgs, console: Console) -> Result<()> {
    let section = Interruptible::begin();
    let facts = Facts::read();
    let isa = Isa::from_env().map_err(|error| Stop::usage(format!("RWKV_ISA: {error}")))?;
    let threads = args.threads.count();
    let progress = Progress::spinner(console, "measuring");
    let place = Place::find(args, &section)?;
    let mut disk = Disk::open(place.path(), args.memory.io(), RING_BYTES)?;
    let info = disk.info();
    let speeds = Speeds::measure(threads, WIDTH, CODECS, Some(&mut disk))
        .with_context(|| format!("{}: cannot be measured", place.name()))?;
    section.check()?;
    drop(progress);
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        facts,
        isa: isa.name(),
        threads,
        memory_gb_per_s: speeds.memory / 1e9,
        kernel_gb_per_s: speeds.codecs.iter().map(|&(codec, speed)| (codec.name(), speed / 1e9)).collect(),
        disk: place.name(),
        io: info.mode.to_string(),
        io_reason: info.reason,
        disk_gb_per_s: speeds.disk.unwrap_or_default() / 1e9,
        models: forecast::all(CODECS, &args.memory, &speeds)?,
    };
    let mut output = Output::stdout();
    if args.json {
        output.json(&report)?;
    } else {
        print::report(&report, &mut output)?;
    }
    Ok(output.finish()?)
}

/// What the disk is measured with.
enum Place {
    /// The user's.
    File(PathBuf),
    /// One that goes away.
    Made(NamedTempFile, PathBuf),
}

impl Place {
    fn find(args: &DoctorArgs, section: &Interruptible) -> Result<Place> {
        if let Some(file) = &args.file {
            return Ok(Place::File(file.clone()));
        }
        let dir = match &args.dir {
            Some(dir) => dir.clone(),
            None => {
                let dir = directories::cache()?;
                std::fs::create_dir_all(&dir)
                    .with_context(|| format!("{}: cannot be created", dir.display()))?;
                dir
            }
        };
        let file = made_in(&dir, section).with_context(|| {
            format!("{}: no file can be written there to measure the disk with", dir.display())
        })?;
        Ok(Place::Made(file, dir))
    }

    fn path(&self) -> &Path {
        match self {
            Place::File(path) => path,
            Place::Made(file, _) => file.path(),
        }
    }

    fn name(&self) -> String {
        let (Place::File(path) | Place::Made(_, path)) = self;
        path.display().to_string()
    }
}

/// A file of numbers that no disk can compress.
fn made_in(dir: &Path, section: &Interruptible) -> Result<NamedTempFile> {
    let mut file = NamedTempFile::with_prefix_in(".rwkv-doctor-", dir)?;
    let mut word = 1u64;
    let mut block = vec![0u8; 4 << 20];
    for _ in 0..FILE_BYTES / block.len() as u64 {
        section.check()?;
        for bytes in block.chunks_exact_mut(8) {
            // Xorshift, by Marsaglia.
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        file.write_all(&block)?;
    }
    file.as_file().sync_all()?;
    Ok(file)
}
