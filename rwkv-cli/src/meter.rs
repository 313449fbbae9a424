//! A text as a model writes it, above a line that says how the model's weights stream. For terminals only.
//!
//! ```text
//! and the Secretary of the Treasury has recommended that the
//! layers ██▒▓······  2.2 MiB of memory, 1.1 GB/s in 4096 reads, 402 tokens/s
//! ```
//!
//! A cell is a group of weights, or a few: `█` stays in memory, `▓` is in the ring, `▒` is being read, `·` is on the disk. The last
//! line of the text belongs to the bar, which is drawn anew all the time; a line that is full goes to stdout for good.

use std::fmt::{self, Write as _};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use console::{Term, measure_text_width};
use indicatif::{BinaryBytes, DecimalBytes, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use rwkv_model::Model;
use rwkv_model::cache::{Event, EventKind, Observer, ReadOutcome};

use crate::output::{Output, printable};

/// How often the line moves.
const TICK: Duration = Duration::from_millis(80);
/// The most cells of the line.
const CELLS: usize = 32;

/// Where a group is, the nearest to use last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    #[default]
    Disk,
    Reading,
    Ring,
    Pinned,
}

/// Takes note of what the cache does. Given to the model when it is opened.
#[derive(Debug, Default)]
pub struct Watch(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// By group.
    places: Vec<Place>,
    reads: u64,
    bytes: u64,
    tokens: u64,
    memory_bytes: u64,
    begin: Option<Instant>,
}

impl Watch {
    fn change(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Observer for Watch {
    fn event(&self, event: Event) {
        self.change(|seen| seen.take(event.group.index(), event.kind));
    }
}

impl Seen {
    fn take(&mut self, group: usize, kind: EventKind) {
        if self.places.len() <= group {
            self.places.resize(group + 1, Place::Disk);
        }
        let place = &mut self.places[group];
        match kind {
            _ if *place == Place::Pinned => {}
            EventKind::ReadBegin(_) => *place = Place::Reading,
            EventKind::ReadEnd(extent, ReadOutcome::Complete) => {
                *place = Place::Ring;
                self.reads += 1;
                self.bytes += extent.len;
            }
            // Its slot is free for the next one.
            EventKind::Release => *place = Place::Disk,
            _ => {}
        }
    }

    /// Counts from here on.
    fn begin(&mut self, model: &Model) {
        let groups = model.cache_stats().groups;
        self.places =
            groups.iter().map(|group| if group.pinned { Place::Pinned } else { Place::Disk }).collect();
        (self.reads, self.bytes, self.tokens) = (0, 0, 0);
        self.memory_bytes = model.memory_plan().memory_bytes();
        self.begin = Some(Instant::now());
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("layers ")?;
        for cell in self.places.chunks(self.places.len().div_ceil(CELLS).max(1)) {
            f.write_char(match cell.iter().max().copied().unwrap_or_default() {
                Place::Disk => '·',
                Place::Reading => '▒',
                Place::Ring => '▓',
                Place::Pinned => '█',
            })?;
        }
        let seconds = self.begin.map_or(0.0, |begin| begin.elapsed().as_secs_f64()).max(1e-3);
        let (memory, per_second) = (BinaryBytes(self.memory_bytes), self.bytes as f64 / seconds);
        write!(
            f,
            "  {memory} of memory, {}/s in {} reads, {:.0} tokens/s",
            DecimalBytes(per_second as u64),
            self.reads,
            self.tokens as f64 / seconds
        )
    }
}

/// A text on its way to a terminal, and the line below it.
#[derive(Debug)]
pub struct Meter {
    bar: ProgressBar,
    watch: Arc<Watch>,
    lines: Lines,
}

impl Meter {
    /// Begins at the start of a line.
    pub fn begin(model: &Model, watch: Arc<Watch>) -> Meter {
        watch.change(|seen| seen.begin(model));
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let line = Arc::clone(&watch);
        let meter = move |_: &ProgressState, out: &mut dyn fmt::Write| {
            // There is nobody to tell that a line cannot be drawn.
            line.change(|seen| {
                let _ = write!(out, "{seen}");
            });
        };
        let style = ProgressStyle::with_template("{msg}\n{meter:.dim}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.with_key("meter", meter));
        bar.enable_steady_tick(TICK);
        let (_, columns) = Term::stdout().size();
        Meter { bar, watch, lines: Lines::new(usize::from(columns)) }
    }

    /// Adds to the text what so many tokens have set free.
    pub fn text(&mut self, output: &mut Output, bytes: &[u8], tokens: u64) -> io::Result<()> {
        self.watch.change(|seen| seen.tokens += tokens);
        let full = self.lines.push(bytes);
        if !full.is_empty() {
            self.bar.suspend(|| output.text(full.as_bytes()))?;
        }
        self.bar.set_message(self.lines.last().to_owned());
        Ok(())
    }

    /// Takes the line away, and leaves the text.
    pub fn end(mut self, output: &mut Output) -> io::Result<()> {
        self.bar.finish_and_clear();
        output.text(self.lines.rest().as_bytes())
    }
}

/// A text in lines that a terminal need not wrap.
#[derive(Debug)]
struct Lines {
    columns: usize,
    /// The line that is not full.
    line: String,
    /// The begin of a character.
    incomplete: Vec<u8>,
}

impl Lines {
    fn new(columns: usize) -> Lines {
        Lines { columns: columns.max(20), line: String::new(), incomplete: Vec::new() }
    }

    /// Adds text. Returns the lines that are full by now, each with its line feed.
    fn push(&mut self, bytes: &[u8]) -> String {
        self.incomplete.extend_from_slice(bytes);
        let len = complete_len(&self.incomplete);
        let text: Vec<u8> = self.incomplete.drain(..len).collect();
        let mut full = String::new();
        for char in String::from_utf8_lossy(&printable(&text)).chars() {
            match char {
                '\n' => {
                    full.push_str(&std::mem::take(&mut self.line));
                    full.push('\n');
                }
                '\t' => self.line.push(' '),
                char => self.line.push(char),
            }
            if measure_text_width(&self.line) >= self.columns {
                // Behind the last blank, or where the line is full.
                let end = self.line.len() - char.len_utf8();
                let at = self.line.rfind(' ').map_or(end, |blank| blank + 1);
                let rest = self.line.split_off(at);
                full.push_str(std::mem::replace(&mut self.line, rest).trim_end());
                full.push('\n');
            }
        }
        full
    }

    fn last(&self) -> &str {
        &self.line
    }

    fn rest(&mut self) -> String {
        let incomplete = std::mem::take(&mut self.incomplete);
        std::mem::take(&mut self.line) + &String::from_utf8_lossy(&incomplete)
    }
}

/// How much of the text is there without a character of which the end is missing.
fn complete_len(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        // What is wrong will not become right.
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use rwkv_model::cache::Extent;

    use super::*;

    #[test]
    fn lines_end_at_blanks() {
        let mut lines = Lines::new(20);
        let mut full = String::new();
        for piece in
            ["The state of ", "the Uni", "on is stro", "ng.\nIt ", "is", " verystrongindeedverystrong"]
        {
            full += &lines.push(piece.as_bytes());
        }
        assert_eq!(full, "The state of the\nUnion is strong.\nIt is\nverystrongindeedver\n");
        assert_eq!(lines.rest(), "ystrong");
    }

    #[test]
    fn a_character_may_come_in_pieces() {
        let mut lines = Lines::new(20);
        assert_eq!(lines.push(b"caf\xc3"), "");
        assert_eq!(lines.last(), "caf");
        assert_eq!(lines.push(b"\xa9\n\xff"), "café\n");
        assert_eq!(lines.rest(), "\u{fffd}");
        lines.push(b"\xe2\x82");
        assert_eq!(lines.rest(), "\u{fffd}");
    }

    #[test]
    fn groups_pass_through_the_ring() {
        let mut seen = Seen { places: vec![Place::Pinned, Place::Disk, Place::Disk], ..Seen::default() };
        let extent = Extent { offset: 0, len: 4096 };
        let line = |seen: &Seen| seen.to_string().split_whitespace().nth(1).map(str::to_owned);
        assert_eq!(line(&seen).as_deref(), Some("█··"));
        seen.take(1, EventKind::ReadBegin(extent));
        assert_eq!(line(&seen).as_deref(), Some("█▒·"));
        seen.take(1, EventKind::ReadEnd(extent, ReadOutcome::Complete));
        seen.take(0, EventKind::Release);
        assert_eq!(line(&seen).as_deref(), Some("█▓·"));
        seen.take(1, EventKind::Release);
        assert_eq!(line(&seen).as_deref(), Some("█··"));
        assert_eq!((seen.reads, seen.bytes), (1, 4096));
        seen.places = vec![Place::Disk; 100];
        assert_eq!(line(&seen).map(|cells| cells.chars().count()), Some(25));
    }
}
