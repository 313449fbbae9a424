//! The demo model: what runs when no model is named.
//!
//! Its checkpoint is embedded in the program. It is packed once, into the cache directory, and found there again under a name
//! that has the checkpoint's hash. It could well be kept in memory; it streams through a cache that is smaller than itself
//! instead, since showing that is what it is for.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use indicatif::BinaryBytes;
use rwkv_demo_model::{CHECKPOINT, VOCABULARY};
use rwkv_model::kernels::Codec;
use rwkv_model::pack::{Checkpoint, Checksum, Pack};
use rwkv_model::{Model, ModelOptions, Residency, SamplerParams};
use rwkv_tokenizer::Tokenizer;

use crate::console::Console;
use crate::directories;
use crate::model_file::Recipe;

pub use rwkv_demo_model::OPENING;

/// Whether this program has the demo model.
pub const IS_HERE: bool = true;

/// The hint that its packs carry.
pub const TOKENIZER: &str = "rwkv_demo";

/// Tokens of a text, where nothing else was asked for. Addresses are long.
pub const TEXT_TOKENS: usize = 256;
/// Tokens of an answer.
pub const ANSWER_TOKENS: usize = 96;

/// How tokens are chosen, where nothing else was asked for. Penalties are for chat models: in a small vocabulary most tokens
/// have every reason to come again.
pub fn sampler_params() -> SamplerParams {
    SamplerParams { top_p: 0.5, presence: 0.0, frequency: 0.0, ..SamplerParams::default() }
}

/// What the user is told about it, in a line.
pub fn introduction(model: &Model) -> String {
    let millions = model.config().parameters() as f64 / 1e6;
    let plan = model.memory_plan();
    let weights = BinaryBytes(model.swept_bytes(true));
    let place = match plan.residency {
        Residency::Stream { budget_bytes } if plan.slots > 0 => {
            format!("{weights} stream within {}", BinaryBytes(budget_bytes))
        }
        _ => format!("{weights} in memory"),
    };
    format!("demo model ({millions:.1} M parameters, State of the Union addresses): {place}")
}

/// Finds the pack of the demo model, or makes it.
///
/// # Errors
/// There is no place for it.
pub fn pack(codec: Codec, console: Console) -> Result<PathBuf> {
    let dir = directories::cache()?.join("packs");
    let hash = Checksum::of(CHECKPOINT);
    let pack = dir.join(format!("demo-{hash}.{codec}.rwkv"));
    if Pack::open(&pack).is_ok_and(|pack| pack.manifest().source.xxh3 == hash) {
        return Ok(pack);
    }
    let failed = || format!("{}: the demo model cannot be packed there", dir.display());
    fs::create_dir_all(&dir).with_context(failed)?;
    let unpacked = tempfile::Builder::new().prefix(".demo-").tempdir_in(&dir).with_context(failed)?;
    let checkpoint = unpacked.path().join("demo.safetensors");
    fs::write(&checkpoint, CHECKPOINT).with_context(failed)?;
    let recipe = Recipe { tokenizer: Some(TOKENIZER.to_owned()), ..Recipe::new(codec) };
    recipe.pack(&Checkpoint::open(&checkpoint)?, &pack, console)?;
    forget_others(&dir, &pack, codec);
    Ok(pack)
}

/// Removes the packs of what the demo model was before. Where that fails, they are in nobody's way.
fn forget_others(dir: &Path, pack: &Path, codec: Codec) {
    let ending = format!(".{codec}.rwkv");
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("demo-") && name.ends_with(&ending) && entry.path() != pack {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The tokenizer of the demo model.
///
/// # Errors
/// The embedded file is damaged.
pub fn tokenizer() -> Result<Tokenizer> {
    Tokenizer::from_bytes(VOCABULARY).context("the demo model's vocabulary")
}

/// Tokens of a session whose keys and values have room beside the demo model's weights: all together takes less than the
/// model.
const KV_TOKENS: u64 = 1024;

/// Lets the demo model stream within little memory, where nothing else was asked for: twice what it needs at least, so that
/// a group can be read while another one is used, and [`KV_TOKENS`] unless there `is_room` for keys and values already.
///
/// # Errors
/// As [`Model::plan`].
pub fn within_little(pack: &Path, options: ModelOptions, is_room: bool) -> Result<ModelOptions> {
    let plan = Model::plan(pack, &options)?;
    let least = plan.smallest_budget;
    if is_room {
        return Ok(options.residency(Residency::Stream { budget_bytes: 2 * least }));
    }
    let options = options.kv_bytes(KV_TOKENS * plan.sessions as u64 * plan.kv_bytes_per_token);
    let budget_bytes = least + Model::plan(pack, &options)?.smallest_budget;
    Ok(options.residency(Residency::Stream { budget_bytes }))
}
