//! The model argument: a pack as it is, or a checkpoint, which is packed once and then found again. `demo` is the checkpoint that
//! is embedded in the program.
//!
//! A checkpoint's pack lies beside it (`model.pth` gives `model.u8.rwkv`), or in the user's cache directory where the folder cannot be
//! written to. It has the checkpoint's time of modification, and knows the checkpoint's name, length and hash. If length and time
//! agree it is used; if only the length does, the hash decides; else the checkpoint has changed and is packed again.
//! A file of that name which is something else is left alone.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use indicatif::HumanBytes;
use rwkv_model::kernels::Codec;
use rwkv_model::pack::{Checkpoint, Checksum, FileFormat, Manifest, Pack};
use rwkv_model::{Config, ConvertOptions, ConvertProgress, ConvertReport, WeightSource, convert};

use crate::console::Console;
use crate::demo;
use crate::directories;
use crate::exit::Stop;
use crate::interrupt::Interruptible;
use crate::progress::Progress;

/// The codec of checkpoints that nobody asked another one for.
pub const DEFAULT_CODEC: Codec = Codec::U8;
/// The hint that packs of World models carry.
pub const WORLD: &str = "rwkv_vocab_v20230424";
/// The tokens of models with the World vocabulary.
const WORLD_VOCAB: usize = 65536;

/// The name under which the demo model goes. A file of that name is `./demo`.
pub const DEMO: &str = "demo";

/// Whether a model argument means the demo model.
pub fn is_demo(path: &Path) -> bool {
    path == Path::new(DEMO)
}

/// Finds the pack of a model, or makes it.
///
/// # Errors
/// The file is no model. A pack has another codec than asked for. A checkpoint cannot be packed.
pub fn resolve(path: &Path, codec: Option<Codec>, console: Console) -> Result<PathBuf> {
    if is_demo(path) {
        return demo::pack(codec.unwrap_or(DEFAULT_CODEC), console);
    }
    match FileFormat::detect(path)? {
        FileFormat::Pack => {
            if let Some(asked) = codec {
                check_codec(path, asked)?;
            }
            Ok(path.to_owned())
        }
        _ => pack_of(path, codec.unwrap_or(DEFAULT_CODEC), console),
    }
}

fn check_codec(path: &Path, asked: Codec) -> Result<()> {
    let pack = Pack::open(path)?;
    match main_codec(pack.manifest()) {
        Some(found) if found != asked.name() => Err(Stop::usage(format!(
            "{}: is a pack with codec {found}, and --codec asks for {asked}; leave --codec out, or give the checkpoint {:?}, from which it was made",
            path.display(),
            pack.manifest().source.file_name
        ))),
        _ => Ok(()),
    }
}

/// The codec of most weights of a pack's blocks. A head may be larger, and has a codec of its own.
pub fn main_codec(manifest: &Manifest) -> Option<&str> {
    let mut weights: Vec<(&str, u64)> = Vec::new();
    let blocks = manifest.groups.iter().filter(|group| group.swept && !group.name.starts_with("head."));
    for tensor in blocks.flat_map(|group| &group.tensors) {
        let count = tensor.shape.iter().fold(1u64, |product, &dim| product.saturating_mul(dim as u64));
        match weights.iter_mut().find(|(codec, _)| *codec == tensor.codec) {
            Some((_, sum)) => *sum = sum.saturating_add(count),
            None => weights.push((&tensor.codec, count)),
        }
    }
    weights.into_iter().max_by_key(|&(_, sum)| sum).map(|(codec, _)| codec)
}

/// A checkpoint whose pack is wanted.
struct Wanted<'a> {
    path: &'a Path,
    metadata: Metadata,
    codec: Codec,
    console: Console,
}

/// What is where a pack could be.
enum Found {
    Nothing,
    ThePack,
    /// A pack of what the checkpoint was before.
    OldPack,
    /// Somebody else's.
    Other,
}

fn pack_of(path: &Path, codec: Codec, console: Console) -> Result<PathBuf> {
    let metadata = fs::metadata(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    let wanted = Wanted { path, metadata, codec, console };
    let beside = default_name(path, codec);
    let beside_found = wanted.look(&beside)?;
    if matches!(beside_found, Found::ThePack) {
        return Ok(beside);
    }
    let cached = wanted.cached_name()?;
    if matches!(wanted.look(&cached)?, Found::ThePack) {
        return Ok(cached);
    }
    let out = match beside_found {
        Found::Nothing | Found::OldPack if is_writable(&beside) => beside,
        _ => {
            let dir = cached.parent().unwrap_or(Path::new("."));
            fs::create_dir_all(dir).with_context(|| format!("{}: cannot be created", dir.display()))?;
            cached
        }
    };
    let checkpoint = Checkpoint::open(path)?;
    Recipe::new(codec).pack(&checkpoint, &out, console)?;
    wanted.mark(&out);
    Ok(out)
}

impl Wanted<'_> {
    fn look(&self, at: &Path) -> Result<Found> {
        if !at.exists() {
            return Ok(Found::Nothing);
        }
        let Ok(pack) = Pack::open(at) else { return Ok(Found::Other) };
        let source = &pack.manifest().source;
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        if main_codec(pack.manifest()) != Some(self.codec.name()) || source.file_name != name {
            return Ok(Found::Other);
        }
        if source.len != self.metadata.len() {
            return Ok(Found::OldPack);
        }
        let time = |metadata: &Metadata| metadata.modified().ok();
        let packed = fs::metadata(at).ok();
        if packed.as_ref().and_then(time).is_some_and(|found| Some(found) == time(&self.metadata)) {
            return Ok(Found::ThePack);
        }
        let progress = Progress::bytes(self.console, "checking the checkpoint", self.metadata.len());
        let info = Checkpoint::open(self.path)?.source_info(|done, _| progress.set(done))?;
        if info.xxh3 != source.xxh3 {
            return Ok(Found::OldPack);
        }
        self.mark(at);
        Ok(Found::ThePack)
    }

    /// Gives a pack the checkpoint's time. Where that fails, the hash is compared each time.
    fn mark(&self, pack: &Path) {
        if let (Ok(time), Ok(file)) = (self.metadata.modified(), File::options().write(true).open(pack)) {
            let _ = file.set_modified(time);
        }
    }

    fn cached_name(&self) -> Result<PathBuf> {
        let real = fs::canonicalize(self.path).unwrap_or_else(|_| self.path.to_owned());
        let hash = Checksum::of(real.as_os_str().as_encoded_bytes());
        let mut name = stem(self.path);
        name.push(format!("-{hash}.{}.rwkv", self.codec));
        Ok(directories::cache()?.join("packs").join(name))
    }
}

/// What the pack of a model is called, without its extension, wherever it is.
///
/// # Errors
/// The file is no model.
pub fn pack_name(path: &Path, codec: Option<Codec>) -> Result<String> {
    let pack = match FileFormat::detect(path)? {
        FileFormat::Pack => path.to_owned(),
        _ => default_name(path, codec.unwrap_or(DEFAULT_CODEC)),
    };
    Ok(stem(&pack).to_string_lossy().into_owned())
}

/// The name of a checkpoint's pack: beside it, with the codec in its extension.
pub fn default_name(checkpoint: &Path, codec: Codec) -> PathBuf {
    let mut name = stem(checkpoint);
    name.push(format!(".{codec}.rwkv"));
    checkpoint.with_file_name(name)
}

fn stem(path: &Path) -> OsString {
    path.file_stem().unwrap_or_default().to_owned()
}

/// Whether a file can be made in the folder of `path`. A folder that says that it is read-only is believed.
fn is_writable(path: &Path) -> bool {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let read_only = fs::metadata(dir).is_ok_and(|metadata| metadata.permissions().readonly());
    !read_only && tempfile::tempfile_in(dir).is_ok()
}

/// How a pack is made.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// The codec of the large matrices.
    pub codec: Codec,
    /// Patterns of tensor names, and their codecs.
    pub overrides: Vec<(String, Codec)>,
    /// The hint at the tokenizer; that of World models is known.
    pub tokenizer: Option<String>,
    /// Whether a file of the pack's name is replaced.
    pub replace: bool,
}

impl Recipe {
    /// One codec, and nothing special.
    pub fn new(codec: Codec) -> Recipe {
        Recipe { codec, overrides: Vec::new(), tokenizer: None, replace: true }
    }

    /// Packs weights with a bar, and reports it.
    ///
    /// # Errors
    /// As [`convert`]; Ctrl-C ends it and leaves nothing behind.
    pub fn pack<S: WeightSource>(&self, source: &S, out: &Path, console: Console) -> Result<ConvertReport> {
        let begin = Instant::now();
        console.note(format_args!("packing as {} into {}", self.codec, out.display()));
        let section = Interruptible::begin();
        let progress = Progress::bytes(console, "packing", 0);
        let mut on_progress = |now: ConvertProgress<'_>| {
            progress.length(now.total_bytes);
            progress.set(now.done_bytes);
            progress.message(if now.tensor.is_empty() {
                "hashing".to_owned()
            } else {
                now.tensor.to_owned()
            });
            if section.requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let mut options = ConvertOptions::new(self.codec).replace(self.replace).progress(&mut on_progress);
        for (pattern, codec) in &self.overrides {
            options = options.override_codec(pattern, *codec);
        }
        if let Some(tokenizer) = self.tokenizer.as_deref().or_else(|| known_tokenizer(source)) {
            options = options.tokenizer(tokenizer);
        }
        let report = convert(source, out, options)?;
        drop(progress);
        for note in &report.notes {
            console.note(format_args!("note: {note}"));
        }
        let seconds = begin.elapsed().as_secs_f64();
        console.note(format_args!("packed {} in {seconds:.1} s", HumanBytes(report.bytes)));
        Ok(report)
    }
}

/// The tokenizer of models that have as many tokens as no others.
fn known_tokenizer<S: WeightSource>(source: &S) -> Option<&'static str> {
    let shapes = source.tensors().iter().map(|tensor| (tensor.name.as_str(), &*tensor.shape));
    let config = Config::from_shapes(shapes).ok()?;
    (config.vocab == WORLD_VOCAB).then_some(WORLD)
}
