//! The definition of products with columns; see [`crate::matmul_columns`].

use std::ops::Range;

use crate::codec::Codec;
use crate::columns::{ColumnView, Columns};
use crate::sparse::SparseRows;

pub(crate) fn matmul(w: Columns<'_>, outs: Range<usize>, x: &SparseRows, y: &mut [f32]) {
    let quantised = matches!(w.codec(), Codec::U8 | Codec::U4);
    let mut offsets = vec![0.0f32; outs.len()];
    for (t, y) in y.chunks_exact_mut(outs.len()).enumerate() {
        y.fill(0.0);
        offsets.fill(0.0);
        let (indices, values) = x.row(t);
        for (&k, &x) in indices.iter().zip(values) {
            let column = ColumnView::new(&w, k as usize);
            for (i, r) in outs.clone().enumerate() {
                if quantised {
                    y[i] = column.code(r).mul_add(column.scale(r) * x, y[i]);
                    offsets[i] = column.min(r).mul_add(x, offsets[i]);
                } else {
                    y[i] = column.float(r).mul_add(x, y[i]);
                }
            }
        }
        if quantised {
            for (y, offset) in y.iter_mut().zip(&offsets) {
                *y += offset;
            }
        }
    }
}
