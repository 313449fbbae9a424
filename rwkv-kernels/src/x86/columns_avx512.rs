use crate::columns::Columns;
use crate::scalar;
use crate::sparse::SparseRows;
use std::ops::Range;
pub(crate) unsafe fn matmul(w: Columns<'_>, outs: Range<usize>, x: &SparseRows, y: &mut [f32]) {
    scalar::columns::matmul(w, outs, x, y)
}
