//! RWKV-7 inference: sampling and stop strings.
#![forbid(unsafe_code)]

mod error;
mod rng;
mod sampler;
mod stop;

pub use error::{ErrorKind, ModelError, Result};
pub use sampler::{Sampler, SamplerParams, is_uncounted_text};
pub use stop::StopMatcher;
