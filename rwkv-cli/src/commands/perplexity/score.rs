//! From logits to figures: how well one model predicts a text, and how far its predictions are from another's.
//!
//! Everything is added up in the order of the tokens, in double precision, so that no split of the text into chunks and no
//! number of threads changes a figure.

use std::f64::consts::LN_2;

/// What a row of logits says of the token that came after it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// The negative natural logarithm of that token's probability.
    pub nats: f64,
    /// The same row held against the reference's.
    pub against: Option<Comparison>,
}

/// Two rows of logits for the same place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// [`Score::nats`] of the reference.
    pub nats: f64,
    /// Kullback-Leibler divergence of the row from the reference, in nats.
    pub divergence: f64,
    /// Whether both have the same likeliest token.
    pub same_top: bool,
}

impl Score {
    /// Scores a row of logits, and compares it with the reference's row.
    ///
    /// # Panics
    /// `target` is no column, or the rows differ in length.
    pub fn of(row: &[f32], reference: Option<&[f32]>, target: u32) -> Score {
        let total = log_total(row);
        let nats_of = |row: &[f32], total: f64| total - f64::from(row[target as usize]);
        let compare = |reference: &[f32]| {
            assert_eq!(row.len(), reference.len(), "both models have the same tokens");
            let reference_total = log_total(reference);
            let terms = row.iter().zip(reference).map(|(&ours, &theirs)| {
                let theirs = f64::from(theirs) - reference_total;
                theirs.exp() * (theirs - (f64::from(ours) - total))
            });
            Comparison {
                nats: nats_of(reference, reference_total),
                // Rounding may leave the sum for equal rows below zero.
                divergence: terms.sum::<f64>().max(0.0),
                same_top: top(row) == top(reference),
            }
        };
        Score { nats: nats_of(row, total), against: reference.map(compare) }
    }
}

/// The logarithm of the sum of the exponentials.
fn log_total(row: &[f32]) -> f64 {
    let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + row.iter().map(|&logit| (f64::from(logit) - max).exp()).sum::<f64>().ln()
}

/// The likeliest token, the first of equals.
fn top(row: &[f32]) -> usize {
    (1..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}

/// How well a text was predicted.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Fit {
    /// Tokens scored.
    pub tokens: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The sum of their [`Score::nats`].
    pub nats: f64,
}

impl Fit {
    /// Adds a token.
    pub fn add(&mut self, nats: f64, bytes: usize) {
        self.tokens += 1;
        self.bytes += bytes as u64;
        self.nats += nats;
    }

    /// What a byte of the text costs an ideal coder that has the model.
    pub fn bits_per_byte(&self) -> f64 {
        self.nats / LN_2 / self.bytes as f64
    }

    /// Among how many equally likely tokens the model would have been as unsure.
    pub fn perplexity(&self) -> f64 {
        (self.nats / self.tokens as f64).exp()
    }
}

/// How far the predictions for a text are from a reference's.
#[derive(Debug, Clone)]
pub struct Distance {
    /// How well the reference predicted the text.
    pub reference: Fit,
    same_top: u64,
    divergence: f64,
    largest: f64,
    /// How often a divergence occurred, by the upper 16 bits of it as an f32: sign, exponent, 7 bits of fraction. So the
    /// memory does not grow with the text, and what is read off is known within a 256th part.
    occurrences: Vec<u64>,
    positions: Vec<Positions>,
}

/// Divergence at a range of positions in the text.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Positions {
    /// Tokens scored there.
    pub tokens: u64,
    divergence: f64,
}

impl Positions {
    /// The first range is 0..16, each that follows ends at twice the number.
    const FIRST: u64 = 16;

    fn index(position: u64) -> usize {
        (position / Positions::FIRST).checked_ilog2().map_or(0, |log| log as usize + 1)
    }

    /// The first and the last position of a range.
    pub fn bounds(index: usize) -> (u64, u64) {
        let first = if index == 0 { 0 } else { Positions::FIRST << (index - 1) };
        (first, (Positions::FIRST << index) - 1)
    }

    /// The mean divergence there, in nats.
    pub fn mean(&self) -> f64 {
        self.divergence / self.tokens as f64
    }
}

impl Default for Distance {
    fn default() -> Distance {
        Distance {
            reference: Fit::default(),
            same_top: 0,
            divergence: 0.0,
            largest: 0.0,
            occurrences: vec![0; 1 << 16],
            positions: Vec::new(),
        }
    }
}

impl Distance {
    /// Adds a token that has `position` tokens of its text before it.
    pub fn add(&mut self, comparison: Comparison, position: u64, bytes: usize) {
        let divergence = comparison.divergence;
        self.reference.add(comparison.nats, bytes);
        self.same_top += u64::from(comparison.same_top);
        self.divergence += divergence;
        self.largest = self.largest.max(divergence);
        self.occurrences[((divergence as f32).to_bits() >> 16) as usize] += 1;
        let index = Positions::index(position);
        if self.positions.len() <= index {
            self.positions.resize(index + 1, Positions::default());
        }
        self.positions[index].tokens += 1;
        self.positions[index].divergence += divergence;
    }

    /// The mean divergence, in nats per token.
    pub fn mean(&self) -> f64 {
        self.divergence / self.reference.tokens as f64
    }

    /// The largest divergence.
    pub fn largest(&self) -> f64 {
        self.largest
    }

    /// The divergence that a share of the tokens does not exceed, within a 256th part of itself.
    pub fn quantile(&self, share: f64) -> f64 {
        let rank = (share * self.reference.tokens as f64).ceil() as u64;
        let mut seen = 0;
        let found = self.occurrences.iter().position(|&count| {
            seen += count;
            count > 0 && seen >= rank
        });
        // The middle of the values that share their upper bits; 0 is itself.
        found.map_or(0.0, |upper| {
            if upper == 0 { 0.0 } else { f64::from(f32::from_bits((upper as u32) << 16 | 1 << 15)) }
        })
    }

    /// The share of tokens for which both had the same likeliest token.
    pub fn same_top(&self) -> f64 {
        self.same_top as f64 / self.reference.tokens as f64
    }

    /// Ranges of positions and what was found there; a range without tokens has none.
    pub fn positions(&self) -> &[Positions] {
        &self.positions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_of_known_distributions() {
        // Probabilities 1/8, 5/8, 2/8 from any base line.
        let row = |base: f32| [1.0f32, 5.0, 2.0].map(|p| p.ln() + base);
        for base in [0.0, -900.0, 900.0] {
            let score = Score::of(&row(base), Some(&[base; 3]), 2);
            assert!((score.nats - 4f64.ln()).abs() < 1e-4, "{score:?}");
            let against = score.against.expect("a reference");
            assert!((against.nats - 3f64.ln()).abs() < 1e-4, "{against:?}");
            // The mean over a third each of ln(1/3) - ln(p).
            let expected = (8f64.ln() + (8f64 / 5.0).ln() + 4f64.ln()) / 3.0 - 3f64.ln();
            assert!((against.divergence - expected).abs() < 1e-4, "{against:?} for {expected}");
            assert!(!against.same_top, "the first of equals is the top");
        }
        let same = Score::of(&row(3.0), Some(&row(3.0)), 0).against.expect("a reference");
        assert_eq!((same.divergence, same.same_top), (0.0, true));
    }

    #[test]
    fn a_thousand_equal_tokens_have_a_perplexity_of_a_thousand() {
        let mut fit = Fit::default();
        for _ in 0..10 {
            fit.add(Score::of(&[-7.5; 1000], None, 3).nats, 4);
        }
        assert!((fit.perplexity() - 1000.0).abs() < 1e-9, "{fit:?}");
        assert!((fit.bits_per_byte() - 1000f64.log2() / 4.0).abs() < 1e-12, "{fit:?}");
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_values() {
        let mut distance = Distance::default();
        let values: Vec<f64> = (0..1000u32).map(|i| f64::from(i * 7919 % 1000) / 250.0).collect();
        for (position, &divergence) in values.iter().enumerate() {
            distance.add(
                Comparison { nats: 1.0, divergence, same_top: position % 4 != 0 },
                position as u64,
                1,
            );
        }
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        for (share, rank) in [(0.5, 500), (0.99, 990), (1.0, 1000), (0.001, 1)] {
            let (found, exact) = (distance.quantile(share), sorted[rank - 1]);
            assert!((found - exact).abs() <= exact / 256.0, "{share}: {found} for {exact}");
        }
        assert!((distance.mean() - values.iter().sum::<f64>() / 1000.0).abs() < 1e-12);
        assert_eq!((distance.largest(), distance.same_top()), (3.996, 0.75));
    }

    #[test]
    fn ranges_of_positions_double() {
        let mut distance = Distance::default();
        for position in 0..100 {
            let divergence = if position < 32 { 1.0 } else { 3.0 };
            distance.add(Comparison { nats: 1.0, divergence, same_top: true }, position, 1);
        }
        let found: Vec<_> = distance
            .positions()
            .iter()
            .enumerate()
            .map(|(i, range)| (Positions::bounds(i), range.tokens, range.mean()))
            .collect();
        assert_eq!(
            found,
            [((0, 15), 16, 1.0), ((16, 31), 16, 1.0), ((32, 63), 32, 3.0), ((64, 127), 36, 3.0)]
        );
    }
}
