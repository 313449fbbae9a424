use std::ops::Range;
use std::time::Instant;

use rwkv_cache::{Found, GroupId};

use crate::block::Block;

/// Someone who wants to know what happens in a [step](crate::Model::step), for a trace, a live display or research.
///
/// Without one a step does not even read the clock for it, and with one every result keeps its bits. It is
/// called on the thread that drives the model, so a slow observer slows the model; its own time is in no stage. What the
/// reader threads do meanwhile is told to a [cache observer](crate::ModelOptions::cache_observer). Times are of one clock in
/// both.
pub trait Observer: Send {
    /// What it wants to be told, asked at the beginning of every sweep. What nobody wants is not computed.
    fn interest(&self) -> Interest {
        Interest::STAGES
    }

    /// A sweep over the weights begins.
    fn sweep_begin(&mut self, _at: Instant, _sweep: &SweepRows<'_>) {}

    /// It ended well. After one that failed the next thing told is another beginning.
    fn sweep_end(&mut self, _at: Instant) {}

    /// A stage is over. Stages follow each other without overlapping.
    fn stage(&mut self, _stage: &Stage<'_>) {}

    /// The residual stream before or after a block.
    fn embeddings(&mut self, _embeddings: &Embeddings<'_>) {}

    /// What a token attends to in an attention block.
    fn attention(&mut self, _weights: &AttentionWeights<'_>) {}
}

/// What an [`Observer`] wants to be told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Interest {
    /// Sweeps and stages, with their times.
    pub stages: bool,
    /// Embeddings before and after each block.
    pub embeddings: bool,
    /// Weights of the attention blocks. They are computed a second time for it.
    pub attention: bool,
}

impl Interest {
    /// Nothing.
    pub const NONE: Interest = Interest { stages: false, embeddings: false, attention: false };
    /// Times alone.
    pub const STAGES: Interest = Interest { stages: true, ..Interest::NONE };
    /// Everything.
    pub const ALL: Interest = Interest { stages: true, embeddings: true, attention: true };
}

/// The rows of a sweep: its tokens.
#[derive(Debug, Clone, Copy)]
pub struct SweepRows<'a> {
    /// How many there are.
    pub rows: usize,
    /// How many of them want logits. If none does, the head is not read.
    pub logit_rows: usize,
    /// Whose they are, ascending.
    pub feeds: &'a [FeedRows],
}

/// The rows of a sweep that are tokens of one feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedRows {
    /// The feed, by its place in the list of the step.
    pub feed: usize,
    /// Its rows in the sweep.
    pub rows: Range<usize>,
    /// How many tokens its state had taken in before the first of them.
    pub first_position: u64,
}

/// A stage of a sweep, once it is over.
#[derive(Debug, Clone, Copy)]
pub struct Stage<'a> {
    /// What was done.
    pub kind: StageKind,
    /// In which block; none before the first and after the last.
    pub block: Option<Block>,
    /// The group of weights that is leased in it, or looked for.
    pub group: Option<StageGroup<'a>>,
    /// When it began.
    pub begin: Instant,
    /// When it ended.
    pub end: Instant,
}

/// A group of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageGroup<'a> {
    /// Its place in the pack.
    pub id: GroupId,
    /// Its name, such as `blocks.3.att`.
    pub name: &'a str,
    /// Its size.
    pub bytes: u64,
}

/// What is done in a [`Stage`].
///
/// In a block they come in this order, where find to release stands once for each group of weights:
///
/// ```text
/// norm   find wait bind  time mix or attention        save  release
/// norm   find wait bind  channel mix (key matrix)           release
///        find wait bind  channel mix (value matrix)   save  release
/// ```
///
/// An attention block saves new keys and values before it attends to them, in between two stages of attention. Before the
/// first block comes embed; after the last, norm and, for each part, find to release around the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StageKind {
    /// The tokens' embeddings are fetched.
    Embed,
    /// The last result is added to the residual stream, which is normed; before a time mix also the token shift.
    Norm,
    /// The cache looks for a group, and finds it like this.
    Find(Found),
    /// The group is read, or the end of its read waited for.
    Wait,
    /// The group's bytes become matrices: no copy is made, nothing is decoded.
    Bind,
    /// The products and the recurrence of a time mix.
    TimeMix,
    /// The products of an attention block, and attention.
    Attention,
    /// The products of a channel mix.
    ChannelMix,
    /// The product that gives logits.
    Head,
    /// What the sessions' states must remember of the block is stored in them. The matrices of a time mix are
    /// updated in place, within it.
    SaveState,
    /// The lease ends: where the group streams, its memory is free for another.
    Release,
}

impl StageKind {
    /// Its name, such as `time mix`.
    pub fn name(self) -> &'static str {
        match self {
            StageKind::Embed => "embed",
            StageKind::Norm => "norm",
            StageKind::Find(_) => "find",
            StageKind::Wait => "wait",
            StageKind::Bind => "bind",
            StageKind::TimeMix => "time mix",
            StageKind::Attention => "attention",
            StageKind::ChannelMix => "channel mix",
            StageKind::Head => "head",
            StageKind::SaveState => "save state",
            StageKind::Release => "release",
        }
    }
}

/// The residual stream beside a block: for every row of the sweep, C values.
#[derive(Debug, Clone, Copy)]
pub struct Embeddings<'a> {
    /// The block.
    pub block: Block,
    /// Before or after it. What comes out of a block goes into the next one, and is told for both.
    pub side: Side,
    /// `[rows, C]`, in the order of the sweep. A row is zero from where its feed failed.
    pub rows: &'a [f32],
    /// Whose rows they are.
    pub feeds: &'a [FeedRows],
}

/// A side of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// What goes into it.
    Input,
    /// What comes out of it.
    Output,
}

/// How much a token attends to each row that it sees.
#[derive(Debug, Clone, Copy)]
pub struct AttentionWeights<'a> {
    /// The attention block, by its number among these.
    pub block: usize,
    /// The feed, by its place in the list of the step.
    pub feed: usize,
    /// How many tokens the state had taken in before this one.
    pub position: u64,
    /// The rows that are seen, as ranges that ascend: all, the window, or the chosen chunks. Without compression a row is the
    /// position of its token; after it, it is a place in the cache, where each head has kept rows of its own.
    pub visible: &'a [Range<usize>],
    /// For each head the weights of these rows, in their order; they sum to 1.
    pub heads: &'a [Vec<f32>],
}
