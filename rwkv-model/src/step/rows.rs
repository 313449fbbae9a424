use std::fmt;
use std::sync::{Mutex, PoisonError};

use rwkv_kernels::{Isa, Team, add_assign, layer_norm};

use super::sweep::Sweep;
use super::tasks::for_rows;
use super::watch::Watch;
use super::{Errors, Feed, Scratch};
use crate::block::Block;
use crate::counters::StepCounters;
use crate::error::{ErrorKind, ModelError, Result};
use crate::model::Model;
use crate::observer::StageKind;
use crate::residency::Residence;
use crate::weights::Weights;

/// What layer norms of embeddings add to the variance.
const LN_EPS: f32 = 1e-5;

/// One sweep of a step.
pub(super) struct Pass<'p, 'f> {
    pub weights: &'p Weights,
    pub residence: &'p Residence,
    pub isa: Isa,
    pub team: &'p mut Team,
    pub scratch: &'p mut Scratch,
    pub logits: &'p mut [f32],
    pub counters: &'p mut StepCounters,
    pub feeds: &'p mut [Feed<'f>],
    pub sweep: &'p Sweep,
    /// By feed.
    errors: &'p mut Errors,
    /// What gave the values that are to be added to the residual stream.
    pub origin: Origin,
    pub watch: Watch<'p>,
}

/// A part of a step, by what it gives.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin {
    Embedding,
    /// Time mix or attention.
    Mix(Block),
    ChannelMix(Block),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Embedding => f.write_str("the embedding"),
            Origin::Mix(Block::Rwkv(number)) => write!(f, "the time mix of block {number}"),
            Origin::Mix(Block::Attention(number)) => write!(f, "the attention of attention block {number}"),
            Origin::ChannelMix(block) => write!(f, "the channel mix of {block}"),
        }
    }
}

impl<'p, 'f> Pass<'p, 'f> {
    pub fn new(
        model: &'p mut Model,
        feeds: &'p mut [Feed<'f>],
        sweep: &'p Sweep,
        errors: &'p mut Errors,
    ) -> Pass<'p, 'f> {
        model.scratch.reset(&model.weights.config, sweep.rows);
        model.residence.expect_sweep(!sweep.wanted.is_empty());
        let watch = Watch::new(model.observer.as_deref_mut(), &model.residence, feeds, sweep);
        Pass {
            weights: &model.weights,
            residence: &model.residence,
            isa: model.isa,
            team: &mut model.team,
            scratch: &mut model.scratch,
            logits: &mut model.logits,
            counters: &mut model.counters,
            feeds,
            sweep,
            errors,
            origin: Origin::Embedding,
            watch,
        }
    }

    /// Fills the residual stream with the embeddings of all rows.
    pub fn embed(&mut self) -> Result<()> {
        let Scratch { x, bytes, .. } = &mut *self.scratch;
        for span in &self.sweep.spans {
            let tokens = &self.feeds[span.feed].tokens[span.first_token..][..span.rows];
            for &token in tokens {
                self.residence.embedding(&self.weights.embedding, token, bytes, x)?;
            }
        }
        self.watch.lap(StageKind::Embed);
        Ok(())
    }

    /// Begins a block, or with `None` what follows the last: adds, norms, and shows the embeddings in between.
    pub fn begin(&mut self, block: Option<Block>, weight: &[f32], bias: &[f32]) {
        self.watch.enter(block);
        self.add_and_norm(weight, bias);
        let after = match self.origin {
            Origin::ChannelMix(block) => Some(block),
            _ => None,
        };
        self.watch.embeddings(after, block, &self.scratch.x);
    }

    /// Adds what the last part of the step gave to the residual stream, and norms it.
    ///
    /// A row that is not finite is an error of its feed, and goes on as zeros.
    pub fn add_and_norm(&mut self, weight: &[f32], bias: &[f32]) {
        let (isa, origin) = (self.isa, self.origin);
        let Scratch { x, normed, delta, .. } = &mut *self.scratch;
        let delta = if matches!(origin, Origin::Embedding) { None } else { Some(&*delta) };
        let width = self.weights.config.width;
        let elements = x.len();
        let bad_rows = Mutex::new(Vec::new());
        let rows = x.chunks_exact_mut(width).zip(normed.chunks_exact_mut(width)).enumerate();
        for_rows(self.team, elements, rows, |(r, (x, normed))| {
            if let Some(delta) = delta {
                for (p, part) in x.chunks_mut(delta.width()).enumerate() {
                    add_assign(isa, part, delta.row_part(*r, p));
                }
            }
            if !all_finite(x) {
                bad_rows.lock().unwrap_or_else(PoisonError::into_inner).push(*r);
                x.fill(0.0);
            }
            layer_norm(isa, x, weight, bias, LN_EPS, normed);
        });
        let mut bad_rows = bad_rows.into_inner().unwrap_or_else(PoisonError::into_inner);
        bad_rows.sort_unstable();
        bad_rows.into_iter().for_each(|row| self.not_finite(origin, row));
    }

    fn not_finite(&mut self, origin: Origin, row: usize) {
        let mut spans = self.sweep.spans.iter().rev();
        let span = spans.find(|span| span.first_row <= row).expect("every row is in a span");
        let token = span.first_token + (row - span.first_row);
        let feed = span.feed;
        self.errors[feed].get_or_insert_with(|| {
            let message =
                format!("{origin} gave a value that is not finite, at token {token} of feed {feed}");
            ModelError::new(ErrorKind::NonFinite, message)
        });
    }
}

/// Whether no value is infinite or NaN.
fn all_finite(x: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    x.iter().fold(0, |bad, value| bad | u32::from(value.to_bits() & EXPONENT == EXPONENT)) == 0
}
