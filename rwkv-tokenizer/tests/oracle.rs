//! The reference vectors of the oracle folder, made by the official Python tokenizer.
//!
//! The folder is `$RWKV_ORACLE`, or `../shared/oracle` beside the workspace; without it nothing is tested
//! here.

#![cfg(feature = "world")]

use std::path::{Path, PathBuf};

use rwkv_tokenizer::Tokenizer;
use serde_json::Value;

fn vectors() -> Option<Value> {
    let folder = std::env::var_os("RWKV_ORACLE")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/oracle"), PathBuf::from);
    let path = folder.join("tokenizer/vectors.json");
    let Ok(text) = std::fs::read(&path) else {
        #[allow(clippy::print_stderr, reason = "a skipped test says so")]
        {
            eprintln!("SKIPPED: {} is not there, set RWKV_ORACLE", path.display());
        }
        return None;
    };
    Some(serde_json::from_slice(&text).expect("the vectors are JSON"))
}

fn ids_of(case: &Value) -> Vec<u32> {
    serde_json::from_value(case["ids"].clone()).expect("ids")
}

fn bytes_of(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().expect("hex");
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex")).collect()
}

#[test]
fn all_vectors_agree() {
    let Some(vectors) = vectors() else { return };
    let world = Tokenizer::world();
    let cases = vectors["vectors"].as_array().expect("vectors");
    assert_eq!(cases.len(), 295);
    let mut wrong = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let (bytes, ids) = (bytes_of(&case["hex"]), ids_of(case));
        if world.encode(&bytes) != ids || world.decode(&ids).as_ref() != Ok(&bytes) {
            wrong.push((number, case["group"].clone()));
        }
        if let Some(text) = case["text"].as_str() {
            assert_eq!(world.decode_lossy(&ids), text, "vector {number}");
        }
    }
    assert!(wrong.is_empty(), "wrong vectors: {wrong:?}");
}

/// The official rule holds all pending bytes back until together they are valid UTF-8. While the text can
/// still become valid, these streams come out the same way from ours. A byte that never can, it waits on
/// for ever, and everything after it is lost: ours replaces that byte and goes on. It stalls in the same
/// way on id 0 and on id 19232, whose text is U+FFFD; `streaming.rs` has those.
#[test]
fn streams_agree_where_the_official_rule_does_not_stall() {
    let Some(vectors) = vectors() else { return };
    let cases = vectors["stream"].as_array().expect("streams");
    assert_eq!(cases.len(), 6);
    let mut stalled = 0;
    for (number, case) in cases.iter().enumerate() {
        let ids = ids_of(case);
        let mut decoder = Tokenizer::world().decoder();
        let released: Vec<String> = ids.iter().map(|&id| decoder.push(id).to_owned()).collect();
        let official: Vec<String> = serde_json::from_value(case["released"].clone()).expect("released");
        let pending = bytes_of(&case["pending_hex"]);
        let can_go_on = str::from_utf8(&pending).err().is_none_or(|error| error.error_len().is_none());
        if can_go_on {
            assert_eq!(released, official, "stream {number}");
            assert_eq!(decoder.pending(), pending, "stream {number}");
        } else {
            stalled += 1;
            assert_eq!(released, ["\u{fffd}", "a", "b"], "stream {number}: {ids:?}");
            assert_eq!(decoder.pending(), b"", "stream {number}");
        }
    }
    assert_eq!(stalled, 1, "one of the streams has a stray byte");
}
