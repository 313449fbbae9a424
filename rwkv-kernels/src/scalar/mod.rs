//! The definitions: every operation once, in plain loops. SIMD variants return the same bits.

pub(crate) mod attention;
pub(crate) mod columns;
pub(crate) mod head;
pub(crate) mod math;
pub(crate) mod norm;
pub(crate) mod probe;
pub(crate) mod quantize;
pub(crate) mod rows;
pub(crate) mod sparse;
pub(crate) mod tiles;
pub(crate) mod wkv;
