//! The definition of quantised activations.

/// `scale = max|x| / 127`, `code = round_ties_even(x / scale)` clamped to -127..=127.
///
/// The maximum is taken over the bits of `|x|`, so that a NaN is the largest and makes the scale NaN. Beside the scale come the sums of
/// the first and of the second half of the codes.
pub(crate) fn quantize(x: &[f32], codes: &mut [i8]) -> (f32, [i32; 2]) {
    let max_bits = x.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap_or(0);
    let scale = f32::from_bits(max_bits) / 127.0;
    if scale == 0.0 || !scale.is_finite() {
        codes.fill(0);
        return (scale, [0; 2]);
    }
    for (code, x) in codes.iter_mut().zip(x) {
        *code = (x / scale).round_ties_even().clamp(-127.0, 127.0) as i8;
    }
    let (first, second) = codes.split_at(codes.len() / 2);
    let sum = |half: &[i8]| half.iter().map(|&code| i32::from(code)).sum();
    (scale, [sum(first), sum(second)])
}
