#![doc = include_str!("../README.md")]
//!
//! # Where to find what
//!
//! - [`encode_row_tiles`], [`RowTiles`], [`Activations`], [`matmul`]: matrices by rows; the definition of the product stands
//!   at the head of `scalar/tiles.rs`
//! - [`encode_columns`], [`Columns`], [`SparseRows`], [`matmul_columns`]: matrices by columns
//! - [`prepare_head`], [`wkv7()`], [`head_output`]: a head of the time mix
//! - [`attend()`], [`attend_each`]: a head of attention over a key/value cache, for one query and for several
//! - [`layer_norm`], [`softmax`], [`exp`] and their kin: rows and vectors; the order of sums is explained at the head of
//!   `scalar/norm.rs`, the functions at that of `scalar/math.rs`
//! - [`Isa`], [`Team`]: who computes; the hand-off is explained at the head of `team.rs`
//! - [`probe`]: the limits of the machine

mod activations;
mod attention;
mod codec;
mod columns;
mod dispatch;
mod elementwise;
mod encode;
mod head;
mod isa;
mod norm;
mod panels;
pub mod probe;
mod scalar;
mod sparse;
mod team;
mod tiles;
mod wkv;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use activations::{ActivationRow, Activations};
pub use attention::{
    ATTEND_QUERIES, KvBlock, KvFormat, KvHead, KvRows, KvRowsMut, UnknownKvFormat, attend, attend_each,
    attention_weights,
};
pub use codec::{
    Codec, DType, Forms, GROUP, GROUP_U4, LayoutError, MAX_COLS, TILE_ROWS, UnknownCodec, widen,
};
pub use columns::{Columns, matmul_columns, outputs_per_task};
pub use elementwise::{
    add_assign, add_bias, decay, exp, mix, mix_value, mul_assign, relu_squared, sigmoid, silu, tanh,
};
pub use encode::{EncodeError, encode_columns, encode_row_tiles};
pub use head::{HeadOutput, HeadParams, HeadRows, head_output, prepare_head};
pub use isa::{Isa, IsaError};
pub use norm::{dot, l2_normalize, layer_norm, softmax};
pub use panels::Panels;
pub use sparse::{SparseBlock, SparseRows};
pub use team::Team;
pub use tiles::{RowTiles, matmul};
pub use wkv::{Wkv7, wkv7};
