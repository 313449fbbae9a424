//! Variants for x86-64. Each returns the bits of its definition in [`crate::scalar`].

mod attention;
pub(crate) mod columns;
pub(crate) mod entries;
mod head;
mod lanes;
mod lanes_avx2;
mod lanes_avx512;
mod math;
mod norm;
pub(crate) mod probe;
pub(crate) mod quantize;
mod rows;
pub(crate) mod sparse;
pub(crate) mod tile_ops;
pub(crate) mod tiles;
mod wkv;
