//! WKV-7: equal bits on every instruction set and for every split of the tokens, and the right numbers.

mod bits;

use bits::{Numbers, assert_equal_bits};
use rwkv_kernels::{Isa, Wkv7, wkv7};

/// The inputs of some tokens of one head, owned.
struct Tokens {
    n: usize,
    r: Vec<f32>,
    w: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    kk: Vec<f32>,
    kka: Vec<f32>,
}

impl Tokens {
    /// What a model gives: decays in its range, removal keys of length 1, learning rates in (0, 1).
    fn ordinary(numbers: &mut Numbers, n: usize, count: usize) -> Tokens {
        let mut kk = numbers.vector(n * count, -1.0, 1.0);
        for row in kk.chunks_exact_mut(n) {
            let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt();
            row.iter_mut().for_each(|x| *x /= norm);
        }
        let kka = kk.iter().map(|x| x * numbers.uniform(0.0, 1.0)).collect();
        Tokens {
            n,
            r: numbers.vector(n * count, -2.0, 2.0),
            w: numbers.vector(n * count, 0.545, 1.0),
            k: numbers.vector(n * count, -2.0, 2.0),
            v: numbers.vector(n * count, -2.0, 2.0),
            kk,
            kka,
        }
    }

    fn len(&self) -> usize {
        self.r.len() / self.n
    }

    fn head(&self, from: usize, to: usize) -> Wkv7<'_> {
        let range = from * self.n..to * self.n;
        Wkv7 {
            n: self.n,
            r: &self.r[range.clone()],
            w: &self.w[range.clone()],
            k: &self.k[range.clone()],
            v: &self.v[range.clone()],
            kk: &self.kk[range.clone()],
            kka: &self.kka[range],
        }
    }

    /// State and results, one after the other, with the calls split after these tokens.
    fn run(&self, isa: Isa, state: &mut [f32], y: &mut [f32], splits: &[usize]) {
        let mut from = 0;
        for &to in splits.iter().chain(&[self.len()]) {
            wkv7(isa, self.head(from, to), state, &mut y[from * self.n..to * self.n]);
            from = to;
        }
    }
}

#[test]
fn every_head_size() {
    for n in (16..=256).step_by(16) {
        let mut numbers = Numbers::new(n as u64);
        for count in [0, 1, 2, 5] {
            let tokens = Tokens::ordinary(&mut numbers, n, count);
            let both = numbers.vector(n * n + n * count, -1.0, 1.0);
            assert_equal_bits(&format!("head of {n}, {count} tokens"), &both, |isa, both| {
                let (state, y) = both.split_at_mut(n * n);
                tokens.run(isa, state, y, &[]);
            });
        }
    }
}

#[test]
fn wild_inputs() {
    for seed in 1..40 {
        let numbers = &mut Numbers::new(seed);
        let n = 64;
        let mut tokens = Tokens::ordinary(numbers, n, 3);
        for input in [&mut tokens.r, &mut tokens.w, &mut tokens.k, &mut tokens.v, &mut tokens.kka] {
            for _ in 0..3 {
                let at = numbers.bits() as usize % input.len();
                input[at] = numbers.wild(1)[0];
            }
        }
        let mut both = numbers.wild(n * n + n * 3);
        if seed % 2 == 0 {
            both.iter_mut().for_each(|x| *x = if x.abs() < 1e3 { *x } else { 1.0 });
        }
        assert_equal_bits("wild", &both, |isa, both| {
            let (state, y) = both.split_at_mut(n * n);
            tokens.run(isa, state, y, &[]);
        });
    }
}

#[test]
fn splits_change_nothing() {
    for count in [1, 15, 16, 17, 64, 65] {
        for n in [32, 64, 80] {
            let numbers = &mut Numbers::new(7);
            let tokens = Tokens::ordinary(numbers, n, count);
            let state = numbers.vector(n * n, -1.0, 1.0);
            for &isa in Isa::available() {
                let run = |splits: &[usize]| {
                    let (mut state, mut y) = (state.clone(), vec![0.0; n * count]);
                    tokens.run(isa, &mut state, &mut y, splits);
                    (state, y)
                };
                let whole = run(&[]);
                let single: Vec<usize> = (0..count).collect();
                for splits in [&single[..], &[count / 2], &[1.min(count - 1), count - 1, count - 1]] {
                    assert!(run(splits) == whole, "{isa}, head of {n}, {count} tokens split at {splits:?}");
                }
            }
        }
    }
}

/// The formulas of the paper in double precision.
#[test]
fn agrees_with_double_precision() {
    let (n, count) = (64, 65);
    let numbers = &mut Numbers::new(8);
    let tokens = Tokens::ordinary(numbers, n, count);
    let mut state = numbers.vector(n * n, -1.0, 1.0);
    let mut exact: Vec<f64> = state.iter().map(|&x| f64::from(x)).collect();
    let mut y = vec![0.0; n * count];
    tokens.run(Isa::detect(), &mut state, &mut y, &[]);
    for t in 0..count {
        let of = |input: &[f32], i: usize| f64::from(input[t * n + i]);
        for p in 0..n {
            let removed: f64 = (0..n).map(|q| -exact[q * n + p] * of(&tokens.kk, q)).sum();
            for q in 0..n {
                exact[q * n + p] = exact[q * n + p] * of(&tokens.w, q)
                    + removed * of(&tokens.kka, q)
                    + of(&tokens.v, p) * of(&tokens.k, q);
            }
            let out: f64 = (0..n).map(|q| exact[q * n + p] * of(&tokens.r, q)).sum();
            let error = (f64::from(y[t * n + p]) - out).abs();
            assert!(error < 1e-4, "token {t}, channel {p}: {} instead of {out}", y[t * n + p]);
        }
    }
    let error = state.iter().zip(&exact).map(|(&s, &e)| (f64::from(s) - e).abs()).fold(0.0, f64::max);
    assert!(error < 1e-5, "the state is off by {error}");
}

#[test]
fn a_decay_near_zero_stays_finite() {
    let (n, count) = (64, 256);
    for decay in [0.0, f32::MIN_POSITIVE, 1e-45, 1e-20] {
        let numbers = &mut Numbers::new(9);
        let mut tokens = Tokens::ordinary(numbers, n, count);
        tokens.w.fill(decay);
        let state = numbers.vector(n * n, -1e30, 1e30);
        for &isa in Isa::available() {
            let (mut state, mut y) = (state.clone(), vec![0.0; n * count]);
            tokens.run(isa, &mut state, &mut y, &[]);
            assert!(state.iter().chain(&y).all(|x| x.is_finite()), "{isa}, decay {decay:e}");
        }
    }
}

#[test]
fn a_fading_state_ends_at_zero_and_is_never_denormal() {
    let (n, count) = (32, 1);
    let numbers = &mut Numbers::new(10);
    let mut tokens = Tokens::ordinary(numbers, n, count);
    tokens.k.fill(0.0);
    tokens.kka.fill(0.0);
    for &isa in Isa::available() {
        let mut state = vec![1.0; n * n];
        let mut y = vec![0.0; n];
        for _ in 0..30_000 {
            tokens.w.iter_mut().for_each(|w| *w = w.min(0.99));
            tokens.run(isa, &mut state, &mut y, &[]);
            assert!(state.iter().all(|s| !s.is_subnormal()), "{isa}");
        }
        assert!(state.iter().all(|&s| s == 0.0), "{isa}: the state has not faded away");
    }
}

#[test]
fn nan_is_not_hidden() {
    let n = 16;
    let tokens = Tokens::ordinary(&mut Numbers::new(11), n, 1);
    for &isa in Isa::available() {
        let (mut state, mut y) = (vec![0.0; n * n], vec![0.0; n]);
        state[3 * n + 5] = f32::NAN;
        tokens.run(isa, &mut state, &mut y, &[]);
        let nan: Vec<usize> = (0..n).filter(|&p| y[p].is_nan()).collect();
        assert_eq!(nan, [5], "{isa}: a row has only its own NaN");
    }
}

#[test]
#[should_panic(expected = "head size 24 is not one of 16, 32, .. 256")]
fn an_odd_head_size_is_refused() {
    let tokens = Tokens::ordinary(&mut Numbers::new(12), 24, 1);
    wkv7(Isa::scalar(), tokens.head(0, 1), &mut [0.0; 24 * 24], &mut [0.0; 24]);
}

#[test]
#[should_panic(expected = "one element of kk per result")]
fn a_short_input_is_refused() {
    let tokens = Tokens::ordinary(&mut Numbers::new(13), 16, 2);
    let head = Wkv7 { kk: &tokens.kk[..16], ..tokens.head(0, 2) };
    wkv7(Isa::scalar(), head, &mut [0.0; 256], &mut [0.0; 32]);
}
