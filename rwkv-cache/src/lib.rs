#![doc = include_str!("../README.md")]
//!
//! # Where to find what
//!
//! - [`source`]: where the bytes come from; [`Source`] and the files
//! - [`plan()`]: what stays in memory and what streams, a pure function
//! - [`Cache`], [`Lease`]: the running cache
//! - [`CacheStats`]: the counters; [`Observer`]: every event as it happens
//!
//! The algorithm of the plan is explained at the head of `plan.rs`, that of the ring at the head of
//! `ring.rs`.
#![deny(missing_docs)]

mod cache;
mod depth;
mod error;
mod event;
mod group;
mod lease;
mod memory;
mod options;
mod plan;
mod reader;
mod ring;
mod sequence;
mod shared;
pub mod source;
mod stats;

pub use cache::Cache;
pub use error::{CacheError, ErrorKind};
pub use event::{Event, EventKind, Observer, ReadOutcome};
pub use group::{Extent, Group, GroupId};
pub use lease::Lease;
pub use options::{CacheOptions, ReadAhead, VerifyReads};
pub use plan::{Plan, PlanError, RingShape, plan, plan_with};
pub use source::Source;
pub use stats::{CacheStats, Counters, Found, GroupStats};
