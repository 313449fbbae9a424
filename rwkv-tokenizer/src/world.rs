//! The embedded World vocabulary.

use std::sync::LazyLock;

use crate::Tokenizer;

static WORLD: LazyLock<Tokenizer> = LazyLock::new(|| {
    Tokenizer::from_bytes(include_bytes!("../vocab/rwkv_vocab_v20230424.txt"))
        .expect("the embedded vocabulary follows the format")
});

impl Tokenizer {
    /// The World vocabulary `rwkv_vocab_v20230424`, which all World, RWKV-7 and RWKV-X models use: 65529
    /// tokens of 1 to 128 bytes, all 256 bytes among them.
    ///
    /// The first call reads the embedded table, some milliseconds; every other call returns the same
    /// tokenizer.
    pub fn world() -> &'static Self {
        &WORLD
    }
}
