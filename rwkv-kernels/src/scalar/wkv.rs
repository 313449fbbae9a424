//! WKV-7, token after token.

use crate::wkv::Wkv7;

/// These bits of an `f32` are all zero exactly if its magnitude is below 2^-95.
pub(crate) const NOT_TINY: u32 = 0x7000_0000;

/// A state element after its decay; what has faded below 2^-95 is gone, whatever the decay.
fn decayed(s: f32, w: f32) -> f32 {
    if s.to_bits() & NOT_TINY == 0 { 0.0 } else { s * w }
}

pub(crate) fn wkv7(head: Wkv7<'_>, state: &mut [f32], y: &mut [f32]) {
    let n = head.n;
    for (t, y) in y.chunks_exact_mut(n).enumerate() {
        let token = t * n..(t + 1) * n;
        let (r, w, k) = (&head.r[token.clone()], &head.w[token.clone()], &head.k[token.clone()]);
        let (v, kk, kka) = (&head.v[token.clone()], &head.kk[token.clone()], &head.kka[token]);
        for p in 0..n {
            let mut removed = 0.0_f32;
            for q in 0..n {
                removed = (-state[q * n + p]).mul_add(kk[q], removed);
            }
            let mut out = 0.0_f32;
            for q in 0..n {
                let s = &mut state[q * n + p];
                *s = v[p].mul_add(k[q], removed.mul_add(kka[q], decayed(*s, w[q])));
                out = s.mul_add(r[q], out);
            }
            y[p] = out;
        }
    }
}
