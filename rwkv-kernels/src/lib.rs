//! Bit-reproducible CPU kernels for RWKV models.

mod dispatch;
mod elementwise;
mod head;
mod isa;
mod norm;
mod scalar;
mod wkv;

pub use elementwise::{
    add_assign, add_bias, decay, exp, mix, mix_value, mul_assign, relu_squared, sigmoid, silu, tanh,
};
pub use head::{HeadOutput, HeadParams, HeadRows, head_output, prepare_head};
pub use isa::{Isa, IsaError};
pub use norm::{dot, l2_normalize, layer_norm, softmax};
pub use wkv::{Wkv7, wkv7};
