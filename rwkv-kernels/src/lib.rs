//! Bit-reproducible CPU kernels for RWKV models.

mod isa;

pub use isa::{Isa, IsaError};
