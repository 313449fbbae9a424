//! Typed views of a pack's groups: resolved and checked once when the model is opened, then made from the leased bytes
//! of a group without copying, decoding or looking up names.

mod resolve;
mod views;

pub(crate) use resolve::{model_description, read_description};
pub(crate) use views::{BlockVectors, ColumnsAt, TilesAt, VectorsAt, vector_at};

use rwkv_cache::GroupId;
use rwkv_kernels::{Codec, Forms};

use crate::config::Config;
use crate::names::LowRank;

/// Where everything is.
#[derive(Debug)]
pub(crate) struct Weights {
    pub config: Config,
    pub vectors: GroupId,
    pub block_vectors: Vec<VectorsAt>,
    pub ln_out: [usize; 2],
    pub embedding: EmbeddingAt,
    pub blocks: Vec<BlockAt>,
    pub head: Vec<HeadPart>,
}

/// The embedding's rows, which are fetched one by one.
#[derive(Debug)]
pub(crate) struct EmbeddingAt {
    /// The group, where it is kept in memory.
    pub group: GroupId,
    /// Where the rows begin, within the group and within the file.
    pub offset_in_group: usize,
    pub offset_in_file: u64,
    pub codec: Codec,
    pub row_bytes: usize,
}

/// A block's matrices and their groups.
#[derive(Debug)]
pub(crate) struct BlockAt {
    pub att: GroupId,
    pub receptance: TilesAt,
    pub key: TilesAt,
    pub value: TilesAt,
    pub output: TilesAt,
    pub low_rank: [Option<LowRankAt>; 4],
    pub ffn_key_group: GroupId,
    pub ffn_key: TilesAt,
    pub ffn_value_group: GroupId,
    pub ffn_value: ColumnsAt,
}

/// A low-rank pair.
#[derive(Debug)]
pub(crate) struct LowRankAt {
    pub down: TilesAt,
    pub up: TilesAt,
}

/// Some rows of the head.
#[derive(Debug)]
pub(crate) struct HeadPart {
    pub group: GroupId,
    pub first_row: usize,
    pub tiles: TilesAt,
}

impl BlockAt {
    pub fn low_rank(&self, which: LowRank) -> Option<&LowRankAt> {
        self.low_rank[which as usize].as_ref()
    }

    /// The forms in which the six inputs of the time mix are needed, in the order r w k v a g.
    pub fn mix_forms(&self) -> [Forms; 6] {
        let down = |which: LowRank| self.low_rank(which).map(|pair| pair.down.forms()).unwrap_or_default();
        [
            self.receptance.forms(),
            down(LowRank::W),
            self.key.forms(),
            self.value.forms().union(down(LowRank::V)),
            down(LowRank::A),
            down(LowRank::G),
        ]
    }
}
