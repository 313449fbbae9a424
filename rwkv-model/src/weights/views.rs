use std::ops::Range;

use rwkv_kernels::{Codec, Columns, Forms, RowTiles};

use crate::names::BlockVector;

const CHECKED: &str = "the bytes' number was checked when the model was opened";

/// A matrix in row tiles: its shape, and its bytes' place in its group.
#[derive(Debug, Clone)]
pub(crate) struct TilesAt {
    pub codec: Codec,
    pub rows: usize,
    pub cols: usize,
    pub range: Range<usize>,
}

impl TilesAt {
    pub fn view<'a>(&self, group: &'a [u8]) -> RowTiles<'a> {
        RowTiles::new(self.codec, self.rows, self.cols, &group[self.range.clone()]).expect(CHECKED)
    }

    pub fn forms(&self) -> Forms {
        self.codec.forms()
    }
}

/// A matrix in columns: its shape, and its bytes' place in its group.
#[derive(Debug, Clone)]
pub(crate) struct ColumnsAt {
    pub codec: Codec,
    pub rows: usize,
    pub cols: usize,
    pub range: Range<usize>,
}

impl ColumnsAt {
    pub fn view<'a>(&self, group: &'a [u8]) -> Columns<'a> {
        Columns::new(self.codec, self.rows, self.cols, &group[self.range.clone()]).expect(CHECKED)
    }
}

/// The four matrices of a time mix or of attention.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Projections<'a> {
    pub receptance: RowTiles<'a>,
    pub key: RowTiles<'a>,
    pub value: RowTiles<'a>,
    pub output: RowTiles<'a>,
}

/// Where a block's vectors begin in their group, by [`BlockVector`]; absent ones at 0.
#[derive(Debug, Clone, Default)]
pub(crate) struct VectorsAt([usize; BlockVector::ALL.len()]);

impl VectorsAt {
    pub fn set(&mut self, vector: BlockVector, offset: usize) {
        self.0[vector as usize] = offset;
    }

    pub fn view<'a>(&'a self, group: &'a [u8], width: usize) -> BlockVectors<'a> {
        BlockVectors { at: self, group, width }
    }
}

/// A block's vectors, each of C values.
#[derive(Clone, Copy)]
pub(crate) struct BlockVectors<'a> {
    at: &'a VectorsAt,
    group: &'a [u8],
    width: usize,
}

impl<'a> BlockVectors<'a> {
    pub fn get(&self, vector: BlockVector) -> &'a [f32] {
        vector_at(self.group, self.at.0[vector as usize], self.width)
    }

    /// The channels of one head.
    pub fn head(&self, vector: BlockVector, head: usize, size: usize) -> &'a [f32] {
        &self.get(vector)[head * size..(head + 1) * size]
    }
}

/// `len` floats at a byte offset of a group. Groups and the tensors within them are aligned to 64 bytes.
pub(crate) fn vector_at(group: &[u8], offset: usize, len: usize) -> &[f32] {
    bytemuck::cast_slice(&group[offset..offset + 4 * len])
}
