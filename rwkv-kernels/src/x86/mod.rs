//! Variants for x86-64. Each returns the bits of its definition in [`crate::scalar`].

pub(crate) mod columns_avx2;
pub(crate) mod columns_avx512;
pub(crate) mod quantize;
pub(crate) mod tiles_avx2;
pub(crate) mod tiles_avx512;
