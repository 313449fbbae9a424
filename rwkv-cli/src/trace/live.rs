//! A table that grows as the model works: a line for each block of each sweep.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rwkv_model::cache::Found;
use rwkv_model::{Block, Stage, StageKind, SweepRows};

use super::Read;
use crate::console::Console;

/// Shows a sweep block by block.
pub struct Live {
    console: Console,
    sweeps: u64,
    sweep: Sweep,
    line: Line,
    /// Bytes of groups that were read since they were last found, and when.
    reads: HashMap<usize, Reading>,
}

/// What was read of a group.
#[derive(Clone, Copy)]
struct Reading {
    bytes: u64,
    begin: Instant,
    end: Instant,
}

/// The sums of a sweep.
#[derive(Default)]
struct Sweep {
    begin: Option<Instant>,
    waited: Duration,
    bytes: u64,
}

/// What a line is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Block(Block),
    /// What comes after the last block.
    Head,
}

/// A line, while its stages come in.
#[derive(Default)]
struct Line {
    part: Option<Part>,
    found: Vec<Found>,
    bytes: u64,
    read: Duration,
    waited: Duration,
    /// Time mix or attention, or the head.
    mix: Duration,
    channel_mix: Duration,
    saved: Duration,
    /// Norms and bindings: they count with the product that follows.
    before: Duration,
}

impl Live {
    pub fn new(console: Console) -> Live {
        Live { console, sweeps: 0, sweep: Sweep::default(), line: Line::default(), reads: HashMap::new() }
    }

    pub fn sweep_begin(&mut self, at: Instant, sweep: &SweepRows<'_>) {
        self.line = Line::default();
        self.sweep = Sweep { begin: Some(at), ..Sweep::default() };
        let (number, rows) = (self.sweeps, sweep.rows);
        self.sweeps += 1;
        let logits = if sweep.logit_rows == 0 { ", no logits" } else { "" };
        self.console.note(format_args!("sweep {number}, rows: {rows}{logits}"));
        self.console.note(format_args!(
            "{:<14}{:<22}{:>19}{:>11}{:>11}{:>13}{:>10}",
            "", "found", "read", "wait", "time mix", "channel mix", "save"
        ));
    }

    pub fn sweep_end(&mut self, at: Instant) {
        self.end_line();
        let Sweep { begin, waited, bytes } = std::mem::take(&mut self.sweep);
        let time = begin.map_or(Duration::ZERO, |begin| at.saturating_duration_since(begin));
        let share = 100.0 * waited.as_secs_f64() / time.as_secs_f64().max(1e-9);
        self.console.note(format_args!(
            "{} in all, {share:.0} % of it waited; {:.1} MB had been read",
            millis(time),
            bytes as f64 / 1e6
        ));
    }

    pub fn stage(&mut self, stage: &Stage<'_>) {
        let part = match (stage.block, stage.kind) {
            (Some(block), _) => Some(Part::Block(block)),
            (None, StageKind::Embed) => None,
            (None, _) => Some(Part::Head),
        };
        if part != self.line.part {
            self.end_line();
            self.line.part = part;
        }
        let time = stage.end.saturating_duration_since(stage.begin);
        let line = &mut self.line;
        let is_product = matches!(
            stage.kind,
            StageKind::TimeMix | StageKind::Attention | StageKind::Head | StageKind::ChannelMix
        );
        let before = if is_product { std::mem::take(&mut line.before) } else { Duration::ZERO };
        match stage.kind {
            StageKind::Find(found) => line.found.push(found),
            StageKind::Wait => line.waited += time,
            StageKind::TimeMix | StageKind::Attention | StageKind::Head => line.mix += time + before,
            StageKind::ChannelMix => line.channel_mix += time + before,
            StageKind::SaveState => line.saved += time,
            StageKind::Norm | StageKind::Bind => line.before += time,
            _ => {}
        }
        // What was read of it came before the lease.
        if let (StageKind::Bind, Some(group)) = (stage.kind, stage.group)
            && let Some(Reading { bytes, begin, end }) = self.reads.remove(&group.id.index())
        {
            line.bytes += bytes;
            line.read += end.saturating_duration_since(begin);
        }
    }

    pub fn read(&mut self, read: &Read<'_>) {
        let Read { group, extent, begin, end, .. } = *read;
        let reading = self.reads.entry(group.index()).or_insert(Reading { bytes: 0, begin, end });
        reading.bytes += extent.len;
        reading.begin = reading.begin.min(begin);
        reading.end = reading.end.max(end);
    }

    pub fn token(&mut self, text: &[u8]) {
        self.console.note(format_args!("token {:?}", String::from_utf8_lossy(text)));
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        self.sweep.waited += line.waited;
        self.sweep.bytes += line.bytes;
        let Some(part) = line.part else { return };
        let name = match part {
            Part::Block(block) => name(block),
            Part::Head => "head".to_owned(),
        };
        if line.found.is_empty() {
            // A sweep without logits ends with its last block.
            return;
        }
        let read = match line.bytes {
            0 => "-".to_owned(),
            bytes => format!("{:.1} MB {}", bytes as f64 / 1e6, millis(line.read)),
        };
        let rest = match part {
            Part::Block(_) => format!("{:>13}{:>10}", millis(line.channel_mix), millis(line.saved)),
            Part::Head => String::new(),
        };
        self.console.note(format_args!(
            "{name:<14}{:<22}{read:>19}{:>11}{:>11}{rest}",
            all_found(&line.found),
            millis(line.waited),
            millis(line.mix)
        ));
    }
}

/// The name of a block.
pub fn name(block: Block) -> String {
    match block {
        Block::Rwkv(number) => format!("block {number}"),
        Block::Attention(number) => format!("attention {number}"),
    }
}

/// A word for what was found.
pub fn found(found: Found) -> &'static str {
    match found {
        Found::Pinned => "pinned",
        Found::Ready => "ready",
        Found::Late => "late",
        Found::Absent => "absent",
    }
}

/// Words for what was found, equal ones that follow one another counted if they are many.
fn all_found(all: &[Found]) -> String {
    let runs = all.chunk_by(|a, b| a == b);
    let words = runs.map(|run| match (all.len(), run.len(), found(run[0])) {
        (..=3, count, word) => vec![word; count].join(" "),
        (_, 1, word) => word.to_owned(),
        (_, count, word) => format!("{count} {word}"),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", 1e3 * time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_in_few_words() {
        use Found::{Absent, Late, Pinned, Ready};
        for (all, words) in [
            (&[Ready, Ready, Late][..], "ready ready late"),
            (&[Pinned], "pinned"),
            (&[Absent, Ready, Ready, Ready, Late], "absent 3 ready late"),
            (&[], ""),
        ] {
            assert_eq!(all_found(all), words);
        }
    }
}
