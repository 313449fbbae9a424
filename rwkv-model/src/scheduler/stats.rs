use std::time::Duration;

use rwkv_cache::CacheStats;

use super::prefix::PrefixStats;
use crate::budget::MemoryPlan;
use crate::counters::StepCounters;

/// What a scheduler does, and has done so far.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SchedulerStats {
    /// Requests that wait.
    pub queued: usize,
    /// Sessions that run.
    pub running: usize,
    /// Those of them that read their prompt.
    pub prefilling: usize,
    /// Requests that were taken.
    pub submitted: u64,
    /// Requests that were refused because the queue was full.
    pub refused: u64,
    /// Sessions that ended by themselves: by a stop token, a stop string, or their limit of tokens.
    pub completed: u64,
    /// Sessions that were cancelled, by their ticket, their sink, or a shutdown.
    pub cancelled: u64,
    /// Sessions that ran out of time, in the queue or after it.
    pub timed_out: u64,
    /// Sessions that ended by an error.
    pub failed: u64,
    /// Tokens of prompts that were fed.
    pub prompt_tokens: u64,
    /// Tokens of prompts that were not fed, because another session read the same ones at that time.
    pub shared_tokens: u64,
    /// Tokens that were generated.
    pub completion_tokens: u64,
    /// Sweeps.
    pub sweeps: u64,
    /// Time in sweeps.
    pub sweep_time: Duration,
    /// Rows of the last sweep.
    pub last_rows: usize,
    /// How long the last sweep took.
    pub last_sweep_time: Duration,
    /// The prefix cache.
    pub prefix: PrefixStats,
    /// What the model's steps have done.
    pub steps: StepCounters,
    /// The weights' cache.
    pub cache: CacheStats,
    /// What is where in memory.
    pub memory: MemoryPlan,
    /// Bytes of the key/value caches of all sessions.
    pub kv_bytes: u64,
    /// Whether requests are still taken.
    pub is_open: bool,
}
