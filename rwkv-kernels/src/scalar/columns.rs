//! The definition of products with columns; see [`crate::matmul_columns`].

use std::ops::Range;

use crate::columns::{ColumnView, Columns};
use crate::sparse::SparseRows;

pub(crate) fn matmul(w: Columns<'_>, outs: Range<usize>, x: &SparseRows, y: &mut [f32]) {
    for (t, y) in y.chunks_exact_mut(outs.len()).enumerate() {
        y.fill(0.0);
        for (k, x) in x.row(t) {
            let column = ColumnView::new(&w, k);
            for (acc, r) in y.iter_mut().zip(outs.clone()) {
                *acc = column.weight(r).mul_add(x, *acc);
            }
        }
    }
}
