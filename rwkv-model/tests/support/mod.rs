//! What the tests share: the oracle's files, random models, and the reference implementation.

#![allow(dead_code, reason = "every test file uses its own part")]

pub mod random;
pub mod reference;
pub mod sessions;

use std::path::PathBuf;

/// A file of the oracle, or `None` with a message where the oracle is absent.
pub fn oracle(file: &str) -> Option<PathBuf> {
    let root = std::env::var_os("RWKV_ORACLE")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/oracle"));
    let path = root.join(file);
    if path.exists() {
        return Some(path);
    }
    #[allow(clippy::print_stderr, reason = "a skipped test must be seen")]
    {
        eprintln!("SKIPPED: no oracle file {} (set RWKV_ORACLE)", path.display());
    }
    None
}

/// A JSON file of the oracle.
pub fn oracle_json(file: &str) -> Option<serde_json::Value> {
    let text = std::fs::read_to_string(oracle(file)?).expect("an oracle file is readable");
    Some(serde_json::from_str(&text).expect("an oracle file is JSON"))
}

/// A checkpoint packed with a codec, and the temporary directory that it is in.
pub struct Packed {
    pub dir: tempfile::TempDir,
    pub path: PathBuf,
    pub report: rwkv_model::ConvertReport,
}

/// Packs a checkpoint.
pub fn pack(checkpoint: &std::path::Path, codec: rwkv_kernels::Codec) -> Packed {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("model.rwkv");
    let source = rwkv_pack::Checkpoint::open(checkpoint).expect("the checkpoint opens");
    let report =
        rwkv_model::convert(&source, &path, rwkv_model::ConvertOptions::new(codec)).expect("it converts");
    Packed { dir, path, report }
}

/// A random model, packed with a codec.
pub fn random_pack(
    config: &rwkv_model::Config,
    seed: u64,
    codec: rwkv_kernels::Codec,
) -> (random::Weights, Packed) {
    let weights = random::weights(config, seed);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let packed = pack(&weights.save(dir.path()), codec);
    (weights, packed)
}
