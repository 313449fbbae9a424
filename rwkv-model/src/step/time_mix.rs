use rwkv_kernels::{
    Activations, Forms, HeadOutput, HeadParams, HeadRows, Isa, Panels, RowTiles, TILE_ROWS, Wkv7,
    head_output, matmul, mix_value, prepare_head, wkv7,
};

use super::rows::{Origin, Pass};
use super::scratch::{HeadPanels, Scratch};
use super::sweep::Span;
use super::tasks::{Then, fill_mix, for_rows, task_width, tasks};
use crate::block::Block;
use crate::error::Result;
use crate::names::{BlockVector, LowRank};
use crate::observer::StageKind;
use crate::state::State;
use crate::weights::{BlockAt, BlockVectors, Projections};

/// What the heads' group norm adds to the variance.
const GROUP_NORM_EPS: f32 = 64e-5;

/// The vectors of the six mixes, in the order r w k v a g.
const MIXES: [[BlockVector; 3]; 2] = [
    [BlockVector::MixR, BlockVector::MixW, BlockVector::MixK],
    [BlockVector::MixV, BlockVector::MixA, BlockVector::MixG],
];

/// Channels of a hidden panel of the low-rank matrices.
const HIDDEN_WIDTH: usize = 64;

/// The buffers of [`HeadScratch`].
pub(crate) const HEAD_BUFFERS: usize = 5;

impl Pass<'_, '_> {
    /// The time mix of a block; its result is left in `delta`.
    pub fn time_mix(&mut self, block: usize) -> Result<()> {
        let at = &self.weights.blocks[block];
        let vectors = at.vectors.view(self.residence.vectors(), self.weights.config.width);
        let (weight, bias) = (vectors.get(BlockVector::Ln1Weight), vectors.get(BlockVector::Ln1Bias));
        self.begin(Some(Block::Rwkv(block)), weight, bias);
        self.mix_six(block, at.mix_forms(), vectors);
        self.watch.lap(StageKind::Norm);
        let group = self.watch.lease(self.residence, at.projections.group)?;
        let projections = at.projections.view(&group);
        self.watch.lap(StageKind::Bind);
        self.project(at, &projections, &group);
        self.run_heads(block, at, vectors, &group);
        self.project_output(projections.output);
        self.watch.lap(StageKind::TimeMix);
        self.save_shift(|state| state.att_shift_mut(block));
        self.watch.release(group);
        self.origin = Origin::Mix(Block::Rwkv(block));
        Ok(())
    }

    /// Stores the last row of every feed, after its norm, for the token shift of the row that comes next.
    pub fn save_shift(&mut self, shift: impl Fn(&mut State) -> &mut [f32]) {
        let width = self.weights.config.width;
        for span in &self.sweep.spans {
            let last = &self.scratch.normed[(span.first_row + span.rows - 1) * width..][..width];
            shift(self.feeds[span.feed].state).copy_from_slice(last);
        }
        self.watch.lap(StageKind::SaveState);
    }

    /// The token shift: six mixes of every row with the row before it.
    fn mix_six(&mut self, block: usize, forms: [Forms; 6], vectors: BlockVectors<'_>) {
        let isa = self.isa;
        let width = self.weights.config.width;
        let sweep = self.sweep;
        let Scratch { mixed, normed, .. } = &mut *self.scratch;
        let feeds = &*self.feeds;
        let normed = &**normed;
        for (mixed, forms) in mixed.iter_mut().zip(forms) {
            mixed.reset(sweep.rows, width, forms);
        }
        // Half of a row's mixes are an item: they read the same inputs, and those of one row alone are still shared out.
        let items = mixed.as_chunks_mut::<3>().0.iter_mut().zip(MIXES).flat_map(|(half, mixes)| {
            let mut rows = half.each_mut().map(Activations::rows_mut);
            (0..sweep.rows).map(move |r| {
                let row = rows.each_mut().map(|rows| rows.next().expect("every input has as many rows"));
                (r, row, mixes)
            })
        });
        for_rows(self.team, 6 * normed.len(), items, |(r, row, mixes)| {
            let x = &normed[*r * width..][..width];
            let prev = match sweep.starts[*r] {
                Some(feed) => feeds[feed].state.att_shift(block),
                None => &normed[(*r - 1) * width..][..width],
            };
            for (mixed, vector) in row.iter_mut().zip(mixes) {
                fill_mix(isa, mixed, x, prev, vectors.get(*vector));
            }
        });
    }

    /// Receptance, key, value, and the first low-rank matrices.
    fn project(&mut self, at: &BlockAt, projections: &Projections<'_>, group: &[u8]) {
        let isa = self.isa;
        let Scratch { mixed, heads, hidden, hidden_input, .. } = &mut *self.scratch;
        let [r, w, k, v, a, g] = &*mixed;
        let mut items = Vec::new();
        let inputs = [(w, Then::Tanh), (a, Then::Nothing), (v, Then::Nothing), (g, Then::Sigmoid)];
        for ((which, hidden), (input, then)) in LowRank::ALL.into_iter().zip(hidden.iter_mut()).zip(inputs) {
            if let Some(pair) = at.low_rank(which) {
                hidden.reset(self.sweep.rows, pair.down.rows, HIDDEN_WIDTH);
                items.extend(tasks(pair.down.view(group), input, hidden, then));
            }
        }
        items.extend(tasks(projections.receptance, r, &mut heads.r, Then::Nothing));
        items.extend(tasks(projections.key, k, &mut heads.k, Then::Nothing));
        items.extend(tasks(projections.value, v, &mut heads.v, Then::Nothing));
        self.team.for_each(&mut items, |task| task.run(isa));
        for ((which, hidden), input) in LowRank::ALL.into_iter().zip(hidden).zip(hidden_input) {
            if let Some(pair) = at.low_rank(which) {
                input.prepare(isa, hidden, pair.up.forms());
            }
        }
    }

    /// Everything between the projections and the output matrix, head by head.
    fn run_heads(&mut self, block: usize, at: &BlockAt, vectors: BlockVectors<'_>, group: &[u8]) {
        let isa = self.isa;
        let size = self.weights.config.head_size;
        let spans = &*self.sweep.spans;
        let mut of_feeds: Vec<_> = self
            .feeds
            .iter_mut()
            .enumerate()
            .filter(|(index, _)| spans.binary_search_by_key(index, |span| span.feed).is_ok())
            .map(|(_, feed)| feed.state.heads_mut(block))
            .collect();
        let mut states: Vec<&mut [f32]> = Vec::with_capacity(self.weights.config.heads * spans.len());
        for _ in 0..self.weights.config.heads {
            states.extend(of_feeds.iter_mut().map(|heads| heads.next().expect("a state has every head")));
        }
        let Scratch { heads, hidden_input, buffers, .. } = &mut *self.scratch;
        let up = LowRank::ALL.map(|which| at.low_rank(which).map(|pair| pair.up.view(group)));
        let low_rank = UpMatrices { up, inputs: hidden_input };
        let HeadPanels { r, k, v, v_first, y } = heads;
        let mut firsts = Firsts::new(block, v_first);
        let mut items: Vec<HeadTask<'_>> = Vec::with_capacity(self.weights.config.heads);
        let panels = k.panels_mut().zip(v.panels_mut()).zip(y.panels_mut());
        for (head, (((k, v), y), states)) in panels.zip(states.chunks_mut(spans.len())).enumerate() {
            let r = r.panel(head);
            let v_first = firsts.next(head);
            items.push(HeadTask { head, r, k, v, v_first, y, states });
        }
        let buffers = &*buffers;
        self.team.for_each(&mut items, |task| {
            let rows = HEAD_BUFFERS * task.y.len();
            buffers.lend(rows, |rows| task.run(isa, size, &low_rank, vectors, spans, HeadScratch::new(rows)));
        });
    }

    /// The output matrix.
    pub fn project_output(&mut self, w: RowTiles<'_>) {
        let isa = self.isa;
        let Scratch { heads, input, delta, .. } = &mut *self.scratch;
        let y = &heads.y;
        input.reset(y.rows(), y.cols(), w.codec().forms());
        for_rows(self.team, y.rows() * y.cols(), input.rows_mut().enumerate(), |(r, row)| {
            row.fill(isa, |first, out| y.read_row_from(*r, first, out));
        });
        delta.reset(y.rows(), w.rows(), task_width(w, self.team.threads()));
        let mut items: Vec<_> = tasks(w, input, delta, Then::Nothing).collect();
        self.team.for_each(&mut items, |task| task.run(isa));
    }
}

/// The second low-rank matrices w a v g and their inputs.
struct UpMatrices<'a> {
    up: [Option<RowTiles<'a>>; 4],
    inputs: &'a [Activations; 4],
}

impl UpMatrices<'_> {
    /// The outputs of one head.
    fn multiply(&self, isa: Isa, which: LowRank, head: usize, size: usize, y: &mut [f32]) {
        let tiles = size / TILE_ROWS;
        if let Some(up) = self.up[which as usize] {
            let w = up.tile_range(head * tiles..(head + 1) * tiles);
            matmul(isa, w, &self.inputs[which as usize], y);
        }
    }
}

/// The values of the first block, which all others mix theirs with: kept there, read elsewhere.
enum Firsts<'a> {
    Keep(std::slice::ChunksMut<'a, f32>),
    Read(&'a Panels),
}

enum First<'a> {
    Keep(&'a mut [f32]),
    Read(&'a [f32]),
}

impl<'a> Firsts<'a> {
    fn new(block: usize, panels: &'a mut Panels) -> Firsts<'a> {
        if block == 0 { Firsts::Keep(panels.panels_mut()) } else { Firsts::Read(panels) }
    }

    fn next(&mut self, head: usize) -> First<'a> {
        match self {
            Firsts::Keep(panels) => First::Keep(panels.next().expect("a panel per head")),
            Firsts::Read(panels) => First::Read(panels.panel(head)),
        }
    }
}

/// One head of the time mix for all rows: slices are `[rows, N]`, `states` one per span.
struct HeadTask<'a> {
    head: usize,
    r: &'a [f32],
    k: &'a mut [f32],
    v: &'a mut [f32],
    v_first: First<'a>,
    y: &'a mut [f32],
    states: &'a mut [&'a mut [f32]],
}

/// What nobody but the task of a head sees, `[rows, N]` each: lent to it, these rows stay in the cache of its thread.
struct HeadScratch<'a> {
    w: &'a mut [f32],
    a: &'a mut [f32],
    g: &'a mut [f32],
    kk: &'a mut [f32],
    gate_v: &'a mut [f32],
}

impl<'a> HeadScratch<'a> {
    fn new(buffer: &'a mut [f32]) -> HeadScratch<'a> {
        let mut parts = buffer.chunks_exact_mut(buffer.len() / HEAD_BUFFERS);
        let [w, a, g, kk, gate_v] = std::array::from_fn(|_| parts.next().expect("as many parts"));
        HeadScratch { w, a, g, kk, gate_v }
    }
}

impl HeadTask<'_> {
    fn run(
        &mut self,
        isa: Isa,
        size: usize,
        low_rank: &UpMatrices<'_>,
        vectors: BlockVectors<'_>,
        spans: &[Span],
        scratch: HeadScratch<'_>,
    ) {
        let HeadScratch { w, a, g, kk, gate_v } = scratch;
        let head = self.head;
        let vector = |which| vectors.head(which, head, size);
        low_rank.multiply(isa, LowRank::W, head, size, w);
        low_rank.multiply(isa, LowRank::A, head, size, a);
        low_rank.multiply(isa, LowRank::G, head, size, g);
        match &mut self.v_first {
            First::Keep(first) => first.copy_from_slice(self.v),
            First::Read(first) => {
                low_rank.multiply(isa, LowRank::V, head, size, gate_v);
                mix_value(isa, vector(BlockVector::V0), gate_v, first, self.v);
            }
        }
        let params = HeadParams {
            w0: vector(BlockVector::W0),
            a0: vector(BlockVector::A0),
            k_k: vector(BlockVector::KK),
            k_a: vector(BlockVector::KA),
        };
        prepare_head(isa, params, HeadRows { w, a, k: self.k, kk });
        for (span, state) in spans.iter().zip(self.states.iter_mut()) {
            let rows = span.first_row * size..(span.first_row + span.rows) * size;
            let inputs = Wkv7 {
                n: size,
                r: &self.r[rows.clone()],
                w: &w[rows.clone()],
                k: &self.k[rows.clone()],
                v: &self.v[rows.clone()],
                kk: &kk[rows.clone()],
                kka: &a[rows.clone()],
            };
            wkv7(isa, inputs, state, &mut self.y[rows]);
        }
        let output = HeadOutput {
            r_k: vector(BlockVector::RK),
            ln_w: vector(BlockVector::LnXWeight),
            ln_b: vector(BlockVector::LnXBias),
            eps: GROUP_NORM_EPS,
            r: self.r,
            k: self.k,
            v: self.v,
            g,
        };
        head_output(isa, output, self.y);
    }
}
