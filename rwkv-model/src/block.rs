use std::fmt;

/// A block of a model, by its number among those of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Block {
    /// Time mix and channel mix: all blocks of RWKV-7, most of RWKV-X.
    Rwkv(usize),
    /// Attention and channel mix: RWKV-X.
    Attention(usize),
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Block::Rwkv(number) => write!(f, "block {number}"),
            Block::Attention(number) => write!(f, "attention block {number}"),
        }
    }
}
