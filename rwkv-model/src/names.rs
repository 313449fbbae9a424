//! The tensor names of the model families: the only module that knows them.

mod family;
mod shapes;

pub use family::Family;
pub(crate) use shapes::{Shapes, check_complete, read_config, squeeze};

use std::borrow::Cow;

use crate::block::Block;
use crate::config::Config;

/// A tensor's place in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    Embedding,
    Ln0Weight,
    Ln0Bias,
    Vector(Block, BlockVector),
    LowRank(usize, LowRank, Side),
    Matrix(Block, Matrix),
    LnOutWeight,
    LnOutBias,
    Head,
}

/// The vectors of a block, each of C values (`r_k` is `[H, N]`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum BlockVector {
    Ln1Weight,
    Ln1Bias,
    Ln2Weight,
    Ln2Bias,
    MixR,
    MixW,
    MixK,
    MixV,
    MixA,
    MixG,
    W0,
    A0,
    V0,
    KK,
    KA,
    RK,
    LnXWeight,
    LnXBias,
    FfnMixK,
}

impl BlockVector {
    pub const ALL: [BlockVector; 19] = [
        BlockVector::Ln1Weight,
        BlockVector::Ln1Bias,
        BlockVector::Ln2Weight,
        BlockVector::Ln2Bias,
        BlockVector::MixR,
        BlockVector::MixW,
        BlockVector::MixK,
        BlockVector::MixV,
        BlockVector::MixA,
        BlockVector::MixG,
        BlockVector::W0,
        BlockVector::A0,
        BlockVector::V0,
        BlockVector::KK,
        BlockVector::KA,
        BlockVector::RK,
        BlockVector::LnXWeight,
        BlockVector::LnXBias,
        BlockVector::FfnMixK,
    ];

    fn suffix(self) -> &'static str {
        match self {
            BlockVector::Ln1Weight => "ln1.weight",
            BlockVector::Ln1Bias => "ln1.bias",
            BlockVector::Ln2Weight => "ln2.weight",
            BlockVector::Ln2Bias => "ln2.bias",
            BlockVector::MixR => "att.x_r",
            BlockVector::MixW => "att.x_w",
            BlockVector::MixK => "att.x_k",
            BlockVector::MixV => "att.x_v",
            BlockVector::MixA => "att.x_a",
            BlockVector::MixG => "att.x_g",
            BlockVector::W0 => "att.w0",
            BlockVector::A0 => "att.a0",
            BlockVector::V0 => "att.v0",
            BlockVector::KK => "att.k_k",
            BlockVector::KA => "att.k_a",
            BlockVector::RK => "att.r_k",
            BlockVector::LnXWeight => "att.ln_x.weight",
            BlockVector::LnXBias => "att.ln_x.bias",
            BlockVector::FfnMixK => "ffn.x_k",
        }
    }
}

/// The four pairs of low-rank matrices: decay, in-context learning rate, value residual, gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LowRank {
    W,
    A,
    V,
    G,
}

impl LowRank {
    pub const ALL: [LowRank; 4] = [LowRank::W, LowRank::A, LowRank::V, LowRank::G];

    pub fn rank(self, config: &Config) -> usize {
        match self {
            LowRank::W => config.rank_w,
            LowRank::A => config.rank_a,
            LowRank::V => config.rank_v,
            LowRank::G => config.rank_g,
        }
    }

    fn letter(self) -> char {
        match self {
            LowRank::W => 'w',
            LowRank::A => 'a',
            LowRank::V => 'v',
            LowRank::G => 'g',
        }
    }

    /// Whether a block has this pair: the first block has no value residual.
    pub fn in_block(self, block: usize) -> bool {
        block > 0 || self != LowRank::V
    }
}

/// The first matrix of a low-rank pair (C to rank) or the second (rank to C).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    Down,
    Up,
}

/// The six big matrices of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Matrix {
    Receptance,
    Key,
    Value,
    Output,
    FfnKey,
    FfnValue,
}

impl Matrix {
    pub const ALL: [Matrix; 6] =
        [Matrix::Receptance, Matrix::Key, Matrix::Value, Matrix::Output, Matrix::FfnKey, Matrix::FfnValue];

    fn suffix(self) -> &'static str {
        match self {
            Matrix::Receptance => "att.receptance.weight",
            Matrix::Key => "att.key.weight",
            Matrix::Value => "att.value.weight",
            Matrix::Output => "att.output.weight",
            Matrix::FfnKey => "ffn.key.weight",
            Matrix::FfnValue => "ffn.value.weight",
        }
    }

    /// Outputs and inputs.
    pub fn dims(self, config: &Config) -> [usize; 2] {
        match self {
            Matrix::FfnKey => [config.ffn, config.width],
            Matrix::FfnValue => [config.width, config.ffn],
            _ => [config.width, config.width],
        }
    }
}

/// What the names of a block's tensors begin with.
fn prefix(block: Block) -> String {
    match block {
        Block::Rwkv(number) => format!("blocks.{number}"),
        Block::Attention(number) => format!("moba.{number}"),
    }
}

/// The one name of a tensor of RWKV-X, whose RWKV-7 part may carry a prefix, and whose attention blocks are numbered after
/// `moba.` or `moba.blocks.`. The tensors that RWKV-7 has too have its names then.
pub(crate) fn canonical(name: &str) -> Cow<'_, str> {
    match (name.strip_prefix("rwkv."), name.strip_prefix("moba.blocks.")) {
        (Some(name), _) => Cow::Borrowed(name),
        (_, Some(rest)) => Cow::Owned(format!("moba.{rest}")),
        _ => Cow::Borrowed(name),
    }
}

impl Role {
    /// The official name, without the prefix `rwkv.` that RWKV-X has.
    pub fn name(self) -> String {
        match self {
            Role::Embedding => "emb.weight".into(),
            Role::Ln0Weight => "blocks.0.ln0.weight".into(),
            Role::Ln0Bias => "blocks.0.ln0.bias".into(),
            Role::Vector(block, vector) => format!("{}.{}", prefix(block), vector.suffix()),
            Role::LowRank(block, which, side) => {
                format!("blocks.{block}.att.{}{}", which.letter(), if side == Side::Down { 1 } else { 2 })
            }
            Role::Matrix(block, matrix) => format!("{}.{}", prefix(block), matrix.suffix()),
            Role::LnOutWeight => "ln_out.weight".into(),
            Role::LnOutBias => "ln_out.bias".into(),
            Role::Head => "head.weight".into(),
        }
    }

    /// The shape in a checkpoint, without dimensions of 1 that only pad it. Low-rank matrices are `[in, out]`
    /// there, all others `[out, in]`.
    fn dims(self, config: &Config) -> Vec<usize> {
        match self {
            Role::Embedding | Role::Head => vec![config.vocab, config.width],
            Role::Vector(_, BlockVector::RK) => vec![config.heads, config.head_size],
            Role::LowRank(_, which, Side::Down) => vec![config.width, which.rank(config)],
            Role::LowRank(_, which, Side::Up) => vec![which.rank(config), config.width],
            Role::Matrix(_, matrix) => matrix.dims(config).to_vec(),
            _ => vec![config.width],
        }
    }
}

/// A tensor that a checkpoint of this configuration must have.
pub(crate) struct Expected {
    pub role: Role,
    pub dims: Vec<usize>,
}

/// Every tensor of a checkpoint, in the order in which a step needs them.
pub(crate) fn expected(config: &Config) -> Vec<Expected> {
    let mut roles = vec![Role::Embedding, Role::Ln0Weight, Role::Ln0Bias];
    let idle = (config.active_layers()..config.layers).map(Block::Rwkv);
    for block in config.blocks().chain(idle) {
        roles.extend(block_vectors(block).map(|vector| Role::Vector(block, vector)));
        for (number, which) in low_rank_pairs(block) {
            roles.extend([Role::LowRank(number, which, Side::Down), Role::LowRank(number, which, Side::Up)]);
        }
        roles.extend(Matrix::ALL.map(|matrix| Role::Matrix(block, matrix)));
    }
    roles.extend([Role::LnOutWeight, Role::LnOutBias, Role::Head]);
    roles.into_iter().map(|role| Expected { role, dims: role.dims(config) }).collect()
}

/// The vectors that a block has: the first one has no value residual, those with attention have no time mix.
pub(crate) fn block_vectors(block: Block) -> impl Iterator<Item = BlockVector> {
    BlockVector::ALL.into_iter().filter(move |vector| match block {
        Block::Rwkv(number) => number > 0 || *vector != BlockVector::V0,
        Block::Attention(_) => !vector.suffix().starts_with("att."),
    })
}

/// The low-rank pairs that a block has, with its number.
pub(crate) fn low_rank_pairs(block: Block) -> impl Iterator<Item = (usize, LowRank)> {
    let number = match block {
        Block::Rwkv(number) => Some(number),
        Block::Attention(_) => None,
    };
    number.into_iter().flat_map(|number| {
        LowRank::ALL.into_iter().filter(move |which| which.in_block(number)).map(move |which| (number, which))
    })
}

/// Tensors that some checkpoints carry and no engine uses: the first block's value residual.
pub(crate) fn is_ignored(name: &str) -> bool {
    matches!(name, "blocks.0.att.v0" | "blocks.0.att.v1" | "blocks.0.att.v2")
}

/// Names inside a pack that differ from the checkpoint's.
pub(crate) mod packed {
    use crate::block::Block;

    fn prefix(block: Block) -> String {
        match block {
            Block::Rwkv(number) => format!("blocks.{number}"),
            Block::Attention(number) => format!("attention.{number}"),
        }
    }

    /// The group of all vectors.
    pub const VECTORS: &str = "vectors";
    /// The group of the embedding, and the embedding's tensor, with `ln0` already applied.
    pub const EMBEDDING: &str = "emb";
    pub const EMBEDDING_TENSOR: &str = "emb.weight";

    /// The group of a block's time mix or attention: four matrices, and the low-rank ones.
    pub fn att(block: Block) -> String {
        format!("{}.att", prefix(block))
    }

    /// The group of a block's channel mix key.
    pub fn key(block: Block) -> String {
        format!("{}.key", prefix(block))
    }

    /// The group of a block's channel mix value.
    pub fn value(block: Block) -> String {
        format!("{}.value", prefix(block))
    }

    /// The group of one part of the head's rows.
    pub fn head(part: usize) -> String {
        format!("head.{part}")
    }

    /// The tensor of one part of the head's rows.
    pub fn head_tensor(part: usize) -> String {
        format!("head.{part}.weight")
    }
}
