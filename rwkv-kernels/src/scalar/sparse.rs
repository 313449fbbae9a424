//! The definition of entries that are not zero.

/// Leaves the places and values of what is not zero in `x`, at most 128 elements, at the start of `places` and `values`. Their number,
/// and a bit for each. A NaN is not zero.
pub(crate) fn gather(x: &[f32], places: &mut [u8], values: &mut [f32]) -> (usize, u128) {
    let (mut count, mut bits) = (0, 0);
    for (i, &value) in x.iter().enumerate() {
        if value != 0.0 {
            (places[count], values[count]) = (i as u8, value);
            bits |= 1 << i;
            count += 1;
        }
    }
    (count, bits)
}
