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
    for (column, &kk) in state.chunks_exact(n).zip(&head.kk[..n]) {
        let kk = s.splat(kk);
        let (old, _) = column[first..first + 16 * R].as_chunks();
        for i in 0..R {
            removed[i] = s.fnma(s.load(&old[i]), kk, removed[i]);
        }
    }
    let mut out = y.chunks_exact_mut(n);
    for t in 0..tokens - 1 {
        let next = &head.kk[(t + 1) * n..(t + 2) * n];
        let token = Token::of(head, t, next);
        removed = step::<S, R, true>(s, token, first, removed, state, out.next().unwrap_or_default());
    }
    let last = Token::of(head, tokens - 1, &head.kk[..n]);
    step::<S, R, false>(s, last, first, removed, state, out.next().unwrap_or_default());
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
    fn of(head: Wkv7<'a>, t: usize, next: &'a [f32]) -> Token<'a> {
        let of = |input: &'a [f32]| &input[t * head.n..(t + 1) * head.n];
        Token { r: of(head.r), w: of(head.w), k: of(head.k), v: of(head.v), kka: of(head.kka), next }
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
    let inputs = token.r.iter().zip(token.w).zip(token.k).zip(token.kka).zip(token.next);
    for (column, ((((&r, &w), &k), &kka), &next)) in state.chunks_exact_mut(token.r.len()).zip(inputs) {
        let (r, w, k, kka, next) = (s.splat(r), s.splat(w), s.splat(k), s.splat(kka), s.splat(next));
        let (rows, _) = column[first..first + 16 * R].as_chunks_mut();
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
