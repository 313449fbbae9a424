use crate::columns::FEW;
use crate::isa::{Isa, Kind};
use crate::panels::Panels;
use crate::scalar;
#[cfg(target_arch = "x86_64")]
use crate::x86;

/// Inputs per block: a block's columns, widened for 64 outputs, fit the first-level cache.
pub(crate) const BLOCK: usize = 128;

/// Rows (tokens) of activations of which most are zero: the non-zero entries, in blocks of 128 inputs.
///
/// Within a block the entries of a row lie together and ascend, and those of the next row follow, as the
/// products walk over them.
#[derive(Clone, Debug, Default)]
pub struct SparseRows {
    rows: usize,
    cols: usize,
    /// Room for `[blocks, rows, BLOCK]`: places within the block, row after row without gaps.
    places: Vec<u8>,
    /// The same for the values.
    values: Vec<f32>,
    /// `[blocks, rows + 1]`: where the entries of each row start within its block's room.
    starts: Vec<u32>,
    /// `[blocks]`: a bit for each input that is not zero in every row.
    active: Vec<u128>,
    /// `[blocks, rows]`, if there are more rows than [`FEW`]: where their entries are, those of the fewest entries first.
    order: Vec<RowEntries>,
}

/// Where the entries of a row lie in its block's room.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RowEntries {
    pub row: u32,
    pub start: u32,
    pub len: u32,
}

/// One block of [`SparseRows`], to be filled: blocks are disjoint, so different threads may fill them.
#[derive(Debug)]
pub struct SparseBlock<'a> {
    cols: usize,
    places: &'a mut [u8],
    values: &'a mut [f32],
    starts: &'a mut [u32],
    active: &'a mut u128,
    order: &'a mut [RowEntries],
}

impl SparseRows {
    /// Inputs of a block.
    pub const BLOCK: usize = BLOCK;

    /// No rows yet.
    pub fn new() -> SparseRows {
        SparseRows::default()
    }

    /// Takes a new shape, with zeros everywhere, and keeps the allocations. [`SparseRows::blocks_mut`] fills it.
    pub fn reset(&mut self, rows: usize, cols: usize) {
        (self.rows, self.cols) = (rows, cols);
        let blocks = self.blocks();
        // What says which places and values there are is anew; what they were does not matter then.
        self.places.resize(blocks * rows * BLOCK, 0);
        self.values.resize(blocks * rows * BLOCK, 0.0);
        self.starts.clear();
        self.starts.resize(blocks * (rows + 1), 0);
        self.active.clear();
        self.active.resize(blocks, 0);
        self.order.clear();
        self.order.resize(if rows > FEW { blocks * rows } else { 0 }, RowEntries::default());
    }

    /// Every block of 128 inputs, to be filled.
    pub fn blocks_mut(&mut self) -> impl Iterator<Item = SparseBlock<'_>> {
        let (rows, cols) = (self.rows, self.cols);
        let size = rows.max(1);
        let mut order = self.order.chunks_exact_mut(size);
        self.places
            .chunks_exact_mut(size * BLOCK)
            .zip(self.values.chunks_exact_mut(size * BLOCK))
            .zip(self.starts.chunks_exact_mut(rows + 1))
            .zip(&mut self.active)
            .enumerate()
            .map(move |(block, (((places, values), starts), active))| SparseBlock {
                cols: (cols - block * BLOCK).min(BLOCK),
                places,
                values,
                starts,
                active,
                order: order.next().unwrap_or_default(),
            })
    }

    /// [`reset`](SparseRows::reset) to the shape of `x` and fill every block from it, on the calling thread.
    pub fn gather(&mut self, isa: Isa, x: &Panels) {
        self.reset(x.rows(), x.cols());
        let mut part = Vec::new();
        for (b, mut block) in self.blocks_mut().enumerate() {
            part.resize(x.rows() * block.cols(), 0.0);
            for (r, row) in part.chunks_exact_mut(block.cols()).enumerate() {
                x.read_row_from(r, b * BLOCK, row);
            }
            block.gather(isa, &part);
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

    /// How many entries of all rows are not zero.
    pub fn nonzero(&self) -> usize {
        self.starts.chunks_exact(self.rows + 1).map(|starts| starts[self.rows] as usize).sum()
    }

    /// The entries of row `r` that are not zero: input and value, ascending.
    ///
    /// # Panics
    /// There is no row `r`.
    pub fn row(&self, r: usize) -> impl Iterator<Item = (usize, f32)> {
        assert!(r < self.rows, "row {r} of {}", self.rows);
        (0..self.blocks()).flat_map(move |b| {
            let (places, values) = self.block(r, b);
            places.iter().zip(values).map(move |(&place, &x)| (b * BLOCK + usize::from(place), x))
        })
    }

    /// The entries of row `r` within block `b`: places within the block, and values.
    #[inline(always)]
    pub(crate) fn block(&self, r: usize, b: usize) -> (&[u8], &[f32]) {
        let starts = &self.starts[b * (self.rows + 1) + r..][..2];
        let (room, range) = (b * self.rows * BLOCK, starts[0] as usize..starts[1] as usize);
        (&self.places[room..][range.clone()], &self.values[room..][range])
    }

    /// Where the entries of every row of block `b` are, those of the fewest first. Only for more than [`FEW`] rows.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "the definitions do without it"))]
    pub(crate) fn order(&self, b: usize) -> &[RowEntries] {
        &self.order[b * self.rows..][..self.rows]
    }

    /// The room of block `b`: places within the block, and values.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "as above"))]
    pub(crate) fn room(&self, b: usize) -> (&[u8], &[f32]) {
        let room = b * self.rows * BLOCK..(b + 1) * self.rows * BLOCK;
        (&self.places[room.clone()], &self.values[room])
    }

    /// The inputs of block `b` that are not zero in every row, a bit each.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "the definitions do without it"))]
    pub(crate) fn active(&self, b: usize) -> u128 {
        self.active[b]
    }

    pub(crate) fn blocks(&self) -> usize {
        self.cols.div_ceil(BLOCK)
    }
}

impl SparseBlock<'_> {
    /// Inputs of this block: 128, but for a narrower last one.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Takes the entries of `x`, row-major `[rows, cols]` of this block's inputs, that are not zero. A NaN is not zero.
    ///
    /// # Panics
    /// `x` has another size.
    pub fn gather(&mut self, isa: Isa, x: &[f32]) {
        const { assert!(BLOCK == 128, "one bit per input") };
        assert_eq!(x.len(), (self.starts.len() - 1) * self.cols, "one value per row and input of the block");
        *self.active = 0;
        self.starts[0] = 0;
        for (r, x) in x.chunks_exact(self.cols).enumerate() {
            let start = self.starts[r] as usize;
            let (places, values) = (&mut self.places[start..][..BLOCK], &mut self.values[start..][..BLOCK]);
            let (count, bits) = gather_row(isa, x, places, values);
            *self.active |= bits;
            self.starts[r + 1] = (start + count) as u32;
        }
        if !self.order.is_empty() {
            self.sort_rows();
        }
    }

    /// Orders the rows by how many entries they have: there are so few different numbers that counting sorts them.
    fn sort_rows(&mut self) {
        let rows = || {
            (0..).zip(self.starts.windows(2)).map(|(row, s)| RowEntries {
                row,
                start: s[0],
                len: s[1] - s[0],
            })
        };
        let mut next = [0; BLOCK + 2];
        for entries in rows() {
            next[entries.len as usize + 1] += 1;
        }
        for len in 1..next.len() {
            next[len] += next[len - 1];
        }
        for entries in rows() {
            let place: &mut usize = &mut next[entries.len as usize];
            self.order[*place] = entries;
            *place += 1;
        }
    }
}

/// Leaves the places and values of what is not zero in `x`, the inputs of a block, at the start of `places` and `values`, which have room
/// for a whole block. Their number, and a bit for each.
fn gather_row(isa: Isa, x: &[f32], places: &mut [u8], values: &mut [f32]) -> (usize, u128) {
    match isa.kind() {
        Kind::Scalar => scalar::sparse::gather(x, places, values),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this kind exists only where avx2 was detected.
        Kind::Avx2 => unsafe { x86::sparse::avx2(x, places, values) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this kind exists only where avx512 f was detected.
        Kind::Avx512 | Kind::Avx512Vnni => unsafe { x86::sparse::avx512(x, places, values) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(isa: Isa, x: &Panels) -> SparseRows {
        let mut sparse = SparseRows::new();
        sparse.gather(isa, x);
        sparse
    }

    #[test]
    fn keeps_what_is_not_zero() {
        for isa in Isa::available() {
            for cols in [1, 15, 16, 17, 127, 128, 129, 400] {
                for width in [1, 48, 128, 512] {
                    let mut x = Panels::zeroed(2, cols, width);
                    let row: Vec<f32> = (0..cols).map(|k| if k % 3 == 1 { k as f32 } else { -0.0 }).collect();
                    x.write_row(1, &row);
                    let sparse = gathered(*isa, &x);
                    assert_eq!(sparse.row(0).count(), 0);
                    let expected: Vec<(usize, f32)> =
                        (0..cols).filter(|k| k % 3 == 1).map(|k| (k, k as f32)).collect();
                    assert_eq!(sparse.row(1).collect::<Vec<_>>(), expected, "{isa}, {cols} channels");
                    assert_eq!(sparse.nonzero(), expected.len());
                    for (k, _) in expected {
                        assert_eq!(sparse.active(k / BLOCK) >> (k % BLOCK) & 1, 1);
                    }
                    let bits: u32 = (0..sparse.blocks()).map(|b| sparse.active(b).count_ones()).sum();
                    assert_eq!(bits as usize, sparse.nonzero());
                }
            }
        }
    }

    #[test]
    fn orders_many_rows_by_their_entries() {
        let (rows, cols) = (FEW + 30, 200);
        let mut x = Panels::zeroed(rows, cols, 64);
        for r in 0..rows {
            let row: Vec<f32> =
                (0..cols).map(|k| if (k + r) % (r % 7 + 1) == 0 { 1.0 } else { 0.0 }).collect();
            x.write_row(r, &row);
        }
        let sparse = gathered(Isa::detect(), &x);
        for b in 0..sparse.blocks() {
            let order = sparse.order(b);
            assert!(order.is_sorted_by_key(|entries| entries.len));
            let mut seen: Vec<u32> = order.iter().map(|entries| entries.row).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..rows as u32).collect::<Vec<_>>());
            let (places, values) = sparse.room(b);
            for entries in order {
                let range = entries.start as usize..(entries.start + entries.len) as usize;
                let expected = sparse.block(entries.row as usize, b);
                assert_eq!((&places[range.clone()], &values[range]), expected);
            }
        }
    }

    #[test]
    fn a_new_shape_is_zero_until_it_is_filled() {
        for rows in [1, FEW + 3] {
            let mut x = Panels::zeroed(2 * rows, 300, 64);
            x.as_mut_slice().fill(1.0);
            let mut sparse = gathered(Isa::detect(), &x);
            sparse.reset(rows, 130);
            assert_eq!((sparse.nonzero(), sparse.row(rows - 1).count()), (0, 0));
            assert!((0..sparse.blocks()).all(|b| sparse.active(b) == 0));
        }
    }

    #[test]
    fn keeps_what_is_tiny_or_not_a_number() {
        let row = [0.0, f32::NAN, -0.0, -f32::NAN, f32::INFINITY, -f32::MIN_POSITIVE / 8.0, 0.0, 0.0];
        for isa in Isa::available() {
            for repeats in [1, 3] {
                let mut x = Panels::zeroed(1, 8 * repeats, 8);
                x.write_row(0, &row.repeat(repeats));
                let expected: Vec<usize> =
                    (0..8 * repeats).filter(|k| [1, 3, 4, 5].contains(&(k % 8))).collect();
                assert_eq!(gathered(*isa, &x).row(0).map(|(k, _)| k).collect::<Vec<_>>(), expected, "{isa}");
            }
        }
    }
}
