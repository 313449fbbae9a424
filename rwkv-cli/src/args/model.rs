use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use rwkv_model::kernels::{Codec, KvFormat};
use rwkv_model::{Attention, Model, ModelOptions};

use super::memory::MemoryArgs;
use crate::console::Console;
use crate::exit::Stop;
use crate::model_file;
use crate::progress::Progress;

/// Which model, and how it is run.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// A pack, or a checkpoint (.pth, .safetensors); a checkpoint is packed first, and the pack is kept
    #[arg(help_heading = None)]
    pub model: PathBuf,

    /// How a checkpoint's matrices are packed [default: u8]
    #[arg(long, value_name = "CODEC", value_parser = codec_parser())]
    pub codec: Option<Codec>,

    /// RWKV-X: what a token attends to: full, window:N (the last N tokens), top-k:B,k (the k best chunks of B tokens);
    /// a saved state keeps what it was begun with [default: full]
    #[arg(long, value_name = "POLICY")]
    pub attention: Option<Attention>,

    /// RWKV-X: how keys and values are stored; a saved state keeps what it was begun with [default: f16]
    #[arg(long, value_name = "FORMAT", value_parser = kv_parser())]
    pub kv: Option<KvFormat>,

    #[command(flatten)]
    pub threads: ThreadArgs,

    #[command(flatten)]
    pub memory: MemoryArgs,
}

/// How many threads compute.
#[derive(Debug, Clone, Args)]
pub struct ThreadArgs {
    /// Threads that compute; results do not depend on it [default: all processors]
    #[arg(long, value_name = "N", value_parser = thread_parser())]
    pub threads: Option<usize>,
}

/// More is a slip of the finger.
const THREADS: RangeInclusive<u64> = 1..=1024;

impl ModelArgs {
    /// Packs the model if it must be, and opens it.
    pub fn open(&self, console: Console, options: ModelOptions) -> Result<Model> {
        self.open_pack(&self.resolve(console)?, console, self.options(options)?)
    }

    /// Finds the model's pack, or makes it.
    pub fn resolve(&self, console: Console) -> Result<PathBuf> {
        model_file::resolve(&self.model, self.codec, console)
    }

    /// Adds to the options what was asked for.
    pub fn options(&self, options: ModelOptions) -> Result<ModelOptions> {
        let options = self.memory.apply(options)?;
        let options = match self.threads.threads {
            Some(threads) => options.threads(threads),
            None => options,
        };
        Ok(options.attention(self.attention.unwrap_or_default()).kv_format(self.kv.unwrap_or_default()))
    }

    /// Opens the model's pack with its [options](ModelArgs::options).
    pub fn open_pack(&self, pack: &Path, console: Console, options: ModelOptions) -> Result<Model> {
        let name = pack.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let loading = Progress::spinner(console, &format!("loading {name}"));
        let model = Model::open(pack, options)?;
        drop(loading);
        let config = model.config();
        if config.attention == 0 && (self.attention.is_some() || self.kv.is_some()) {
            return Err(Stop::usage(format!(
                "{name}: is {}, without attention; --attention and --kv are for RWKV-X",
                config.family()
            )));
        }
        if config.active_layers() < config.layers {
            let (all, run, attention) = (config.layers, config.active_layers(), config.attention);
            console.warn(format_args!(
                "{name}: has {all} blocks, of which {run} are run, as many before each of {attention} attention blocks"
            ));
        }
        Ok(model)
    }
}

/// Reads the name of a codec.
pub fn codec_parser() -> impl TypedValueParser<Value = Codec> {
    PossibleValuesParser::new(Codec::ALL.map(Codec::name)).try_map(|name| name.parse::<Codec>())
}

/// Reads the name of a format of keys and values.
fn kv_parser() -> impl TypedValueParser<Value = KvFormat> {
    PossibleValuesParser::new([KvFormat::F16, KvFormat::F32].map(KvFormat::name))
        .try_map(|name| name.parse::<KvFormat>())
}

/// Reads a number of threads.
pub fn thread_parser() -> impl TypedValueParser<Value = usize> {
    clap::value_parser!(u64).range(THREADS).map(|threads| threads as usize)
}
