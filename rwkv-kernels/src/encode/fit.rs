//! The scale and the minimum of a group of weights, `w ≈ min + scale * q` with `q` in `0..=levels`, and the codes `q`.
//!
//! With 256 levels the group's range is simply [covered](cover). With 16 levels, half a step is much, and
//! [`least_squares`] searches for less:
//!
//! ```text
//! best = cover
//! for each range that is the group's own, a little wider or narrower at either end:
//!     q = the nearest codes in that range
//!     (scale, min) = the straight line through the points (q, w) with the least sum of squares, rounded to f16
//!     q = the nearest codes on that line
//!     best = these, if their sum of squared errors is less
//! repeat the last three lines from the best codes while that helps
//! ```
//!
//! So the sum of squares is never above that of the cover, and what is judged is what is stored, rounding included.
//!
//! The search is plain code over arrays of a fixed size, with sums folded by halves: compilers make SIMD of it, and
//! as nothing is contracted or reordered, each instruction set that it is compiled for finds the same bits.

use half::f16;

use crate::codec::{GROUP, GROUP_U4};
use crate::isa::{Isa, Kind};

/// The largest code of 4 bits.
const LARGEST: f32 = 15.0;

/// What the candidates cut off at either end, as shares of the range. Less than nothing widens it.
const CUTS: [f32; 4] = [-0.02, 0.0133, 0.0467, 0.08];

/// How often the best candidate is improved at most. Few groups profit from more.
const IMPROVEMENTS: usize = 3;

/// Covers the whole range: the minimum is rounded down and the scale up, and no weight is off by more than half a
/// step (and the rounding of f32).
pub(super) fn cover(weights: &[f32], levels: f32, codes: &mut [u8; GROUP]) -> (f16, f16) {
    let (scale, min) = covering_line(weights, levels);
    assign(weights, levels, scale, min, codes);
    (scale, min)
}

/// Chooses what makes the sum of squared errors small, for up to 32 weights and 16 levels.
pub(super) fn least_squares(isa: Isa, weights: &[f32], codes: &mut [u8; GROUP]) -> (f16, f16) {
    let (scale, min) = match isa.kind() {
        Kind::Scalar => search(weights),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of these kinds exists only where avx2 was detected.
        Kind::Avx2 | Kind::Avx512 | Kind::Avx512Vnni => unsafe { search_avx2(weights) },
    };
    assign(weights, LARGEST, scale, min, codes);
    (scale, min)
}

fn covering_line(weights: &[f32], levels: f32) -> (f16, f16) {
    let (low, high) = range(weights);
    let min = round_towards(low, -1);
    (round_towards((high - min.to_f32()) / levels, 1), min)
}

fn range(weights: &[f32]) -> (f32, f32) {
    weights.iter().fold((f32::MAX, f32::MIN), |(low, high), &w| (low.min(w), high.max(w)))
}

/// The nearest codes.
fn assign(weights: &[f32], levels: f32, scale: f16, min: f16, codes: &mut [u8; GROUP]) {
    let (base, step) = (min.to_f32(), scale.to_f32());
    for (code, w) in codes.iter_mut().zip(weights) {
        *code = if step > 0.0 { nearest_code((w - base) / step, levels) as u8 } else { 0 };
    }
}

/// Rounds to an integer in `0..=levels`, ties to even; a NaN is 0.
#[inline(always)]
fn nearest_code(q: f32, levels: f32) -> f32 {
    // Numbers of this size have no places after the point: adding it rounds.
    const INTEGERS: f32 = 12_582_912.0;
    let q = if q > 0.0 { q } else { 0.0 };
    let q = if q < levels { q } else { levels };
    (q + INTEGERS) - INTEGERS
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn search_avx2(weights: &[f32]) -> (f16, f16) {
    search(weights)
}

#[inline(always)]
fn search(weights: &[f32]) -> (f16, f16) {
    let cover = Line::of(covering_line(weights, LARGEST));
    if cover.scale == 0.0 {
        return cover.rounded();
    }
    let group = Group::new(weights);
    let mut best = Fit::new(&group, cover);
    let (low, high) = (group.low, group.high);
    for cut_low in CUTS {
        for cut_high in CUTS {
            let min = low + cut_low * (high - low);
            let scale = (1.0 - cut_low - cut_high) * (high - low) / LARGEST;
            best.improve(&group, &group.nearest(Line { scale, min }));
        }
    }
    for _ in 0..IMPROVEMENTS {
        let codes = best.codes;
        if !best.improve(&group, &codes) {
            break;
        }
    }
    best.line.rounded()
}

/// Codes, as floats.
type Codes = [f32; GROUP_U4];

/// `min + scale * q`.
#[derive(Debug, Clone, Copy)]
struct Line {
    scale: f32,
    min: f32,
}

impl Line {
    fn of((scale, min): (f16, f16)) -> Line {
        Line { scale: scale.to_f32(), min: min.to_f32() }
    }

    /// The line as it is stored.
    fn rounded(self) -> (f16, f16) {
        (f16::from_f32(self.scale), f16::from_f32(self.min))
    }
}

/// The best line so far.
struct Fit {
    line: Line,
    codes: Codes,
    error: f32,
}

impl Fit {
    #[inline(always)]
    fn new(group: &Group, line: Line) -> Fit {
        let codes = group.nearest(line);
        Fit { line, codes, error: group.error(line, &codes) }
    }

    /// Takes the line through these codes, if it is better.
    #[inline(always)]
    fn improve(&mut self, group: &Group, codes: &Codes) -> bool {
        let Some(line) = group.line(codes) else { return false };
        let fit = Fit::new(group, line);
        let is_better = fit.error < self.error;
        if is_better {
            *self = fit;
        }
        is_better
    }
}

/// Weights, padded.
struct Group {
    weights: [f32; GROUP_U4],
    /// 1 for a weight, 0 for what pads.
    counted: [f32; GROUP_U4],
    /// How many weights there are.
    count: f32,
    low: f32,
    high: f32,
    /// Sum of the weights less the lowest.
    sum: f32,
}

impl Group {
    #[inline(always)]
    fn new(values: &[f32]) -> Group {
        let (low, high) = range(values);
        let (mut weights, mut counted) = ([low; GROUP_U4], [0.0; GROUP_U4]);
        weights[..values.len()].copy_from_slice(values);
        counted[..values.len()].fill(1.0);
        let sum = sum(|i| weights[i] - low);
        Group { weights, counted, count: values.len() as f32, low, high, sum }
    }

    /// The nearest codes on a line; 0 where there is no weight.
    #[inline(always)]
    fn nearest(&self, line: Line) -> Codes {
        let inverse = 1.0 / line.scale;
        let mut codes = [0.0; GROUP_U4];
        for ((q, w), counted) in codes.iter_mut().zip(&self.weights).zip(&self.counted) {
            *q = nearest_code((w - line.min) * inverse, LARGEST) * counted;
        }
        codes
    }

    /// The sum of squared errors.
    #[inline(always)]
    fn error(&self, line: Line, codes: &Codes) -> f32 {
        sum(|i| {
            let error = self.weights[i] - (line.min + line.scale * codes[i]);
            error * error * self.counted[i]
        })
    }

    /// The line of least squares for these codes, rounded to what can be stored, if there is one that rises.
    #[inline(always)]
    fn line(&self, codes: &Codes) -> Option<Line> {
        let codes_sum = sum(|i| codes[i]);
        let squares = sum(|i| codes[i] * codes[i]);
        let products = sum(|i| codes[i] * (self.weights[i] - self.low));
        let spread = self.count * squares - codes_sum * codes_sum;
        let scale = (self.count * products - codes_sum * self.sum) / spread;
        let min = self.low + (self.sum - scale * codes_sum) / self.count;
        let (scale, min) = (f16::from_f32(scale), f16::from_f32(min));
        let is_line = spread > 0.0 && scale.is_finite() && scale > f16::ZERO && min.is_finite();
        is_line.then(|| Line::of((scale, min)))
    }
}

/// Sum over a group, in a fixed order that suits SIMD.
#[inline(always)]
fn sum(term: impl Fn(usize) -> f32) -> f32 {
    let mut terms = [0.0f32; GROUP_U4];
    for (i, t) in terms.iter_mut().enumerate() {
        *t = term(i);
    }
    let mut half = GROUP_U4 / 2;
    while half > 0 {
        let (low, high) = terms.split_at_mut(half);
        for (a, b) in low.iter_mut().zip(&high[..half]) {
            *a += b;
        }
        half /= 2;
    }
    terms[0]
}

/// The nearest f16 that is not on the wrong side of `x` (`direction` -1: not above; 1: not below), within the finite ones.
fn round_towards(x: f32, direction: i32) -> f16 {
    let nearest = f16::from_f32(x);
    let wrong = if direction < 0 { nearest.to_f32() > x } else { nearest.to_f32() < x };
    if !wrong {
        return nearest;
    }
    // The neighbours of an f16 are the neighbours of its bits, sign and magnitude.
    let bits = nearest.to_bits();
    let away = (bits & 0x8000 != 0) == (direction < 0);
    let next = match (bits & 0x7fff, away) {
        (0, _) => {
            if direction < 0 {
                0x8001
            } else {
                0x0001
            }
        }
        (_, true) => bits + 1,
        (_, false) => bits - 1,
    };
    let next = f16::from_bits(next);
    if next.is_finite() { next } else { nearest }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups with everything that may go wrong in them.
    fn groups() -> Vec<Vec<f32>> {
        let mut seed = 1u32;
        let mut uniform = move || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as f32 / (1 << 24) as f32
        };
        let mut groups = vec![
            vec![0.0; 32],
            vec![-0.375; 32],
            vec![65504.0, -65504.0],
            vec![65504.0; 7],
            vec![-65504.0, -65503.0, -65472.0],
            vec![1.0],
            (0..32).map(|i| f32::from_bits(i + 1)).collect(),
            (0..32).map(|i| i as f32 * 1e-7).collect(),
            (0..32).map(|i| 1000.0 + i as f32 * 1e-3).collect(),
            (0..32).map(|i| if i == 9 { 60000.0 } else { 1e-3 * i as f32 }).collect(),
        ];
        for len in (1..=32).chain([32; 300]) {
            let (size, centre) = (10f32.powf(8.0 * uniform() - 6.0), 4.0 * uniform() - 2.0);
            groups.push((0..len).map(|_| size * ((0..4).map(|_| uniform()).sum::<f32>() - centre)).collect());
        }
        groups
    }

    fn error(weights: &[f32], (scale, min): (f16, f16), codes: &[u8]) -> f64 {
        let [scale, min] = [scale, min].map(f16::to_f64);
        let off = |(&w, &q): (&f32, &u8)| f64::from(w) - (min + scale * f64::from(q));
        weights.iter().zip(codes).map(|pair| off(pair).powi(2)).sum()
    }

    #[test]
    fn least_squares_are_never_worse_than_the_cover_and_mostly_better() {
        let (mut sum, mut covered_sum) = (0.0, 0.0);
        for weights in groups() {
            let (mut codes, mut covered) = ([0; GROUP], [0; GROUP]);
            let line = least_squares(Isa::detect(), &weights, &mut codes);
            let cover = cover(&weights, LARGEST, &mut covered);
            assert!(codes.iter().all(|&q| q <= 15), "{weights:?}");
            assert!(
                line.0.is_finite() && line.0 >= f16::ZERO && line.1.is_finite(),
                "{line:?} for {weights:?}"
            );
            let [found, covered] = [error(&weights, line, &codes), error(&weights, cover, &covered)];
            // The search adds up in f32.
            assert!(found <= covered * 1.0001 + 1e-30, "{found} for {covered}: {weights:?}");
            if weights.len() == 32 && covered > 0.0 {
                sum += found / covered;
                covered_sum += 1.0;
            }
        }
        assert!(sum / covered_sum < 0.85, "{} of the cover's error on average", sum / covered_sum);
    }

    /// Exhaustive over all pairs of codes that a line can be drawn through: the search comes close to the best there is.
    #[test]
    fn little_is_left_to_find() {
        let (mut found, mut best) = (0.0, 0.0);
        for weights in groups().iter().filter(|weights| weights.len() == 32).skip(40).take(8) {
            let mut codes = [0; GROUP];
            found += error(weights, least_squares(Isa::detect(), weights, &mut codes), &codes).sqrt();
            let (low, high) = range(weights);
            let mut least = f64::MAX;
            for i in 0..60 {
                for j in 0..60 {
                    let [cut_low, cut_high] = [i, j].map(|cut| cut as f32 * 0.006 - 0.06);
                    let min = low + cut_low * (high - low);
                    let scale = (1.0 - cut_low - cut_high) * (high - low) / LARGEST;
                    let line = (f16::from_f32(scale), f16::from_f32(min));
                    assign(weights, LARGEST, line.0, line.1, &mut codes);
                    least = least.min(error(weights, line, &codes));
                }
            }
            best += least.sqrt();
        }
        assert!(found <= 1.05 * best, "{found} for {best}");
    }

    #[test]
    fn every_instruction_set_finds_the_same() {
        for weights in groups() {
            let mut expected = [0; GROUP];
            let line = least_squares(Isa::scalar(), &weights, &mut expected);
            for &isa in Isa::available() {
                let mut codes = [0; GROUP];
                let found = least_squares(isa, &weights, &mut codes);
                assert_eq!((found, codes), (line, expected), "{isa}: {weights:?}");
            }
        }
    }

    #[test]
    fn what_lies_on_a_line_is_found_exactly() {
        for (scale, min) in [(0.25, -1.5), (1.0, 0.0), (0.0078125, 3.0), (2048.0, -16384.0)] {
            let weights: Vec<f32> = (0..32).map(|i| min + scale * (i * 7 % 16) as f32).collect();
            let mut codes = [0; GROUP];
            let line = least_squares(Isa::detect(), &weights, &mut codes);
            assert_eq!(line, (f16::from_f32(scale), f16::from_f32(min)));
            assert!(codes[..32].iter().enumerate().all(|(i, &q)| usize::from(q) == i * 7 % 16));
        }
    }
}
