//! What a head does before and after WKV-7.

use super::lanes::Lanes;
use super::{math, norm};
use crate::head::{HeadOutput, HeadParams, HeadRows};
use crate::scalar::norm::l2_scale;

#[inline(always)]
pub(super) fn prepare_head<S: Lanes>(s: S, head: HeadParams<'_>, rows: HeadRows<'_>) {
    let n = head.w0.len();
    let HeadRows { w, a, k, kk } = rows;
    for row in (0..w.len()).step_by(n) {
        let (w, a) = (&mut w[row..][..n], &mut a[row..][..n]);
        let (k, kk) = (&mut k[row..][..n], &mut kk[row..][..n]);
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
    for row in (0..y.len()).step_by(n) {
        let (r, k) = (&head.r[row..][..n], &head.k[row..][..n]);
        let (v, g, y) = (&head.v[row..][..n], &head.g[row..][..n], &mut y[row..][..n]);
        let bonus = s.splat(norm::dot3(s, r, k, head.r_k));
        let moments = norm::moments(s, y, head.eps);
        for at in (0..n).step_by(16) {
            let (weight, bias) = (s.get(head.ln_w, at), s.get(head.ln_b, at));
            let normed = norm::normed(s, s.get(y, at), moments, weight, bias);
            s.put(s.mul(s.fma(bonus, s.get(v, at), normed), s.get(g, at)), y, at);
        }
    }
}
