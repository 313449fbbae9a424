use rwkv_kernels::{
    ActivationRow, Activations, Isa, Panels, RowTiles, TILE_ROWS, Team, matmul, mix, sigmoid, tanh,
};

/// Some outputs of a matrix for all rows, and what is done with them at once.
pub(super) struct Task<'a> {
    w: RowTiles<'a>,
    x: &'a Activations,
    y: &'a mut [f32],
    then: Then,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Then {
    Nothing,
    Tanh,
    Sigmoid,
}

impl Task<'_> {
    pub fn run(&mut self, isa: Isa) {
        matmul(isa, self.w, self.x, self.y);
        match self.then {
            Then::Nothing => {}
            Then::Tanh => tanh(isa, self.y),
            Then::Sigmoid => sigmoid(isa, self.y),
        }
    }
}

/// The tasks of a matrix whose outputs go to `y`, one per panel.
///
/// The panels' width is a multiple of 16, so that each is a range of tiles.
pub(super) fn tasks<'a>(
    w: RowTiles<'a>,
    x: &'a Activations,
    y: &'a mut Panels,
    then: Then,
) -> impl Iterator<Item = Task<'a>> {
    debug_assert_eq!(y.width() % TILE_ROWS, 0, "panels of whole tiles");
    let tiles = y.width() / TILE_ROWS;
    runs(w, tiles).zip(y.panels_mut()).map(move |(w, y)| Task { w, x, y, then })
}

/// A matrix in runs of so many tiles, the last of fewer.
pub(super) fn runs(w: RowTiles<'_>, tiles: usize) -> impl Iterator<Item = RowTiles<'_>> {
    (0..w.tiles()).step_by(tiles).map(move |first| w.tile_range(first..w.tiles().min(first + tiles)))
}

/// Sets a row of inputs to the mix of a token with the one before it.
pub(super) fn fill_mix(isa: Isa, row: &mut ActivationRow<'_>, x: &[f32], prev: &[f32], weight: &[f32]) {
    row.fill(isa, |first, out| {
        let part = first..first + out.len();
        mix(isa, &x[part.clone()], &prev[part.clone()], &weight[part], out);
    });
}

/// Bytes of weights that make a task long enough for its hand-over not to count.
const TASK_BYTES: usize = 64 << 10;

/// How many outputs of a matrix make a task: a multiple of 64 that leaves several tasks for every thread.
pub(super) fn task_width(w: RowTiles<'_>, threads: usize) -> usize {
    let by_bytes = TASK_BYTES / (4 * w.tile_bytes()).max(1);
    let by_threads = w.rows() / (64 * 4 * threads);
    64 * by_bytes.min(by_threads).max(1)
}

/// Elements below which the team is not worth a hand-off for work on rows. The six mixes of one row of 2048 are above it: done by
/// the caller alone, they would take so long that the others park.
const SERIAL_ELEMENTS: usize = 6 * 2048;

/// Runs `f` on items of `elements` elements in all: on the team if they are many.
pub(super) fn for_rows<T: Send>(
    team: &mut Team,
    elements: usize,
    items: impl Iterator<Item = T>,
    f: impl Fn(&mut T) + Sync,
) {
    if elements < SERIAL_ELEMENTS || team.threads() == 1 {
        items.for_each(|mut item| f(&mut item));
    } else {
        team.for_each(&mut items.collect::<Vec<_>>(), f);
    }
}
