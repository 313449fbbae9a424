//! What a head does before and after WKV-7.

use super::lanes::Lanes;
use super::{math, norm};
use crate::head::{HeadOutput, HeadParams, HeadRows};
use crate::scalar::norm::l2_scale;

#[inline(always)]
pub(super) fn prepare_head<S: Lanes>(s: S, head: HeadParams<'_>, rows: HeadRows<'_>) {
    let n = head.w0.len();
    let HeadRows { w, a, k, kk } = rows;
    let rows = w.chunks_exact_mut(n).zip(a.chunks_exact_mut(n));
    for ((w, a), (k, kk)) in rows.zip(k.chunks_exact_mut(n).zip(kk.chunks_exact_mut(n))) {
        let mut squares = s.splat(0.0);
        for at in (0..n).step_by(16) {
            let scaled = s.mul(s.get(k, at), s.get(head.k_k, at));
            squares = s.fma(scaled, scaled, squares);
            s.put(scaled, kk, at);
        }
        let factor = s.splat(l2_scale(s.fold_sum(squares)));
        let one = s.splat(1.0);
        for at in (0..n).step_by(16) {
            let rate = math::sigmoid(s, s.add(s.get(head.a0, at), s.get(a, at)));
            s.put(math::decay(s, s.add(s.get(head.w0, at), s.get(w, at))), w, at);
            let removal = s.mul(s.get(kk, at), factor);
            s.put(removal, kk, at);
            s.put(s.mul(removal, rate), a, at);
            let share = s.fma(s.sub(rate, one), s.get(head.k_a, at), one);
            s.put(s.mul(s.get(k, at), share), k, at);
        }
    }
}

#[inline(always)]
pub(super) fn head_output<S: Lanes>(s: S, head: HeadOutput<'_>, y: &mut [f32]) {
    let n = head.r_k.len();
    let inputs = head.r.chunks_exact(n).zip(head.k.chunks_exact(n));
    let scales = head.v.chunks_exact(n).zip(head.g.chunks_exact(n));
    for (y, ((r, k), (v, g))) in y.chunks_exact_mut(n).zip(inputs.zip(scales)) {
        let bonus = s.splat(norm::dot3(s, r, k, head.r_k));
        let moments = norm::moments(s, y, head.eps);
        for at in (0..n).step_by(16) {
            let (weight, bias) = (s.get(head.ln_w, at), s.get(head.ln_b, at));
            let normed = norm::normed(s, s.get(y, at), moments, weight, bias);
            s.put(s.mul(s.fma(bonus, s.get(v, at), normed), s.get(g, at)), y, at);
        }
    }
}
