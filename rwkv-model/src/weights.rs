//! Typed views of a pack's groups: resolved and checked once when the model is opened, then made from the leased bytes
//! of a group without copying, decoding or looking up names.

mod resolve;
mod views;

pub(crate) use resolve::{model_description, read_description};
pub(crate) use views::{BlockVectors, ColumnsAt, Projections, TilesAt, VectorsAt, vector_at};

use rwkv_cache::GroupId;
use rwkv_kernels::{Codec, Forms};

use crate::block::Block;
use crate::config::Config;
use crate::names::LowRank;

/// Where everything is.
#[derive(Debug)]
pub(crate) struct Weights {
    pub config: Config,
    pub vectors: GroupId,
    pub ln_out: [usize; 2],
    pub embedding: EmbeddingAt,
    /// Those with a time mix that are run, and those with attention.
    pub blocks: Vec<BlockAt>,
    pub attention: Vec<AttentionAt>,
    pub head: Vec<HeadPart>,
}

/// The embedding's rows, which are fetched one by one.
#[derive(Debug)]
pub(crate) struct EmbeddingAt {
    pub group: GroupId,
    /// Where the rows begin.
    pub offset_in_group: usize,
    pub codec: Codec,
    pub row_bytes: usize,
}

/// The tensors of a block with a time mix.
#[derive(Debug)]
pub(crate) struct BlockAt {
    pub vectors: VectorsAt,
    pub projections: ProjectionsAt,
    pub low_rank: [Option<LowRankAt>; 4],
    pub channel_mix: ChannelMixAt,
}

/// The tensors of a block with attention.
#[derive(Debug)]
pub(crate) struct AttentionAt {
    pub vectors: VectorsAt,
    pub projections: ProjectionsAt,
    pub channel_mix: ChannelMixAt,
}

/// The four matrices of a time mix or of attention, and their group.
#[derive(Debug)]
pub(crate) struct ProjectionsAt {
    pub group: GroupId,
    pub receptance: TilesAt,
    pub key: TilesAt,
    pub value: TilesAt,
    pub output: TilesAt,
}

/// The matrices of a channel mix and their groups.
#[derive(Debug)]
pub(crate) struct ChannelMixAt {
    pub key_group: GroupId,
    pub key: TilesAt,
    pub value_group: GroupId,
    pub value: ColumnsAt,
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

impl Weights {
    pub fn vectors_of(&self, block: Block) -> &VectorsAt {
        match block {
            Block::Rwkv(number) => &self.blocks[number].vectors,
            Block::Attention(number) => &self.attention[number].vectors,
        }
    }

    pub fn projections_of(&self, block: Block) -> &ProjectionsAt {
        match block {
            Block::Rwkv(number) => &self.blocks[number].projections,
            Block::Attention(number) => &self.attention[number].projections,
        }
    }

    pub fn channel_mix_of(&self, block: Block) -> &ChannelMixAt {
        match block {
            Block::Rwkv(number) => &self.blocks[number].channel_mix,
            Block::Attention(number) => &self.attention[number].channel_mix,
        }
    }

    /// The groups of all blocks, in the order in which a sweep needs them.
    pub fn block_groups(&self) -> Vec<GroupId> {
        self.config
            .blocks()
            .flat_map(|block| {
                let channel_mix = self.channel_mix_of(block);
                [self.projections_of(block).group, channel_mix.key_group, channel_mix.value_group]
            })
            .collect()
    }
}

impl ProjectionsAt {
    pub fn view<'a>(&self, group: &'a [u8]) -> Projections<'a> {
        Projections {
            receptance: self.receptance.view(group),
            key: self.key.view(group),
            value: self.value.view(group),
            output: self.output.view(group),
        }
    }
}

impl BlockAt {
    pub fn low_rank(&self, which: LowRank) -> Option<&LowRankAt> {
        self.low_rank[which as usize].as_ref()
    }

    /// The forms in which the six inputs of the time mix are needed, in the order r w k v a g.
    pub fn mix_forms(&self) -> [Forms; 6] {
        let down = |which: LowRank| self.low_rank(which).map(|pair| pair.down.forms()).unwrap_or_default();
        [
            self.projections.receptance.forms(),
            down(LowRank::W),
            self.projections.key.forms(),
            self.projections.value.forms().union(down(LowRank::V)),
            down(LowRank::A),
            down(LowRank::G),
        ]
    }
}
