//! The demo model of a program that was built without it.

use std::path::{Path, PathBuf};

use anyhow::Result;
use rwkv_model::kernels::Codec;
use rwkv_model::{Model, ModelOptions, Residency, SamplerParams};
use rwkv_tokenizer::Tokenizer;

use crate::console::Console;
use crate::exit::Stop;

/// Whether this program has the demo model.
pub const IS_HERE: bool = false;

/// How its texts would begin.
pub const OPENING: &str = "";

/// Tokens of its texts.
pub const TEXT_TOKENS: usize = 0;
/// Tokens of its answers.
pub const ANSWER_TOKENS: usize = 0;

/// How its tokens would be chosen.
pub fn sampler_params() -> SamplerParams {
    SamplerParams::default()
}

/// There is nothing to tell.
pub fn introduction(_model: &Model) -> String {
    String::new()
}

/// There is no pack.
pub fn pack(_codec: Codec, _console: Console) -> Result<PathBuf> {
    Err(absent())
}

/// There is no tokenizer.
pub fn tokenizer() -> Result<Tokenizer> {
    Err(absent())
}

/// There is nothing to stream.
pub fn residency(_pack: &Path, _options: &ModelOptions) -> Result<Residency> {
    Err(absent())
}

fn absent() -> anyhow::Error {
    Stop::usage("this program was built without the demo model (its feature is called `demo`)")
}
