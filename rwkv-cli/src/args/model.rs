use std::ops::RangeInclusive;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use rwkv_model::kernels::Codec;
use rwkv_model::{Model, ModelOptions};

use crate::console::Console;
use crate::model_file;
use crate::progress::Progress;

/// Which model, and how it is run.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// A pack, or a checkpoint (.pth, .safetensors); a checkpoint is packed first, and the pack is kept
    pub model: PathBuf,

    /// How a checkpoint's matrices are packed [default: u8]
    #[arg(long, value_name = "CODEC", value_parser = codec_parser())]
    pub codec: Option<Codec>,

    #[command(flatten)]
    pub threads: ThreadArgs,
}

/// How many threads compute.
#[derive(Debug, Args)]
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
        let pack = model_file::resolve(&self.model, self.codec, console)?;
        let options = match self.threads.threads {
            Some(threads) => options.threads(threads),
            None => options,
        };
        let name = pack.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let _loading = Progress::spinner(console, &format!("loading {name}"));
        Ok(Model::open(&pack, options)?)
    }
}

/// Reads the name of a codec.
pub fn codec_parser() -> impl TypedValueParser<Value = Codec> {
    PossibleValuesParser::new(Codec::ALL.map(Codec::name)).try_map(|name| name.parse::<Codec>())
}

/// Reads a number of threads.
pub fn thread_parser() -> impl TypedValueParser<Value = usize> {
    clap::value_parser!(u64).range(THREADS).map(|threads| threads as usize)
}
