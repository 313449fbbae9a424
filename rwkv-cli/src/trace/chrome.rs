//! A trace in the JSON that chrome://tracing and Perfetto read: "Trace Event Format".

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use rwkv_model::pack::NewFile;
use rwkv_model::{Block, Stage, StageKind, SweepRows};
use serde::Serialize;
use serde_json::{Value, json};

use super::Read;
use crate::session::unwritable;

/// The one process.
const PROCESS: u32 = 1;
/// The thread that drives the model. Those that read come after it.
const MODEL: usize = 0;

/// A file that is written beside its name, and gets that in the end.
pub struct ChromeTrace {
    path: PathBuf,
    out: BufWriter<NewFile>,
    start: Instant,
    /// The first error. Nothing is written after it.
    failed: Option<std::io::Error>,
    /// Threads that the file names already.
    named: usize,
    is_first: bool,
    sweeps: u64,
    sweep: Option<(Instant, Value)>,
    block: Option<(Block, Instant, Instant)>,
}

/// An entry of the file. Times are in microseconds.
#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    cat: &'a str,
    ph: &'a str,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    tid: usize,
    args: Value,
}

impl ChromeTrace {
    /// Begins a trace.
    ///
    /// # Errors
    /// No file can be made beside `path`.
    pub fn create(path: &Path) -> Result<ChromeTrace> {
        let file = NewFile::create(path, "trace").map_err(|error| unwritable("--trace-file", path, error))?;
        let mut trace = ChromeTrace {
            path: path.to_owned(),
            out: BufWriter::with_capacity(1 << 16, file),
            start: Instant::now(),
            failed: None,
            named: 0,
            is_first: true,
            sweeps: 0,
            sweep: None,
            block: None,
        };
        trace.raw(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
        trace.describe("process_name", MODEL, "rwkv");
        trace.name_thread(MODEL);
        Ok(trace)
    }

    pub fn sweep_begin(&mut self, at: Instant, sweep: &SweepRows<'_>) {
        let args = json!({ "sweep": self.sweeps, "rows": sweep.rows, "logit_rows": sweep.logit_rows });
        self.sweeps += 1;
        self.sweep = Some((at, args));
        self.block = None;
    }

    pub fn sweep_end(&mut self, at: Instant) {
        self.end_block();
        if let Some((begin, args)) = self.sweep.take() {
            self.slice("sweep", "sweep", begin, at, MODEL, args);
        }
    }

    pub fn stage(&mut self, stage: &Stage<'_>) {
        match (&mut self.block, stage.block) {
            (Some((block, _, end)), Some(now)) if *block == now => *end = stage.end,
            (_, now) => {
                self.end_block();
                self.block = now.map(|block| (block, stage.begin, stage.end));
            }
        }
        let mut args = serde_json::Map::new();
        if let Some(group) = stage.group {
            args.insert("group".into(), group.name.into());
            args.insert("bytes".into(), group.bytes.into());
        }
        if let StageKind::Find(found) = stage.kind {
            args.insert("found".into(), super::live::found(found).into());
        }
        self.slice(stage.kind.name(), "stage", stage.begin, stage.end, MODEL, args.into());
    }

    pub fn read(&mut self, read: &Read<'_>) {
        let Read { group, name, extent, begin, end, reader } = *read;
        let thread = MODEL + 1 + reader;
        self.name_thread(thread);
        let name = if name.is_empty() { format!("read group {group}") } else { format!("read {name}") };
        let args = json!({ "offset": extent.offset, "bytes": extent.len });
        self.slice(&name, "read", begin, end, thread, args);
    }

    pub fn token(&mut self, at: Instant, text: &[u8]) {
        let args = json!({ "text": String::from_utf8_lossy(text) });
        let ts = self.micros(at);
        self.entry(&Entry {
            name: "token",
            cat: "token",
            ph: "i",
            ts,
            dur: None,
            pid: PROCESS,
            tid: MODEL,
            args,
        });
    }

    /// Completes the file.
    pub fn finish(mut self) -> Result<()> {
        let context = format!("--trace-file {}: cannot be written", self.path.display());
        self.end_block();
        self.raw(b"\n]}\n");
        if let Some(error) = self.failed {
            return Err(error).context(context);
        }
        let file = self.out.into_inner().map_err(|error| error.into_error()).context(context.clone())?;
        file.commit().context(context)
    }

    /// A slice around the stages of a block.
    fn end_block(&mut self) {
        if let Some((block, begin, end)) = self.block.take() {
            self.slice(&super::live::name(block), "block", begin, end, MODEL, json!({}));
        }
    }

    fn name_thread(&mut self, thread: usize) {
        while self.named <= thread {
            let name = match self.named {
                MODEL => "model".to_owned(),
                reader => format!("reader {}", reader - MODEL),
            };
            self.describe("thread_name", self.named, &name);
            self.named += 1;
        }
    }

    fn describe(&mut self, what: &str, thread: usize, name: &str) {
        let args = json!({ "name": name });
        self.entry(&Entry {
            name: what,
            cat: "",
            ph: "M",
            ts: 0.0,
            dur: None,
            pid: PROCESS,
            tid: thread,
            args,
        });
    }

    fn slice(&mut self, name: &str, cat: &str, begin: Instant, end: Instant, thread: usize, args: Value) {
        let (ts, dur) = (self.micros(begin), end.saturating_duration_since(begin).as_nanos() as f64 / 1e3);
        self.entry(&Entry { name, cat, ph: "X", ts, dur: Some(dur), pid: PROCESS, tid: thread, args });
    }

    fn micros(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.start).as_nanos() as f64 / 1e3
    }

    fn entry(&mut self, entry: &Entry<'_>) {
        let separator: &[u8] = if std::mem::take(&mut self.is_first) { b"" } else { b",\n" };
        self.raw(separator);
        if self.failed.is_none()
            && let Err(error) = serde_json::to_writer(&mut self.out, entry)
        {
            self.failed = Some(error.into());
        }
    }

    fn raw(&mut self, bytes: &[u8]) {
        if self.failed.is_none()
            && let Err(error) = self.out.write_all(bytes)
        {
            self.failed = Some(error);
        }
    }
}
