use std::ops::Range;

use rwkv_kernels::{
    Columns, RowTiles, SparseRows, TILE_ROWS, matmul, matmul_columns, outputs_per_task, relu_squared,
};

use super::rows::{Origin, Pass};
use super::scratch::Scratch;
use super::tasks::{fill_mix, for_rows, runs};
use crate::block::Block;
use crate::error::Result;
use crate::names::BlockVector;
use crate::observer::StageKind;

impl Pass<'_, '_> {
    /// The channel mix of a block; its result is left in `delta`.
    pub fn channel_mix(&mut self, block: Block) -> Result<()> {
        let at = self.weights.channel_mix_of(block);
        let width = self.weights.config.width;
        let vectors = self.weights.vectors_of(block).view(self.residence.vectors(), width);
        let (weight, bias) = (vectors.get(BlockVector::Ln2Weight), vectors.get(BlockVector::Ln2Bias));
        self.add_and_norm(weight, bias);
        self.watch.lap(StageKind::Norm);
        let group = self.watch.lease(self.residence, at.key_group)?;
        let key = at.key.view(&group);
        self.watch.lap(StageKind::Bind);
        self.mix_and_multiply_key(block, vectors.get(BlockVector::FfnMixK), key);
        self.watch.lap(StageKind::ChannelMix);
        self.watch.release(group);
        let group = self.watch.lease(self.residence, at.value_group)?;
        let value = at.value.view(&group);
        self.watch.lap(StageKind::Bind);
        self.multiply_value(value);
        self.watch.lap(StageKind::ChannelMix);
        self.save_shift(|state| state.shift_of_mut(block));
        self.watch.release(group);
        self.origin = Origin::ChannelMix(block);
        Ok(())
    }

    /// The token shift, the key matrix, and the activation: each task gathers what is not zero of its outputs while a cache has them.
    fn mix_and_multiply_key(&mut self, block: Block, mix_k: &[f32], w: RowTiles<'_>) {
        let isa = self.isa;
        let width = self.weights.config.width;
        let sweep = self.sweep;
        let Scratch { normed, input, buffers, active, .. } = &mut *self.scratch;
        let normed = &**normed;
        let feeds = &*self.feeds;
        input.reset(sweep.rows, width, w.codec().forms());
        for_rows(self.team, normed.len(), input.rows_mut().enumerate(), |(r, row)| {
            let x = &normed[*r * width..][..width];
            let prev = match sweep.starts[*r] {
                Some(feed) => feeds[feed].state.shift_of(block),
                None => &normed[(*r - 1) * width..][..width],
            };
            fill_mix(isa, row, x, prev, mix_k);
        });
        active.reset(sweep.rows, w.rows());
        let mut items: Vec<_> = runs(w, SparseRows::BLOCK / TILE_ROWS).zip(active.blocks_mut()).collect();
        let buffers = &*buffers;
        self.team.for_each(&mut items, |(w, block)| {
            buffers.lend(sweep.rows * w.rows(), |hidden| {
                matmul(isa, *w, input, hidden);
                relu_squared(isa, hidden);
                block.gather(isa, hidden);
            });
        });
    }

    /// The value matrix.
    fn multiply_value(&mut self, w: Columns<'_>) {
        let isa = self.isa;
        let Scratch { active, delta, .. } = &mut *self.scratch;
        let active = &*active;
        delta.reset(active.rows(), w.rows(), outputs_per_task(w.rows(), active.rows(), self.team.threads()));
        let width = delta.width();
        let outs = |p: usize| -> Range<usize> { p * width..w.rows().min((p + 1) * width) };
        let mut items: Vec<_> = delta.panels_mut().enumerate().collect();
        self.team.for_each(&mut items, |(p, y)| matmul_columns(isa, w, outs(*p), active, y));
        self.count_skipped(w);
    }

    fn count_skipped(&mut self, w: Columns<'_>) {
        let active = &self.scratch.active;
        let inputs = active.rows() * active.cols();
        let skipped = inputs - active.nonzero();
        self.counters.value_inputs += inputs as u64;
        self.counters.value_inputs_skipped += skipped as u64;
        if active.rows() == 1 {
            self.counters.skipped_bytes += (skipped * w.column_bytes()) as u64;
        }
    }
}
