//! From a checkpoint to a pack: which tensor takes which codec and layout, in which group and order.
//!
//! | tensors | codec | layout | group |
//! |---|---|---|---|
//! | norms, mixes, biases | f32 | vectors | `vectors`, always in memory |
//! | embedding, `ln0` applied | 16 bits (f32 for the codec f32) | rows, fetched one by one | `emb` |
//! | receptance, key, value, output; low-rank matrices | chosen; 16 bits (f32 for the codec f32) | row tiles | `blocks.N.att` |
//! | channel mix key | chosen; u8 for the codec u4 | row tiles | `blocks.N.key` |
//! | channel mix value | chosen; u8 for the codec i8 | columns | `blocks.N.value` |
//! | attention blocks of RWKV-X: as the others, without low-rank matrices | | | `attention.J.att`, `.key`, `.value` |
//! | head, in parts | chosen; u8 for the codec u4 | row tiles | `head.0`, `head.1`, ... |
//!
//! 16 bits are f16: exact for bf16 values of ordinary size, and finer where numbers are computed. A tensor with values
//! beyond f16's largest keeps its source's type.

mod layout;
mod pattern;
mod pieces;
mod sizes;
mod source;
mod write;

pub use sizes::manifest_of;
pub use source::WeightSource;

use std::ops::ControlFlow;
use std::path::Path;

use rwkv_kernels::Codec;
use rwkv_pack::{PackSpec, Writer};

use crate::config::Config;
use crate::error::{ErrorKind, ModelError, Result, bail};
use crate::weights::model_description;
use layout::{Planned, plan_groups};
use pattern::Pattern;

/// How a checkpoint becomes a pack.
pub struct ConvertOptions<'a> {
    codec: Codec,
    overrides: Vec<(Pattern, Codec)>,
    tokenizer: Option<String>,
    threads: usize,
    replace: bool,
    progress: Option<&'a mut ProgressFn<'a>>,
}

/// Called while a conversion goes on; `Break` ends it.
pub type ProgressFn<'a> = dyn FnMut(ConvertProgress<'_>) -> ControlFlow<()> + 'a;

/// How far a conversion is. The source is gone over twice: once to hash it, once to convert it.
#[derive(Debug, Clone, Copy)]
pub struct ConvertProgress<'a> {
    /// The tensor being written; empty while the source is hashed.
    pub tensor: &'a str,
    /// Bytes of the source that are done.
    pub done_bytes: u64,
    /// What `done_bytes` ends at.
    pub total_bytes: u64,
}

/// What a conversion has written.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConvertReport {
    /// The model's sizes.
    pub config: Config,
    /// Every tensor of the pack, in order.
    pub tensors: Vec<TensorReport>,
    /// Where a tensor did not get the codec that was asked for, and why; one line each.
    pub notes: Vec<String>,
    /// Length of the pack's file in bytes.
    pub bytes: u64,
}

/// A tensor of a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorReport {
    /// Its name in the pack.
    pub name: String,
    /// Its codec.
    pub codec: Codec,
    /// Its bytes.
    pub bytes: u64,
}

impl Default for ConvertOptions<'_> {
    /// The codec u8.
    fn default() -> Self {
        ConvertOptions::new(Codec::U8)
    }
}

impl<'a> ConvertOptions<'a> {
    /// This codec for the six big matrices of each block and the head; where it is u4, the head and the channel mix's keys take u8. `f32` makes everything f32, which is lossless.
    pub fn new(codec: Codec) -> ConvertOptions<'a> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        ConvertOptions {
            codec,
            overrides: Vec::new(),
            tokenizer: None,
            threads,
            replace: true,
            progress: None,
        }
    }

    /// Another codec for the matrices whose names match a pattern, in which `*` stands for any
    /// characters and `?` for one: `blocks.*.ffn.value.weight`, `head.weight`. The names of RWKV-X are those
    /// of its RWKV-7 blocks without the prefix `rwkv.`, and `moba.J.*`. It holds for the low-rank matrices too, and for
    /// the embedding if the codec is a float; the last pattern that matches decides. The channel mix's value matrix takes
    /// u8 for i8, which has no columns.
    pub fn override_codec(mut self, pattern: &str, codec: Codec) -> Self {
        self.overrides.push((Pattern::new(pattern), codec));
        self
    }

    /// Names the tokenizer that the model was trained with, as a hint in the pack.
    pub fn tokenizer(mut self, name: impl Into<String>) -> Self {
        self.tokenizer = Some(name.into());
        self
    }

    /// How many threads encode; all processors by default. It changes no byte. 0 counts as 1.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Whether the pack takes the place of a file of its name, which it does by default. If not, the conversion fails where there is
    /// one, and where one appears while it goes on.
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// Called as the conversion goes on.
    pub fn progress(mut self, progress: &'a mut ProgressFn<'a>) -> Self {
        self.progress = Some(progress);
        self
    }
}

impl std::fmt::Debug for ConvertOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConvertOptions")
            .field("codec", &self.codec)
            .field("overrides", &self.overrides)
            .field("tokenizer", &self.tokenizer)
            .finish_non_exhaustive()
    }
}

/// Writes a checkpoint as a pack, whole or not at all.
///
/// Memory is bounded by the largest tensor of the source, twice over. The same source and options give the same bytes.
///
/// # Errors
/// The source is of another family, lacks a tensor, has one too many, of a wrong shape, of a type that is no float, or
/// with a value that is infinite, NaN, or too large for its codec: the error names it. A pattern matches nothing.
/// Reading or writing fails. The progress callback breaks.
pub fn convert<S: WeightSource + ?Sized>(
    source: &S,
    out: impl AsRef<Path>,
    options: ConvertOptions<'_>,
) -> Result<ConvertReport> {
    let shapes = source.tensors().iter().map(|tensor| (tensor.name.as_str(), &*tensor.shape));
    let config = Config::from_shapes(shapes)?;
    let source_bytes = source.byte_len();
    let mut progress = Progress { callback: options.progress, done: 0, total: 2 * source_bytes };
    let mut hashed = Ok(());
    let info = source.info(&mut |done, _| {
        if hashed.is_ok() {
            progress.done = done.min(source_bytes);
            hashed = progress.report("");
        }
    })?;
    hashed?;
    progress.done = source_bytes;
    let (groups, notes) = plan_groups(source, &config, options.codec, &options.overrides)?;
    let spec = PackSpec {
        model: model_description(&config),
        tokenizer: options.tokenizer,
        source: info,
        groups: groups.iter().map(layout::PlannedGroup::spec).collect(),
    };
    let out = out.as_ref();
    let failed = |error| {
        ModelError::new(ErrorKind::Io, format!("pack {}: cannot be written", out.display())).caused_by(error)
    };
    if !options.replace && out.symlink_metadata().is_ok() {
        return Err(ModelError::new(ErrorKind::Io, format!("pack {}: exists already", out.display())));
    }
    let mut writer = Writer::create(out, spec).map_err(failed)?;
    let bytes = writer.file_len();
    let tensors: Vec<&Planned> = groups.iter().flat_map(|group| &group.tensors).collect();
    let mut loader = write::Loader::new(source, options.threads);
    for tensor in &tensors {
        loader.write(tensor, &mut progress, &mut |bytes| {
            writer.write(&tensor.spec.name, bytes).map_err(failed)
        })?;
    }
    let written = if options.replace { writer.finish() } else { writer.finish_new() };
    written.map_err(failed)?;
    let report = |tensor: &&Planned| TensorReport {
        name: tensor.spec.name.clone(),
        codec: tensor.codec,
        bytes: tensor.spec.byte_len().unwrap_or(0),
    };
    Ok(ConvertReport { config, tensors: tensors.iter().map(report).collect(), notes, bytes })
}

/// Counts, and asks the callback whether to go on.
struct Progress<'a, 'b> {
    callback: Option<&'b mut ProgressFn<'a>>,
    done: u64,
    total: u64,
}

impl Progress<'_, '_> {
    fn advance(&mut self, tensor: &str, bytes: u64) -> Result<()> {
        self.done = (self.done + bytes).min(self.total);
        self.report(tensor)
    }

    fn report(&mut self, tensor: &str) -> Result<()> {
        let now = ConvertProgress { tensor, done_bytes: self.done, total_bytes: self.total };
        if let Some(callback) = &mut self.callback
            && callback(now).is_break()
        {
            bail!(Cancelled, "the conversion was cancelled");
        }
        Ok(())
    }
}
