use crate::codec::{Forms, GROUP};
use crate::isa::{Isa, Kind};
use crate::panels::Panels;
use crate::scalar;
#[cfg(target_arch = "x86_64")]
use crate::x86;

/// The inputs of a matrix product: rows (tokens) of channels in the [`Forms`] that the matrices' codecs need.
///
/// Quantised forms, by the definition of [`matmul`](crate::matmul): over a group of 64 channels (or the whole row for the
/// `i8` codec) `scale = max|x| / 127` and `code = round_ties_even(x / scale)` clamped to -127..=127; a
/// group whose scale is zero or not finite has codes of zero, so that a NaN or an infinity reaches the product through the scale.
#[derive(Clone, Debug, Default)]
pub struct Activations {
    rows: usize,
    cols: usize,
    padded: usize,
    forms: Forms,
    dense: Vec<f32>,
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<f32>,
    half_sums: Vec<f32>,
    row_codes: Vec<i8>,
    row_scales: Vec<f32>,
    row_sums: Vec<i32>,
}

/// One row of [`Activations`], to be filled: rows are disjoint, so different threads may fill them.
#[derive(Debug)]
pub struct ActivationRow<'a> {
    cols: usize,
    dense: Option<&'a mut [f32]>,
    groups: Option<GroupForm<'a>>,
    whole: Option<RowForm<'a>>,
}

#[derive(Debug)]
struct GroupForm<'a> {
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
    half_sums: &'a mut [f32],
}

#[derive(Debug)]
struct RowForm<'a> {
    codes: &'a mut [i8],
    scale: &'a mut f32,
    sum: &'a mut i32,
}

impl Activations {
    /// No rows yet.
    pub fn new() -> Activations {
        Activations::default()
    }

    /// Takes a new shape and keeps the allocations. Every row must then be [filled](Activations::rows_mut).
    pub fn reset(&mut self, rows: usize, cols: usize, forms: Forms) {
        let groups = cols.div_ceil(GROUP);
        (self.rows, self.cols, self.padded, self.forms) = (rows, cols, groups * GROUP, forms);
        if forms.keeps_values() {
            self.dense.resize(rows * self.padded, 0.0);
        }
        if forms.groups {
            self.codes.resize(rows * self.padded, 0);
            self.scales.resize(rows * groups, 0.0);
            self.sums.resize(rows * groups, 0.0);
            self.half_sums.resize(2 * rows * groups, 0.0);
        }
        if forms.row {
            self.row_codes.resize(rows * self.padded, 0);
            self.row_scales.resize(rows, 0.0);
            self.row_sums.resize(rows, 0);
        }
    }

    /// Every row, to be filled.
    pub fn rows_mut(&mut self) -> impl Iterator<Item = ActivationRow<'_>> {
        let (cols, padded, forms) = (self.cols, self.padded, self.forms);
        let groups = padded / GROUP;
        let mut dense = self.dense.chunks_exact_mut(padded.max(1));
        let mut codes = self.codes.chunks_exact_mut(padded.max(1));
        let mut scales = self.scales.chunks_exact_mut(groups.max(1));
        let mut sums = self.sums.chunks_exact_mut(groups.max(1));
        let mut half_sums = self.half_sums.chunks_exact_mut((2 * groups).max(1));
        let mut row_codes = self.row_codes.chunks_exact_mut(padded.max(1));
        let mut row_scales = self.row_scales.iter_mut();
        let mut row_sums = self.row_sums.iter_mut();
        (0..self.rows).map(move |_| {
            let sized = "reset sized every form alike";
            ActivationRow {
                cols,
                dense: forms.keeps_values().then(|| dense.next().expect(sized)),
                groups: forms.groups.then(|| GroupForm {
                    codes: codes.next().expect(sized),
                    scales: scales.next().expect(sized),
                    sums: sums.next().expect(sized),
                    half_sums: half_sums.next().expect(sized),
                }),
                whole: forms.row.then(|| RowForm {
                    codes: row_codes.next().expect(sized),
                    scale: row_scales.next().expect(sized),
                    sum: row_sums.next().expect(sized),
                }),
            }
        })
    }

    /// [`reset`](Activations::reset) to the shape of `x` and fill every row from it, on the calling thread.
    pub fn prepare(&mut self, isa: Isa, x: &Panels, forms: Forms) {
        self.reset(x.rows(), x.cols(), forms);
        for (r, mut row) in self.rows_mut().enumerate() {
            row.fill(isa, |first, out| x.read_row_from(r, first, out));
        }
    }

    /// Rows (tokens).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Channels.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Channels rounded up to whole groups: the stride of the dense form and of the codes.
    pub(crate) fn padded(&self) -> usize {
        self.padded
    }

    pub(crate) fn assert_forms(&self, needed: Forms) {
        let has = self.forms;
        assert!(
            (has.dense || !needed.dense) && (has.groups || !needed.groups) && (has.row || !needed.row),
            "activations prepared as {has:?} for a matrix that needs {needed:?}"
        );
    }

    /// `[rows, padded]`, zeros past `cols`; of no use if neither the dense form nor that of whole rows was asked for.
    pub(crate) fn dense(&self) -> &[f32] {
        &self.dense
    }

    /// `[rows, padded]`.
    pub(crate) fn codes(&self) -> &[i8] {
        &self.codes
    }

    /// `[rows, groups]`.
    pub(crate) fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// `f32(Σ codes) * scale`, `[rows, groups]`.
    pub(crate) fn sums(&self) -> &[f32] {
        &self.sums
    }

    /// `f32(Σ codes of half a group) * scale`, `[rows, groups, 2]`.
    pub(crate) fn half_sums(&self) -> &[f32] {
        &self.half_sums
    }

    /// `[rows, padded]`, one scale for the whole row.
    pub(crate) fn row_codes(&self) -> &[i8] {
        &self.row_codes
    }

    /// `[rows]`.
    pub(crate) fn row_scales(&self) -> &[f32] {
        &self.row_scales
    }

    /// Σ of the row's codes, `[rows]`.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "the definitions do without it"))]
    pub(crate) fn row_sums(&self) -> &[i32] {
        &self.row_sums
    }
}

/// Channels that a row is asked for at a time: whole groups, in the nearest cache while they are quantised.
const PART: usize = 8 * GROUP;

impl ActivationRow<'_> {
    /// Sets the row, in every form, to what `write` leaves in its second argument: the channels from its first argument on. It is
    /// called for one part of the row after another.
    pub fn fill(&mut self, isa: Isa, mut write: impl FnMut(usize, &mut [f32])) {
        let mut buffer = [0.0; PART];
        for first in (0..self.cols).step_by(PART) {
            let count = (self.cols - first).min(PART);
            let padded = count.next_multiple_of(GROUP);
            let part = match &mut self.dense {
                Some(dense) => &mut dense[first..first + padded],
                None => &mut buffer[..padded],
            };
            let (values, padding) = part.split_at_mut(count);
            write(first, values);
            padding.fill(0.0);
            if let Some(form) = &mut self.groups {
                form.fill(isa, first / GROUP, part);
            }
        }
        if let (Some(form), Some(values)) = (&mut self.whole, &self.dense) {
            let (scale, sums) = quantize(isa, values, form.codes);
            (*form.scale, *form.sum) = (scale, sums[0] + sums[1]);
        }
    }

    /// Sets the row to `x`.
    ///
    /// # Panics
    /// `x` has another number of channels.
    pub fn set(&mut self, isa: Isa, x: &[f32]) {
        assert_eq!(x.len(), self.cols, "one value per channel");
        self.fill(isa, |first, out| out.copy_from_slice(&x[first..first + out.len()]));
    }
}

impl GroupForm<'_> {
    /// Quantises the groups of `values`, of which the first is group `first`.
    fn fill(&mut self, isa: Isa, first: usize, values: &[f32]) {
        for (g, x) in (first..).zip(values.chunks_exact(GROUP)) {
            let (scale, halves) = quantize(isa, x, &mut self.codes[g * GROUP..(g + 1) * GROUP]);
            self.scales[g] = scale;
            self.sums[g] = (halves[0] + halves[1]) as f32 * scale;
            for (half, sum) in halves.into_iter().enumerate() {
                self.half_sums[2 * g + half] = sum as f32 * scale;
            }
        }
    }
}

/// Leaves the codes of `x` (a multiple of 64 values) in `codes`; their scale, and the sums of either half of the codes.
fn quantize(isa: Isa, x: &[f32], codes: &mut [i8]) -> (f32, [i32; 2]) {
    assert_eq!(x.len(), codes.len(), "one code per value");
    assert_eq!(x.len() % GROUP, 0, "whole groups");
    match isa.kind() {
        Kind::Scalar => scalar::quantize::quantize(x, codes),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this kind exists only where avx2 and fma were detected; sizes were checked above.
        Kind::Avx2 => unsafe { x86::quantize::avx2(x, codes) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this kind exists only where avx512 f and bw were detected; sizes were checked above.
        Kind::Avx512 | Kind::Avx512Vnni => unsafe { x86::quantize::avx512(x, codes) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number in a sequence that looks random.
    fn next(seed: &mut u64) -> u32 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 32) as u32
    }

    #[track_caller]
    fn assert_as_defined(x: &[f32]) {
        let mut expected = vec![0; x.len()];
        let (scale, sums) = scalar::quantize::quantize(x, &mut expected);
        for isa in Isa::available() {
            let mut codes = vec![99; x.len()];
            let (found, found_sums) = quantize(*isa, x, &mut codes);
            assert_eq!(found.to_bits(), scale.to_bits(), "{isa}: the scale of {x:?}");
            assert_eq!((&codes, found_sums), (&expected, sums), "{isa}: {x:?}");
        }
    }

    #[test]
    fn quotients_near_ties_round_as_defined() {
        let mut seed = 1;
        for exponent in (-126..=127).step_by(if cfg!(debug_assertions) { 5 } else { 1 }) {
            for _ in 0..50 {
                let mantissa = next(&mut seed) & 0x7f_ffff;
                let max = f32::from_bits((((exponent + 127) as u32) << 23) | mantissa);
                let scale = max / 127.0;
                let mut x = [0.0f32; GROUP];
                x[0] = max;
                for x in &mut x[1..] {
                    let code = (next(&mut seed) % 255) as f32 - 127.0;
                    let near = (code + [0.5, 0.0, -0.5][(next(&mut seed) % 3) as usize]) * scale;
                    let moved = near.to_bits().saturating_add(next(&mut seed) % 5).saturating_sub(2);
                    let value = f32::from_bits(moved);
                    *x = if value.abs() <= max { value } else { 0.0 };
                }
                assert_as_defined(&x);
            }
        }
    }

    #[test]
    fn what_no_scale_fits_is_as_defined() {
        for value in
            [0.0, -0.0, f32::MIN_POSITIVE, 1e-45, 1.5e-43, f32::MAX, f32::INFINITY, f32::NAN, -f32::NAN]
        {
            let mut x = [0.25f32.min(value.abs() / 3.0); 2 * GROUP];
            x[7] = value;
            assert_as_defined(&x);
            assert_as_defined(&[value; GROUP]);
        }
    }
}
