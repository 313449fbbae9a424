use crate::dispatch::by_isa;
use crate::elementwise::assert_rows;
use crate::isa::Isa;

/// The learned vectors of one RWKV-7 head that [`prepare_head`] needs, each `[n]`.
#[derive(Debug, Clone, Copy)]
pub struct HeadParams<'a> {
    /// Bias of the decay.
    pub w0: &'a [f32],
    /// Bias of the in-context learning rate.
    pub a0: &'a [f32],
    /// Scale of the removal key.
    pub k_k: &'a [f32],
    /// How far the learning rate scales the key.
    pub k_a: &'a [f32],
}

/// The rows of one head that [`prepare_head`] works on, each `[T, n]` row-major.
#[derive(Debug)]
pub struct HeadRows<'a> {
    /// In: the low-rank product of the decay. Out: the decay itself.
    pub w: &'a mut [f32],
    /// In: the low-rank product of the learning rate. Out: `kk * a`, the [`kka`](crate::Wkv7::kka) of WKV-7.
    pub a: &'a mut [f32],
    /// In: the key's projection. Out: the key of WKV-7.
    pub k: &'a mut [f32],
    /// Out: the removal key.
    pub kk: &'a mut [f32],
}

/// Makes the inputs of [`wkv7`](crate::wkv7) from the projections, for `T` tokens of one head.
///
/// ```text
/// kk = l2_normalize(k * k_k)
/// a  = sigmoid(a0 + a)
/// w  = decay(w0 + w)
/// k  = k * fma(a - 1, k_a, 1)
/// a  = kk * a
/// ```
///
/// Source: RWKV-7 "Goose" (arXiv 2503.14456), time mix.
///
/// # Panics
/// The slices of `head` differ in length, those of `rows` do, or the latter are not whole rows.
pub fn prepare_head(isa: Isa, head: HeadParams<'_>, rows: HeadRows<'_>) {
    let n = head.w0.len();
    for (name, vector) in [("a0", head.a0), ("k_k", head.k_k), ("k_a", head.k_a)] {
        assert_eq!(vector.len(), n, "one element of {name} per channel");
    }
    assert_rows(rows.w.len(), n);
    for (name, len) in [("a", rows.a.len()), ("k", rows.k.len()), ("kk", rows.kk.len())] {
        assert_eq!(len, rows.w.len(), "one element of {name} per element of w");
    }
    if !rows.w.is_empty() {
        by_isa!(isa, head::prepare_head(head, rows));
    }
}

/// The inputs of [`head_output`] beside the result of WKV-7: vectors are `[n]`, rows are `[T, n]` row-major.
#[derive(Debug, Clone, Copy)]
pub struct HeadOutput<'a> {
    /// Vector: the weight of the bonus.
    pub r_k: &'a [f32],
    /// Vector: the weight of the group norm.
    pub ln_w: &'a [f32],
    /// Vector: the bias of the group norm.
    pub ln_b: &'a [f32],
    /// What the group norm adds to the variance: 64e-5 in RWKV-7.
    pub eps: f32,
    /// Rows: receptance.
    pub r: &'a [f32],
    /// Rows: key, as WKV-7 saw it.
    pub k: &'a [f32],
    /// Rows: value, as WKV-7 saw it.
    pub v: &'a [f32],
    /// Rows: gate.
    pub g: &'a [f32],
}

/// Turns the result of [`wkv7`](crate::wkv7) into the input of the output projection, in place, for `T`
/// tokens of one head.
///
/// ```text
/// y = fma(sum(r * k * r_k), v, layer_norm(y, ln_w, ln_b, eps)) * g
/// ```
///
/// Source: RWKV-7 "Goose" (arXiv 2503.14456), time mix.
///
/// # Panics
/// The vectors differ in length, the rows do, or `y` is not whole rows.
pub fn head_output(isa: Isa, head: HeadOutput<'_>, y: &mut [f32]) {
    let n = head.r_k.len();
    for (name, vector) in [("ln_w", head.ln_w), ("ln_b", head.ln_b)] {
        assert_eq!(vector.len(), n, "one element of {name} per channel");
    }
    assert_rows(y.len(), n);
    for (name, rows) in [("r", head.r), ("k", head.k), ("v", head.v), ("g", head.g)] {
        assert_eq!(rows.len(), y.len(), "one element of {name} per result");
    }
    if !y.is_empty() {
        by_isa!(isa, head::head_output(head, y));
    }
}
