use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Arg, Args};
use rwkv_model::kernels::Codec;
use rwkv_model::{Model, ModelOptions, SamplerParams};

use super::attention::AttentionArgs;
use super::memory::MemoryArgs;
use crate::console::Console;
use crate::demo;
use crate::exit::Stop;
use crate::model_file;
use crate::progress::Progress;

/// Which model, and how it is run.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// A pack, or a checkpoint (.pth, .safetensors); a checkpoint is packed first, and the pack is kept. `demo` is the model in
    /// the box, which also runs when no model is named
    #[arg(help_heading = None)]
    pub model: Option<PathBuf>,

    /// Fail if no model is named
    #[arg(long, help_heading = None, conflicts_with = "model")]
    pub no_demo: bool,

    /// How a checkpoint's matrices are packed [default: u8]
    #[arg(long, value_name = "CODEC", value_parser = codec_parser())]
    pub codec: Option<Codec>,

    #[command(flatten)]
    pub attention: AttentionArgs,

    #[command(flatten)]
    pub threads: ThreadArgs,

    #[command(flatten)]
    pub memory: MemoryArgs,
}

/// How many threads compute.
#[derive(Debug, Clone, Args)]
pub struct ThreadArgs {
    /// Threads that compute; results do not depend on it [default: all processors]
    #[arg(long, value_name = "N", value_parser = thread_parser(), allow_negative_numbers = true)]
    pub threads: Option<usize>,
}

/// The help for a model that must be named.
const NAMED_MODEL: &str =
    "A pack, or a checkpoint (.pth, .safetensors), which is packed first, and the pack is kept; or `demo`";

impl ThreadArgs {
    /// The threads that were asked for, or as many as there are processors.
    pub fn count(&self) -> usize {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }
}

/// More is a slip of the finger.
const THREADS: RangeInclusive<u64> = 1..=1024;

impl ModelArgs {
    /// Packs the model if it must be, and opens it.
    pub fn open(&self, console: Console, options: ModelOptions) -> Result<Model> {
        let pack = self.resolve(console)?;
        self.open_pack(&pack, console, self.options(&pack, options)?)
    }

    /// The model that was named, or that is taken if none was.
    ///
    /// # Errors
    /// None was, and the demo model is not wanted or not there.
    pub fn named(&self) -> Result<&Path> {
        match &self.model {
            Some(model) => Ok(model),
            None if self.no_demo || !demo::IS_HERE => {
                Err(Stop::usage("no model is named; expected a pack or a checkpoint (see --help)"))
            }
            None => Ok(Path::new(model_file::DEMO)),
        }
    }

    /// Whether it is the demo model that runs.
    pub fn is_demo(&self) -> bool {
        self.named().is_ok_and(model_file::is_demo)
    }

    /// How tokens are chosen where nothing else is said: `usual`, but not for the demo model.
    pub fn sampler_params(&self, usual: SamplerParams) -> SamplerParams {
        if self.is_demo() { demo::sampler_params() } else { usual }
    }

    /// Finds the model's pack, or makes it.
    pub fn resolve(&self, console: Console) -> Result<PathBuf> {
        model_file::resolve(self.named()?, self.codec, console)
    }

    /// Adds to the options of a model with this pack what was asked for.
    pub fn options(&self, pack: &Path, options: ModelOptions) -> Result<ModelOptions> {
        let options = self.memory.apply(options)?;
        let options = self.attention.apply(options.threads(self.threads.count()));
        if self.is_demo() && !self.memory.is_given() {
            return demo::within_little(pack, options, self.attention.has_bound());
        }
        Ok(options)
    }

    /// Opens the model's pack with its [options](ModelArgs::options).
    pub fn open_pack(&self, pack: &Path, console: Console, options: ModelOptions) -> Result<Model> {
        let name = pack.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let loading = Progress::spinner(console, &format!("loading {name}"));
        let model = Model::open(pack, options)?;
        drop(loading);
        if self.is_demo() {
            console.note(demo::introduction(&model));
        }
        let config = model.config();
        self.attention.check(&name, config)?;
        if config.active_layers() < config.layers {
            let (all, run, attention) = (config.layers, config.active_layers(), config.attention);
            console.warn(format_args!(
                "{name}: has {all} blocks, of which {run} are run, as many before each of {attention} attention blocks"
            ));
        }
        Ok(model)
    }
}

/// Changes the arguments of a command that measures a model, so that it does not measure the demo model by mistake.
pub fn named_model(argument: Arg) -> Arg {
    match argument.get_id().as_str() {
        "model" => argument.required(true).help(NAMED_MODEL),
        "no_demo" => argument.hide(true),
        _ => argument,
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
