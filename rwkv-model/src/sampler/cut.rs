//! Where the cuts fall.
//!
//! ```text
//! bins by distance from the largest logit, 1/8 each up to 16, and one for the rest
//! the bin in which the count or the sum of the weights reaches its goal; only that one is sorted
//! ```

use rwkv_kernels::{Isa, exp};

/// Bins of a reciprocal width, and the one for the rest.
const BINS: usize = 128;
const BINS_PER_UNIT: f32 = 8.0;

/// What is to be kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cuts {
    /// The likeliest tokens whose probabilities add up to this.
    pub share: Option<f64>,
    /// This many of the likeliest tokens.
    pub count: Option<usize>,
}

/// Finds the smallest logit that is kept.
#[derive(Debug, Clone, Default)]
pub(super) struct Cutter {
    weights: Vec<f32>,
    bins: Vec<u8>,
    counts: Vec<usize>,
    masses: Vec<f64>,
    bin: Vec<(f32, f32)>,
}

impl Cutter {
    /// The smallest logit that all cuts keep, of logits that are at most `max` and not NaN. Infinitely negative ones
    /// are never kept.
    pub fn least_kept(&mut self, isa: Isa, logits: &[f32], max: f32, cuts: Cuts) -> f32 {
        if cuts.share.is_none() && cuts.count.is_none() {
            return f32::MIN;
        }
        self.weights.clear();
        self.weights.extend(logits.iter().map(|&logit| logit - max));
        exp(isa, &mut self.weights);
        self.fill_bins(logits, max);
        let mut least = f32::MIN;
        if let Some(count) = cuts.count {
            least = least.max(self.reach(logits, count as f64, Goal::Count));
        }
        if let Some(share) = cuts.share {
            let goal = share * sum(&self.weights);
            least = least.max(self.reach(logits, goal, Goal::Mass));
        }
        least
    }

    fn fill_bins(&mut self, logits: &[f32], max: f32) {
        self.counts.clear();
        self.counts.resize(BINS, 0);
        self.masses.clear();
        self.masses.resize(BINS, 0.0);
        self.bins.clear();
        self.bins.extend(logits.iter().map(|&logit| bin_of(logit, max)));
        for (&bin, &weight) in self.bins.iter().zip(&self.weights) {
            let bin = usize::from(bin);
            if bin < BINS {
                self.counts[bin] += 1;
                self.masses[bin] += f64::from(weight);
            }
        }
    }

    /// The logit at which the descending logits reach a goal; if rounding or infinities keep them below it, the least.
    fn reach(&mut self, logits: &[f32], goal: f64, kind: Goal) -> f32 {
        let mut sum = 0.0;
        let mut at = BINS;
        for bin in 0..BINS {
            let next = match kind {
                Goal::Count => sum + self.counts[bin] as f64,
                Goal::Mass => sum + self.masses[bin],
            };
            if next >= goal {
                at = bin;
                break;
            }
            sum = next;
        }
        self.bin.clear();
        for (i, _) in self.bins.iter().enumerate().filter(|&(_, &bin)| usize::from(bin) == at) {
            if logits[i] > f32::NEG_INFINITY {
                self.bin.push((logits[i], self.weights[i]));
            }
        }
        self.bin.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        let reached = self.bin.iter().find(|entry| {
            sum += match kind {
                Goal::Count => 1.0,
                Goal::Mass => f64::from(entry.1),
            };
            sum >= goal
        });
        reached.or(self.bin.last()).map_or(f32::MIN, |&(logit, _)| logit)
    }
}

#[derive(Debug, Clone, Copy)]
enum Goal {
    Count,
    Mass,
}

/// The bin of a logit; `BINS` if it is in none.
fn bin_of(logit: f32, max: f32) -> u8 {
    ((max - logit) * BINS_PER_UNIT).min(BINS as f32) as u8
}

/// The sum in a fixed order that does not wait for itself.
pub(crate) fn sum(weights: &[f32]) -> f64 {
    let mut lanes = [0.0; 8];
    for part in weights.chunks(8) {
        for (lane, &weight) in lanes.iter_mut().zip(part) {
            *lane += f64::from(weight);
        }
    }
    lanes.iter().sum()
}

/// The largest number, and whether one is NaN.
pub(crate) fn largest(logits: &[f32]) -> (f32, bool) {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let mut nan = [false; 16];
    for part in logits.chunks(16) {
        for ((lane, nan), &logit) in lanes.iter_mut().zip(&mut nan).zip(part) {
            *lane = if logit > *lane { logit } else { *lane };
            *nan |= logit.is_nan();
        }
    }
    (lanes.into_iter().fold(f32::NEG_INFINITY, f32::max), nan.contains(&true))
}
