use crate::panels::Panels;

/// Inputs per block: a block's columns, widened, fit the first-level cache.
pub(crate) const BLOCK: usize = 128;

/// Rows (tokens) of activations of which most are zero: for each row its non-zero entries, ascending.
#[derive(Clone, Debug, Default)]
pub struct SparseRows {
    rows: usize,
    cols: usize,
    indices: Vec<u32>,
    values: Vec<f32>,
    /// Per row, where each block of [`BLOCK`] inputs starts among the row's entries; the last is their number.
    starts: Vec<u32>,
}

/// One row of [`SparseRows`], to be filled: rows are disjoint, so different threads may fill them.
#[derive(Debug)]
pub struct SparseRow<'a> {
    indices: &'a mut [u32],
    values: &'a mut [f32],
    starts: &'a mut [u32],
}

impl SparseRows {
    /// No rows yet.
    pub fn new() -> SparseRows {
        SparseRows::default()
    }

    /// Takes a new shape and keeps the allocations. Every row must then be [filled](SparseRows::rows_mut).
    pub fn reset(&mut self, rows: usize, cols: usize) {
        (self.rows, self.cols) = (rows, cols);
        self.indices.resize(rows * cols, 0);
        self.values.resize(rows * cols, 0.0);
        self.starts.resize(rows * starts_per_row(cols), 0);
    }

    /// Every row, to be filled.
    pub fn rows_mut(&mut self) -> impl Iterator<Item = SparseRow<'_>> {
        let cols = self.cols.max(1);
        self.indices
            .chunks_exact_mut(cols)
            .zip(self.values.chunks_exact_mut(cols))
            .zip(self.starts.chunks_exact_mut(starts_per_row(self.cols)))
            .map(|((indices, values), starts)| SparseRow { indices, values, starts })
    }

    /// [`reset`](SparseRows::reset) to the shape of `x` and fill every row from it, on the calling thread.
    pub fn gather(&mut self, x: &Panels) {
        self.reset(x.rows(), x.cols());
        for (r, mut row) in self.rows_mut().enumerate() {
            row.gather(x, r);
        }
    }

    /// Rows (tokens).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Channels.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The indices and values of the entries of row `r` that are not zero, ascending.
    ///
    /// # Panics
    /// There is no row `r`.
    pub fn row(&self, r: usize) -> (&[u32], &[f32]) {
        let starts = self.starts(r);
        self.entries(r, 0..starts[starts.len() - 1] as usize)
    }

    /// How many entries of all rows are not zero.
    pub fn nonzero(&self) -> usize {
        (0..self.rows).map(|r| self.row(r).0.len()).sum()
    }

    /// The entries of row `r` within block `b` of the inputs.
    pub(crate) fn block(&self, r: usize, b: usize) -> (&[u32], &[f32]) {
        let starts = self.starts(r);
        self.entries(r, starts[b] as usize..starts[b + 1] as usize)
    }

    pub(crate) fn blocks(&self) -> usize {
        self.cols.div_ceil(BLOCK)
    }

    fn starts(&self, r: usize) -> &[u32] {
        let n = starts_per_row(self.cols);
        &self.starts[r * n..(r + 1) * n]
    }

    fn entries(&self, r: usize, range: std::ops::Range<usize>) -> (&[u32], &[f32]) {
        let row = r * self.cols..(r + 1) * self.cols;
        (&self.indices[row.clone()][range.clone()], &self.values[row][range])
    }
}

impl SparseRow<'_> {
    /// Takes the entries of row `r` of `x` that are not zero. A NaN is not zero.
    ///
    /// # Panics
    /// `x` has another number of channels, or no row `r`.
    pub fn gather(&mut self, x: &Panels, r: usize) {
        assert_eq!(x.cols(), self.indices.len(), "channels of the panels and of the sparse row");
        let (mut k, mut n) = (0, 0);
        for p in 0..x.panel_count() {
            for &value in x.row_part(r, p) {
                if k % BLOCK == 0 {
                    self.starts[k / BLOCK] = n as u32;
                }
                // Written always and kept when it counts: no branch to mispredict.
                self.indices[n] = k as u32;
                self.values[n] = value;
                n += usize::from(value != 0.0);
                k += 1;
            }
        }
        self.starts[k.div_ceil(BLOCK)] = n as u32;
    }
}

fn starts_per_row(cols: usize) -> usize {
    cols.div_ceil(BLOCK) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_is_not_zero() {
        for cols in [1, 127, 128, 129, 400] {
            let mut x = Panels::zeroed(2, cols, 48);
            let row: Vec<f32> = (0..cols).map(|k| if k % 3 == 1 { k as f32 } else { -0.0 }).collect();
            x.write_row(1, &row);
            let mut sparse = SparseRows::new();
            sparse.gather(&x);
            assert_eq!(sparse.row(0).0.len(), 0);
            let expected: Vec<u32> = (0..cols as u32).filter(|k| k % 3 == 1).collect();
            assert_eq!(sparse.row(1).0, expected, "{cols} channels");
            let by_block: Vec<u32> =
                (0..sparse.blocks()).flat_map(|b| sparse.block(1, b).0.iter().copied()).collect();
            assert_eq!(by_block, expected);
            assert_eq!(sparse.nonzero(), expected.len());
        }
    }
}
