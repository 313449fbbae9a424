use crate::dispatch::by_isa;
use crate::elementwise::assert_rows;
use crate::isa::Isa;

/// Layer norm of every row: `y = fma((x - mean) / sqrt(var + eps), weight, bias)`, biased variance.
///
/// Shapes: `x` and `y` are `[rows, n]` row-major, `weight` and `bias` are `[n]`. A group norm is this
/// function with a group as a row.
///
/// # Panics
/// `bias` is not as long as `weight`, `y` not as long as `x`, or `x` is not a whole number of rows.
pub fn layer_norm(isa: Isa, x: &[f32], weight: &[f32], bias: &[f32], eps: f32, y: &mut [f32]) {
    assert_rows(x.len(), weight.len());
    assert_eq!(bias.len(), weight.len(), "one bias per weight");
    assert_eq!(y.len(), x.len(), "one result per value");
    if !x.is_empty() {
        by_isa!(isa, norm::layer_norm(x, weight, bias, eps, y));
    }
}

/// Divides `x` by its Euclidean length, or by 1e-12 where that is larger.
pub fn l2_normalize(isa: Isa, x: &mut [f32]) {
    by_isa!(isa, norm::l2_normalize(x));
}

/// `e^x / sum(e^x)` over the whole of `x`, in place.
///
/// The maximum is subtracted first. NaN anywhere, `+inf` anywhere, or `-inf` everywhere makes every result NaN;
/// a single `-inf` gives 0.
pub fn softmax(isa: Isa, x: &mut [f32]) {
    by_isa!(isa, norm::softmax(x));
}

/// The inner product of `x` and `y`; 0 for empty ones.
///
/// # Panics
/// The lengths differ.
pub fn dot(isa: Isa, x: &[f32], y: &[f32]) -> f32 {
    assert_eq!(x.len(), y.len(), "x and y are of one length");
    by_isa!(isa, norm::dot(x, y))
}
