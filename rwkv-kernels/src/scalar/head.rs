//! What a head does before and after WKV-7.

use super::{math, norm};
use crate::head::{HeadOutput, HeadParams, HeadRows};

pub(crate) fn prepare_head(head: HeadParams<'_>, rows: HeadRows<'_>) {
    let n = head.w0.len();
    let HeadRows { w, a, k, kk } = rows;
    let rows = w.chunks_exact_mut(n).zip(a.chunks_exact_mut(n));
    for ((w, a), (k, kk)) in rows.zip(k.chunks_exact_mut(n).zip(kk.chunks_exact_mut(n))) {
        for i in 0..n {
            kk[i] = k[i] * head.k_k[i];
        }
        let scale = norm::l2_scale(norm::dot(kk, kk));
        for i in 0..n {
            let rate = math::sigmoid(head.a0[i] + a[i]);
            w[i] = math::decay(head.w0[i] + w[i]);
            kk[i] *= scale;
            a[i] = kk[i] * rate;
            k[i] *= (rate - 1.0).mul_add(head.k_a[i], 1.0);
        }
    }
}

pub(crate) fn head_output(head: HeadOutput<'_>, y: &mut [f32]) {
    let n = head.r_k.len();
    for (t, y) in y.chunks_exact_mut(n).enumerate() {
        let token = t * n..(t + 1) * n;
        let (v, g) = (&head.v[token.clone()], &head.g[token.clone()]);
        let bonus = norm::dot3(&head.r[token.clone()], &head.k[token], head.r_k);
        let moments = norm::moments(y, head.eps);
        for i in 0..n {
            let normed = norm::normed(y[i], moments, head.ln_w[i], head.ln_b[i]);
            y[i] = bonus.mul_add(v[i], normed) * g[i];
        }
    }
}
