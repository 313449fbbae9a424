//! What the server counts, in the format of Prometheus and OpenMetrics.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use rwkv_model::{SchedulerStats, SessionEvent};

use super::app::App;
use super::error::ApiError;
use crate::statistics::rss_bytes;

/// The type of what is sent.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What a request was, and how it was answered.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    /// The route, not the path: names of states are nobody's business here, and there are too many of them.
    path: String,
    status: u16,
}

/// What happens outside the scheduler.
#[derive(Debug)]
pub struct Metrics {
    requests: Family<Answered, Counter>,
    queued: Histogram,
    first_token: Histogram,
    between_tokens: Histogram,
}

impl Default for Metrics {
    fn default() -> Metrics {
        // A millisecond to two minutes.
        let seconds = || Histogram::new(exponential_buckets(0.001, 2.0, 18));
        Metrics {
            requests: Family::default(),
            queued: seconds(),
            first_token: seconds(),
            between_tokens: seconds(),
        }
    }
}

impl Metrics {
    /// Everything as text, with what the scheduler has counted.
    fn encode(&self, stats: Option<&SchedulerStats>) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::with_prefix("rwkv");
        let requests = self.requests.clone();
        registry.register("http_requests", "Requests by route and status", requests);
        for (name, help, histogram) in [
            ("queue", "Time that sessions waited", &self.queued),
            ("time_to_first_token", "Time from a request to its first token", &self.first_token),
            ("inter_token", "Time between two tokens of a session", &self.between_tokens),
        ] {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
        if let Some(stats) = stats {
            register_stats(&mut registry, stats);
        }
        if let Some(bytes) = rss_bytes() {
            gauge(&mut registry, "resident_memory", "Memory of the process", Unit::Bytes, bytes);
        }
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }
}

/// The times of a session, as its events come.
#[derive(Debug)]
pub struct Clock {
    metrics: Arc<Metrics>,
    submitted: Instant,
    last_token: Option<Instant>,
}

impl Clock {
    /// Starts when the session is submitted.
    pub fn start(metrics: &Arc<Metrics>) -> Clock {
        Clock { metrics: Arc::clone(metrics), submitted: Instant::now(), last_token: None }
    }

    /// Hears of an event when it happens.
    pub fn hear(&mut self, event: &SessionEvent) {
        match event {
            SessionEvent::Started { queued, .. } => self.metrics.queued.observe(queued.as_secs_f64()),
            SessionEvent::Token { .. } => {
                let now = Instant::now();
                match self.last_token.replace(now) {
                    Some(last) => self.metrics.between_tokens.observe((now - last).as_secs_f64()),
                    None => self.metrics.first_token.observe((now - self.submitted).as_secs_f64()),
                }
            }
            _ => {}
        }
    }
}

/// `GET /metrics`.
pub async fn metrics(State(app): State<App>) -> Result<Response, ApiError> {
    let stats = app.loaded().ok().map(|loaded| loaded.scheduler.stats());
    let text = app.metrics().encode(stats.as_ref()).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}

/// Counts a request once it is answered.
pub async fn count(State(app): State<App>, request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let response = next.run(request).await;
    let path = path.unwrap_or_else(|| "none".to_owned());
    let answered = Answered { path, status: response.status().as_u16() };
    app.metrics().requests.get_or_create(&answered).inc();
    response
}

fn register_stats(registry: &mut Registry, stats: &SchedulerStats) {
    let SchedulerStats { cache, memory, prefix, .. } = stats;
    for (name, help, value) in [
        ("sessions_queued", "Sessions that wait", stats.queued),
        ("sessions_running", "Sessions that run", stats.running),
        ("sessions_prefilling", "Sessions that read their prompt", stats.prefilling),
        ("sweep_rows", "Rows of the last sweep", stats.last_rows),
        ("prefix_cache_entries", "States kept for prompts that go on from them", prefix.entries),
        ("prefix_cache_files", "Those of them in files", prefix.files),
    ] {
        registry.register(name, help, gauge_of(value as u64));
    }
    for (name, help, value) in [
        ("sessions", "Sessions that were taken", stats.submitted),
        ("sessions_refused", "Sessions that were refused, because the queue was full", stats.refused),
        ("sessions_completed", "Sessions that came to their end", stats.completed),
        ("sessions_cancelled", "Sessions whose client went away", stats.cancelled),
        ("sessions_timed_out", "Sessions that ran out of time", stats.timed_out),
        ("sessions_failed", "Sessions that ended by an error", stats.failed),
        ("prompt_tokens", "Tokens of prompts that were read", stats.prompt_tokens),
        (
            "prompt_tokens_shared",
            "Tokens of prompts that another session read at that time",
            stats.shared_tokens,
        ),
        ("completion_tokens", "Tokens that were generated", stats.completion_tokens),
        ("prefix_cache_hits", "Sessions that went on from a kept state", prefix.hits),
        ("prefix_cache_misses", "Sessions that found none", prefix.misses),
        ("prefix_cache_tokens", "Tokens that were not read because of that", prefix.reused_tokens),
        ("prefix_cache_evictions", "States that made room for others", prefix.evicted),
        ("prefix_cache_restored", "States that were read from files", prefix.restored),
        ("sweeps", "Sweeps over the weights", stats.sweeps),
        ("weights_reads", "Reads of weights from the pack", cache.total.reads),
        ("weights_hits", "Groups of weights that were in memory to stay", cache.total.hits),
        ("weights_ready", "Groups of weights that were read ahead in time", cache.total.ready),
        ("weights_late", "Groups of weights that were read ahead, but waited for", cache.total.late),
        ("weights_absent", "Groups of weights that nobody had read ahead", cache.total.absent),
    ] {
        registry.register(name, help, counter_of(value));
    }
    registry.register_with_unit(
        "weights_read",
        "Bytes of weights read from the pack",
        Unit::Bytes,
        counter_of(cache.total.bytes + cache.row_bytes),
    );
    for (name, help, time) in [
        ("sweep", "Time in sweeps", stats.sweep_time),
        ("weights_wait", "Time that sweeps waited for weights", cache.total.wait),
    ] {
        registry.register_with_unit(name, help, Unit::Seconds, seconds_of(time));
    }
    for (name, help, bytes) in [
        ("weights_pinned", "Memory of weights that stay", memory.pinned_bytes),
        ("weights_ring", "Memory of weights that stream", memory.slots as u64 * memory.slot_bytes),
        ("kv_cache", "Memory of the keys and values of all sessions", stats.kv_bytes),
        ("prefix_cache", "Memory of states kept for prompts that go on from them", prefix.bytes),
        ("prefix_cache_file", "Files of states kept for prompts that go on from them", prefix.file_bytes),
    ] {
        gauge(registry, name, help, Unit::Bytes, bytes);
    }
}

fn gauge(registry: &mut Registry, name: &str, help: &str, unit: Unit, value: u64) {
    registry.register_with_unit(name, help, unit, gauge_of(value));
}

fn gauge_of(value: u64) -> Gauge {
    let gauge: Gauge = Gauge::default();
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
    gauge
}

fn counter_of(value: u64) -> Counter {
    let counter = Counter::default();
    counter.inc_by(value);
    counter
}

fn seconds_of(time: Duration) -> Counter<f64, AtomicU64> {
    let counter = Counter::<f64, AtomicU64>::default();
    counter.inc_by(time.as_secs_f64());
    counter
}
