//! A small RWKV-X model in a crate: 4.6 million parameters, trained on the State of the Union addresses.
//!
//! It is here so that an engine has something to run before anything was downloaded. Six RWKV-7 blocks and two attention
//! blocks of width 192, a vocabulary of 2048 tokens of its own. How it was trained, and how well it predicts, is in the
//! README of this crate. The crate has no code and no dependencies.
#![forbid(unsafe_code)]

/// The checkpoint, in safetensors: f16, with the tensor names of official RWKV-X checkpoints.
pub const CHECKPOINT: &[u8] = include_bytes!("../demo.safetensors");

/// The vocabulary, in the format of the World vocabulary: a line for each token, `id literal length`. Id 0, which is not in
/// it, ends a text.
pub const VOCABULARY: &[u8] = include_bytes!("../vocabulary.txt");

/// How an address begins, for whoever has no prompt.
pub const OPENING: &str = "Fellow-Citizens of the Senate and House of Representatives:";
