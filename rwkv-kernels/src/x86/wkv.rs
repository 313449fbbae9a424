//! WKV-7: a lane is a value channel, that is a row of the state, and no lane needs another.
//!
//! A block of rows goes through all tokens before the next block starts, so that its part of the state
//! stays in the nearest cache. The pass over the state that applies a token also gathers what the
//! next token removes, in the order of the definition; only the first token of a call needs a pass of its own.

use super::lanes::Lanes;
use crate::wkv::Wkv7;

#[inline(always)]
pub(super) fn wkv7<S: Lanes>(s: S, head: Wkv7<'_>, state: &mut [f32], y: &mut [f32]) {
    let mut first = 0;
    while S::MANY_REGISTERS && first + 64 <= head.n {
        rows::<S, 4>(s, head, first, state, y);
        first += 64;
    }
    while first < head.n {
        rows::<S, 1>(s, head, first, state, y);
        first += 16;
    }
}

/// All tokens for the `16 * R` rows from `first` on.
#[inline(always)]
fn rows<S: Lanes, const R: usize>(s: S, head: Wkv7<'_>, first: usize, state: &mut [f32], y: &mut [f32]) {
    let n = head.n;
    let tokens = y.len() / n;
    if tokens == 0 {
        return;
    }
    let mut removed = [s.splat(0.0); R];
    for (q, &kk) in head.kk[..n].iter().enumerate() {
        let kk = s.splat(kk);
        let (old, _) = state[q * n + first..][..16 * R].as_chunks();
        for i in 0..R {
            removed[i] = s.fnma(s.load(&old[i]), kk, removed[i]);
        }
    }
    for t in 0..tokens - 1 {
        let token = Token::of(head, t, t + 1);
        removed = step::<S, R, true>(s, token, first, removed, state, &mut y[t * n..][..n]);
    }
    let last = tokens - 1;
    step::<S, R, false>(s, Token::of(head, last, last), first, removed, state, &mut y[last * n..]);
}

/// The inputs of one token, and the removal key of the next.
struct Token<'a> {
    r: &'a [f32],
    w: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    kka: &'a [f32],
    next: &'a [f32],
}

impl<'a> Token<'a> {
    #[inline(always)]
    fn of(head: Wkv7<'a>, t: usize, next: usize) -> Token<'a> {
        let row = |input: &'a [f32], t| &input[t * head.n..][..head.n];
        Token {
            r: row(head.r, t),
            w: row(head.w, t),
            k: row(head.k, t),
            v: row(head.v, t),
            kka: row(head.kka, t),
            next: row(head.kk, next),
        }
    }
}

/// Applies one token; returns what the next one will remove, if there is `MORE`.
#[inline(always)]
fn step<S: Lanes, const R: usize, const MORE: bool>(
    s: S,
    token: Token<'_>,
    first: usize,
    removed: [S::V; R],
    state: &mut [f32],
    y: &mut [f32],
) -> [S::V; R] {
    let mut v = [s.splat(0.0); R];
    for (i, v) in v.iter_mut().enumerate() {
        *v = s.get(token.v, first + 16 * i);
    }
    let mut out = [s.splat(0.0); R];
    let mut removed_next = [s.splat(0.0); R];
    // Slices of one length, so that their bounds are checked once; zipped iterators are not inlined here.
    let Token { r, w, k, kka, next, .. } = token;
    let n = r.len();
    let (w, k, kka, next) = (&w[..n], &k[..n], &kka[..n], &next[..n]);
    assert!(state.len() == n * n && first + 16 * R <= n, "{R} times 16 rows from {first} on of {n}");
    for q in 0..n {
        // A bounds check here costs a tenth of the speed.
        // SAFETY: the state is `n` columns of `n` elements, `q < n`, and `first + 16 * R <= n` by the assertion.
        let rows: &mut [[f32; 16]; R] = unsafe { &mut *state.as_mut_ptr().add(q * n + first).cast() };
        let (r, w, k) = (s.splat(r[q]), s.splat(w[q]), s.splat(k[q]));
        let (kka, next) = (s.splat(kka[q]), s.splat(next[q]));
        for i in 0..R {
            let decayed = s.decayed(s.load(&rows[i]), w);
            let new = s.fma(v[i], k, s.fma(removed[i], kka, decayed));
            s.store(new, &mut rows[i]);
            out[i] = s.fma(new, r, out[i]);
            if MORE {
                removed_next[i] = s.fnma(new, next, removed_next[i]);
            }
        }
    }
    for (i, out) in out.into_iter().enumerate() {
        s.put(out, y, first + 16 * i);
    }
    removed_next
}
