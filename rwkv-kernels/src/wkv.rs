use crate::dispatch::by_isa;
use crate::isa::Isa;

/// The inputs of [`wkv7`]: `T` tokens of one head.
///
/// Every slice is `[T, n]` row-major. [`prepare_head`](crate::prepare_head) makes `w`, `k`, `kk` and `kka`.
#[derive(Debug, Clone, Copy)]
pub struct Wkv7<'a> {
    /// Head size: a multiple of 16, from 16 to 256.
    pub n: usize,
    /// Receptance.
    pub r: &'a [f32],
    /// The decay itself, in (0, 1), not its logarithm.
    pub w: &'a [f32],
    /// Key, after its scaling by `k_a`.
    pub k: &'a [f32],
    /// Value, after the value residual.
    pub v: &'a [f32],
    /// Removal key, of length 1.
    pub kk: &'a [f32],
    /// Removal key times in-context learning rate, `kk * a`.
    pub kka: &'a [f32],
}

/// The RWKV-7 state update and read-out of one head, for `T` tokens one after the other.
///
/// Shapes: `state` is `[n, n]` with the **key channel as the row**: element `S[value p][key q]` is `state[q * n + p]`;
/// `y` is `[T, n]`. Per token, every sum over `q` being one chain of fused multiply-adds in ascending order:
///
/// ```text
/// removed[p] = sum_q -S[p][q] kk[q]
/// S[p][q]    = fma(v[p], k[q], fma(removed[p], kka[q], S[p][q] w[q]))
/// y[p]       = sum_q S[p][q] r[q]
/// ```
///
/// where the product `S[p][q] w[q]` is zero if `|S[p][q]| < 2^-95`, so that a state which fades away does not
/// become denormal and slow. A split of the tokens over several calls changes no bit.
/// The state is best aligned to 64 bytes.
///
/// Source: RWKV-7 "Goose" (arXiv 2503.14456), the generalised delta rule.
///
/// # Panics
/// `n` is not a multiple of 16 from 16 to 256, `state` is not `n * n` long, `y` is not whole tokens, or an
/// input is not as long as `y`.
pub fn wkv7(isa: Isa, head: Wkv7<'_>, state: &mut [f32], y: &mut [f32]) {
    let Wkv7 { n, r, w, k, v, kk, kka } = head;
    assert!((16..=256).contains(&n) && n.is_multiple_of(16), "head size {n} is not one of 16, 32, .. 256");
    assert_eq!(state.len(), n * n, "the state of a head of {n} channels");
    assert!(y.len().is_multiple_of(n), "{} results are not whole tokens of {n} channels", y.len());
    for (name, input) in [("r", r), ("w", w), ("k", k), ("v", v), ("kk", kk), ("kka", kka)] {
        assert_eq!(input.len(), y.len(), "one element of {name} per result");
    }
    by_isa!(isa, wkv::wkv7(head, state, y));
}
