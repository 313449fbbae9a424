use std::fmt;
use std::sync::{Mutex, PoisonError};

use rwkv_kernels::{Isa, Team, add_assign, layer_norm};

use super::sweep::Sweep;
use super::tasks::for_rows;
use super::{Errors, Feed, Scratch};
use crate::block::Block;
use crate::counters::StepCounters;
use crate::error::{ErrorKind, ModelError, Result};
use crate::model::Model;
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
    pub stage: Stage,
}

/// A part of a step, by what it gives.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stage {
    Embedding,
    /// Time mix or attention.
    Mix(Block),
    ChannelMix(Block),
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::Embedding => f.write_str("the embedding"),
            Stage::Mix(Block::Rwkv(number)) => write!(f, "the time mix of block {number}"),
            Stage::Mix(Block::Attention(number)) => write!(f, "the attention of attention block {number}"),
            Stage::ChannelMix(block) => write!(f, "the channel mix of {block}"),
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
            stage: Stage::Embedding,
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
        Ok(())
    }

    /// Adds what the last stage gave to the residual stream, and norms it.
    ///
    /// A row that is not finite is an error of its feed, and goes on as zeros.
    pub fn add_and_norm(&mut self, weight: &[f32], bias: &[f32]) {
        let (isa, stage) = (self.isa, self.stage);
        let Scratch { x, normed, delta, .. } = &mut *self.scratch;
        let delta = if matches!(stage, Stage::Embedding) { None } else { Some(&*delta) };
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
        bad_rows.into_iter().for_each(|row| self.not_finite(stage, row));
    }

    fn not_finite(&mut self, stage: Stage, row: usize) {
        let mut spans = self.sweep.spans.iter().rev();
        let span = spans.find(|span| span.first_row <= row).expect("every row is in a span");
        let token = span.first_token + (row - span.first_row);
        let feed = span.feed;
        self.errors[feed].get_or_insert_with(|| {
            let message = format!("{stage} gave a value that is not finite, at token {token} of feed {feed}");
            ModelError::new(ErrorKind::NonFinite, message)
        });
    }
}

/// Whether no value is infinite or NaN.
fn all_finite(x: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    x.iter().fold(0, |bad, value| bad | u32::from(value.to_bits() & EXPONENT == EXPONENT)) == 0
}
