#![doc = include_str!("../README.md")]
//!
//! # Where to find what
//!
//! - [`Model`], [`State`], [`Feed`]: running; the course of a step is explained at the head of `step.rs`
//! - [`Sampler`], [`StopMatcher`], [`GenerateOptions`]: from logits to text
//! - [`Scheduler`]: many sessions, one sweep; how it goes is explained at the head of `scheduler.rs`
//! - [`convert()`], [`WeightSource`]: from a checkpoint to a pack; which tensor goes where stands at the head of `convert.rs`
//! - [`Config`], [`Family`]: what a checkpoint is
#![forbid(unsafe_code)]

mod attention;
mod available;
mod block;
mod budget;
mod config;
mod convert;
mod counters;
mod error;
mod floats;
mod generate;
mod identity;
mod kv;
mod model;
mod names;
mod observer;
mod residency;
mod rng;
mod sampler;
mod scheduler;
mod state;
mod step;
mod stop;
mod synthetic;
mod text;
mod weights;

pub use attention::{Attention, Compression, TopK};
pub use available::{SystemMemory, available_memory};
pub use block::Block;
pub use budget::MemoryPlan;
pub use config::Config;
pub use convert::{
    ConvertOptions, ConvertProgress, ConvertReport, ProgressFn, TensorReport, WeightSource, convert,
    manifest_of,
};
pub use counters::StepCounters;
pub use error::{ErrorKind, ModelError, Result};
pub use generate::{Event, FinishReason, GenerateOptions, Generated};
pub use identity::Identity;
pub use model::{Model, ModelOptions};
pub use names::Family;
pub use observer::{
    AttentionWeights, Embeddings, FeedRows, Interest, Observer, Side, Stage, StageGroup, StageKind, SweepRows,
};
pub use residency::Residency;
pub use sampler::{Sampler, SamplerParams, is_uncounted_text};
pub use scheduler::{
    Finished, OnSweep, PrefixStats, Request, Scheduler, SchedulerOptions, SchedulerStats, SessionEvent, Sink,
    SubmitError, SweepReport, SweptSession, Ticket, Timings, TokenBytes, TokenLogprobs,
};
pub use state::State;
pub use step::{Feed, Logits, StepOutput};
pub use stop::StopMatcher;
pub use synthetic::Synthetic;

/// The crate of the weights' residency, as this one uses it.
pub use rwkv_cache as cache;
/// The crate of the kernels, as this one uses it.
pub use rwkv_kernels as kernels;
/// The crate of checkpoint and pack files, as this one uses it.
pub use rwkv_pack as pack;

// Weights, states and activations are read from and written to files as they are in memory.
const _: () = assert!(cfg!(target_endian = "little"), "only little-endian machines are supported");
