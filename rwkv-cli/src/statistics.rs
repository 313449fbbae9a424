//! What a run has cost: what was read, what was waited for, what it took of memory.

use std::fs;
use std::ops::AddAssign;
use std::time::{Duration, Instant};

use indicatif::{BinaryBytes, DecimalBytes};
use rwkv_model::cache::Counters;
use rwkv_model::{Model, Residency};

use crate::console::Console;

/// Counts from the moment at which the model is loaded.
#[derive(Debug)]
pub struct Statistics {
    begin: Instant,
    counters: Counters,
    row_bytes: u64,
    tokens: u64,
}

/// What was counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    /// What happened to groups of weights.
    pub counters: Counters,
    /// Bytes of groups and rows that were read.
    pub read_bytes: u64,
    /// Tokens that were fed.
    pub tokens: u64,
    /// How long it took.
    pub time: Duration,
}

impl Counted {
    /// Bytes that were read per second.
    pub fn read_rate(&self) -> f64 {
        self.read_bytes as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

impl AddAssign for Counted {
    fn add_assign(&mut self, other: Counted) {
        self.counters += other.counters;
        self.read_bytes += other.read_bytes;
        self.tokens += other.tokens;
        self.time += other.time;
    }
}

impl Statistics {
    /// Begins.
    pub fn begin(model: &Model) -> Statistics {
        let stats = model.cache_stats();
        Statistics {
            begin: Instant::now(),
            counters: stats.total,
            row_bytes: stats.row_bytes,
            tokens: model.counters().tokens,
        }
    }

    /// What has happened since then.
    pub fn counted(&self, model: &Model) -> Counted {
        let stats = model.cache_stats();
        let counters = stats.total - self.counters;
        Counted {
            counters,
            read_bytes: counters.bytes + stats.row_bytes - self.row_bytes,
            tokens: model.counters().tokens - self.tokens,
            time: self.begin.elapsed(),
        }
    }

    /// Says it in a small table.
    pub fn print(&self, model: &Model, console: Console) {
        let Counted { counters, read_bytes, tokens, time } = self.counted(model);
        let stats = model.cache_stats();
        let plan = model.memory_plan();
        let line = |what: &str, text: String| console.note(format_args!("{what:<11} {text}"));
        let weights = match plan.residency {
            Residency::Stream { budget_bytes } => format!("streamed within {}", BinaryBytes(budget_bytes)),
            Residency::Mapped => "mapped: the system keeps what it likes".to_owned(),
            _ => "in memory".to_owned(),
        };
        line("weights", weights);
        // Why matters where it goes on while the model runs.
        let io = match plan.residency {
            Residency::Stream { .. } => format!("{} ({})", stats.source.mode, stats.source.reason),
            _ => stats.source.mode.to_string(),
        };
        line("i/o", io);
        let seconds = time.as_secs_f64().max(1e-9);
        let per_token = read_bytes.checked_div(tokens).unwrap_or(0);
        line(
            "read",
            format!(
                "{} in {} reads, {:.2} GB/s, {} for each of {tokens} tokens",
                DecimalBytes(read_bytes),
                counters.reads + stats.row_reads,
                read_bytes as f64 / seconds / 1e9,
                DecimalBytes(per_token),
            ),
        );
        line(
            "found",
            format!(
                "{} in memory, {} read ahead, {} late, {} absent",
                counters.hits, counters.ready, counters.late, counters.absent
            ),
        );
        line("waited", format!("{:.0} % of {seconds:.1} s", 100.0 * wait_share(&counters, time)));
        line(
            "memory",
            format!(
                "{} pinned ({} of {} groups), {} slots of {}, {} rows in a sweep",
                BinaryBytes(plan.pinned_bytes),
                plan.pinned_groups,
                plan.swept_groups,
                plan.slots,
                BinaryBytes(plan.slot_bytes),
                plan.chunk_rows,
            ),
        );
        if let Some(peak) = peak_rss_bytes() {
            line("peak RSS", BinaryBytes(peak).to_string());
        }
    }
}

/// The share of a time that was spent waiting for weights.
pub fn wait_share(counters: &Counters, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { counters.wait.as_secs_f64() / time.as_secs_f64() }
}

/// Lets the peak begin anew, where the system can.
pub fn forget_peak_rss() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// The most memory that this process has had at once, where the system says it.
pub fn peak_rss_bytes() -> Option<u64> {
    status_bytes("VmHWM:")
}

/// The memory that this process has, where the system says it.
pub fn rss_bytes() -> Option<u64> {
    status_bytes("VmRSS:")
}

fn status_bytes(key: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kibibytes.checked_mul(1024)
}
