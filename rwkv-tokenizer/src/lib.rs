#![cfg_attr(feature = "world", doc = include_str!("../README.md"))]
#![cfg_attr(
    not(feature = "world"),
    doc = "RWKV tokenizer: greedy longest match over a vocabulary of byte strings."
)]
#![forbid(unsafe_code)]

mod decoder;
mod encoder;
mod error;
mod literal;
mod tokenizer;
mod trie;
mod vocabulary;
#[cfg(feature = "world")]
mod world;

pub use decoder::Decoder;
pub use encoder::StreamEncoder;
pub use error::{DecodeError, EncodeError, VocabularyError, VocabularyErrorKind};
pub use tokenizer::{END_OF_TEXT, Tokenizer};
pub use vocabulary::MAX_TOKEN_ID;
