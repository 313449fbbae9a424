//! The course of a measurement.

use std::time::{Duration, Instant};

use anyhow::Result;
use rwkv_model::{Feed, Logits, Model, State};

use crate::machine::{Disk, Limits};
use crate::progress::Progress;
use crate::statistics::{Counted, Statistics, peak_rss_bytes};

/// A repetition of the decode has at least so many tokens, and takes at least so long.
const DECODE_TOKENS: u32 = 8;
const DECODE_TIME: Duration = Duration::from_secs(1);
/// How long the disk is measured, before and after each decode.
const DISK_TIME: Duration = Duration::from_millis(500);

/// What is measured.
#[derive(Debug)]
pub struct Plan {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens that are taken in before decoding.
    pub context: usize,
    /// Repetitions.
    pub repeat: u32,
}

/// Medians of repetitions, each with a limit that was measured just before and after it: where others share the machine, both drift.
#[derive(Debug, Clone, Copy)]
pub struct Beside {
    /// What was measured, per second.
    pub rate: f64,
    /// What the machine could do, per second.
    pub limit: f64,
    /// A repetition's rate divided by its limit.
    pub ratio: f64,
}

/// The repetitions of [`Beside`].
#[derive(Default)]
struct Repetitions {
    rates: Vec<f64>,
    limits: Vec<f64>,
    ratios: Vec<f64>,
}

impl Repetitions {
    fn push(&mut self, before: f64, rate: f64, after: f64) {
        self.rates.push(rate);
        self.limits.extend([before, after]);
        self.ratios.push(2.0 * rate / (before + after));
    }

    fn medians(self) -> Beside {
        Beside { rate: median(self.rates), limit: median(self.limits), ratio: median(self.ratios) }
    }
}

/// What came out.
#[derive(Debug)]
pub struct Measured {
    /// Tokens, beside bytes that memory gives.
    pub decode: Beside,
    /// Tokens, beside multiply-adds of 8-bit integers.
    pub prefill: Beside,
    /// Bytes of the keys and values of the session, when decoding began.
    pub kv_bytes: u64,
    /// The share of the value matrices' inputs that were zero while decoding.
    pub skipped_inputs: f64,
    /// The share of all weights' bytes that were skipped while decoding.
    pub skipped_bytes: f64,
    /// What decoding read and waited for.
    pub reading: Counted,
    /// The most memory of the process, without the buffers that memory and disk are measured with.
    pub peak_rss_bytes: Option<u64>,
    /// Bytes that decoding read, beside plain reads, if weights stream.
    pub disk: Option<Beside>,
    /// Multiply-adds of f32 per second, the median.
    pub f32: f64,
}

/// Measures a model and the machine, in turns.
pub fn measure(
    model: &mut Model,
    limits: &mut Limits,
    mut disk: Option<&mut Disk>,
    plan: &Plan,
    progress: &Progress,
) -> Result<Measured> {
    let mut tokens = Tokens::new(model.config().vocab);
    let mut state = model.new_state();
    progress.message("warming up");
    let prompt: Vec<u32> = tokens.by_ref().take(plan.prompt_tokens).collect();
    prefill(model, &prompt)?;
    let context: Vec<u32> = tokens.by_ref().take(plan.context).collect();
    for part in context.chunks(model.chunk_rows()) {
        progress.message(format!("taking in {} tokens, {} done", context.len(), state.tokens()));
        model.step(&mut [Feed::new(&mut state, part, Logits::None)])?;
    }
    let kv_bytes = model.kv_bytes();
    decode(model, &mut state, &mut tokens, DECODE_TIME / 4)?;
    let (mut decodes, mut prefills, mut disks) =
        (Repetitions::default(), Repetitions::default(), Repetitions::default());
    let before = model.counters();
    let mut reading = Counted::default();
    for round in 1..=plan.repeat {
        progress.message(format!("decoding, {round} of {}", plan.repeat));
        let memory_before = limits.probe_memory();
        let disk_before = disk.as_deref_mut().map(|disk| disk.measure(DISK_TIME)).transpose()?;
        if disk_before.is_some() {
            // The disk stood still for the ring meanwhile: a token fills it again.
            decode(model, &mut state, tokens.by_ref().take(1), Duration::ZERO)?;
        }
        let statistics = Statistics::begin(model);
        let decoded = decode(model, &mut state, &mut tokens, DECODE_TIME)?;
        let counted = statistics.counted(model);
        reading += counted;
        let disk_after = disk.as_deref_mut().map(|disk| disk.measure(DISK_TIME)).transpose()?;
        if let (Some(before), Some(after)) = (disk_before, disk_after) {
            disks.push(before, counted.read_rate(), after);
        }
        decodes.push(memory_before, decoded, limits.probe_memory());
    }
    let after = model.counters();
    let mut f32_peaks = Vec::new();
    for round in 1..=plan.repeat {
        progress.message(format!("reading a prompt, {round} of {}", plan.repeat));
        let int8_before = limits.probe_int8();
        let prefilled = prefill(model, &prompt)?;
        prefills.push(int8_before, prefilled, limits.probe_int8());
        f32_peaks.push(limits.probe_f32());
    }
    let beside = limits.buffer_bytes() + disk.map_or(0, |disk| disk.room_bytes());
    let peak_rss_bytes = peak_rss_bytes().map(|bytes| bytes.saturating_sub(beside));
    let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
    Ok(Measured {
        decode: decodes.medians(),
        prefill: prefills.medians(),
        kv_bytes,
        skipped_inputs: share(
            after.value_inputs_skipped - before.value_inputs_skipped,
            after.value_inputs - before.value_inputs,
        ),
        skipped_bytes: share(
            after.skipped_bytes - before.skipped_bytes,
            after.dense_bytes - before.dense_bytes,
        ),
        reading,
        peak_rss_bytes,
        disk: (!disks.rates.is_empty()).then(|| disks.medians()),
        f32: median(f32_peaks),
    })
}

/// Feeds tokens one by one; tokens per second.
fn decode(
    model: &mut Model,
    state: &mut State,
    tokens: impl IntoIterator<Item = u32>,
    time: Duration,
) -> Result<f64> {
    let begin = Instant::now();
    let mut count = 0;
    for token in tokens {
        model.step(&mut [Feed::new(state, &[token], Logits::Last)])?;
        count += 1;
        if count >= DECODE_TOKENS && begin.elapsed() >= time {
            break;
        }
    }
    Ok(f64::from(count) / begin.elapsed().as_secs_f64())
}

/// Feeds a prompt, logits of the last token included; tokens per second.
fn prefill(model: &mut Model, prompt: &[u32]) -> Result<f64> {
    let mut state = model.new_state();
    let begin = Instant::now();
    model.step(&mut [Feed::new(&mut state, prompt, Logits::Last)])?;
    Ok(prompt.len() as f64 / begin.elapsed().as_secs_f64())
}

/// The median.
///
/// # Panics
/// There is no value.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

/// An endless text without repetition, so that inputs and skipped columns differ from token to token.
pub struct Tokens {
    word: u64,
    vocab: u64,
}

impl Tokens {
    /// Tokens below `vocab`.
    pub fn new(vocab: usize) -> Tokens {
        Tokens { word: 1, vocab: vocab as u64 }
    }
}

impl Iterator for Tokens {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        // The multiplier is Knuth's, for linear congruences modulo 2^64.
        self.word = self.word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some(((self.word >> 33) % self.vocab) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(vec![7.0]), 7.0);
    }

    #[test]
    fn tokens_are_in_the_vocabulary_and_differ() {
        let tokens: Vec<u32> = Tokens::new(100).take(1000).collect();
        assert!(tokens.iter().all(|&token| token < 100));
        let mut distinct = tokens.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() > 90, "{} of 100", distinct.len());
    }
}
