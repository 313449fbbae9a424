//! Sixteen `f32` lanes, whatever registers they take.
//!
//! A kernel is written once, over a token `S: Lanes`, and compiled for each instruction set by
//! [`entries`](super::entries). It consists of `#[inline(always)]` functions all the way down, closures excepted,
//! because only what is inlined into a function with the target features may use them well.

/// The operations on 16 lanes of one instruction set.
///
/// A value of the implementing type is the proof that the instruction set is there: it can only be
/// made inside a function compiled for it.
pub(crate) trait Lanes: Copy {
    /// 16 values of `f32`.
    type V: Copy;
    /// Whether there are registers for 64 rows of a WKV head at a time.
    const MANY_REGISTERS: bool;

    fn splat(self, x: f32) -> Self::V;
    fn load(self, x: &[f32; 16]) -> Self::V;
    /// The bits of 16 numbers of `f16`, widened.
    fn load_f16(self, x: &[u16; 16]) -> Self::V;
    fn store(self, x: Self::V, to: &mut [f32; 16]);

    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `-a * b + c`, rounded once.
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `if a > b { a } else { b }`.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `if a < b { a } else { b }`.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;

    fn abs(self, x: Self::V) -> Self::V;
    fn neg(self, x: Self::V) -> Self::V;
    /// A magnitude that is positive or NaN, with the sign of `sign`.
    fn with_sign(self, magnitude: Self::V, sign: Self::V) -> Self::V;
    /// `if a > b { yes } else { no }`.
    fn if_greater(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// `if x.is_nan() { yes } else { no }`.
    fn if_nan(self, x: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// The bits of `x` plus the bits of `shifted` moved up into the exponent.
    fn add_exponent(self, x: Self::V, shifted: Self::V) -> Self::V;
    /// `s * w`, but zero where the bits of `s` and [`NOT_TINY`](crate::scalar::wkv::NOT_TINY) share none.
    fn decayed(self, s: Self::V, w: Self::V) -> Self::V;

    /// Lane `i` takes in lane `i + 8`, then `i + 4`, `i + 2`, `i + 1`.
    fn fold_sum(self, x: Self::V) -> f32;

    /// `x[at..at + 16]`; lanes past the end are zero.
    #[inline(always)]
    fn get(self, x: &[f32], at: usize) -> Self::V {
        self.get_or(x, at, 0.0)
    }

    /// `x[at..at + 16]`; lanes past the end are `fill`.
    #[inline(always)]
    fn get_or(self, x: &[f32], at: usize, fill: f32) -> Self::V {
        let rest = &x[at..];
        match rest.first_chunk() {
            Some(chunk) => self.load(chunk),
            None => self.load(&padded(rest, fill)),
        }
    }

    /// Writes `x[at..at + 16]`, and nothing past the end.
    #[inline(always)]
    fn put(self, value: Self::V, x: &mut [f32], at: usize) {
        let rest = &mut x[at..];
        match rest.first_chunk_mut() {
            Some(chunk) => self.store(value, chunk),
            None => {
                let mut buffer = [0.0; 16];
                self.store(value, &mut buffer);
                copy_some(&buffer, rest);
            }
        }
    }

    /// `x` with zero in the lanes from `count` on.
    #[inline(always)]
    fn first(self, x: Self::V, count: usize) -> Self::V {
        if count >= 16 {
            return x;
        }
        let mut buffer = [0.0; 16];
        self.store(x, &mut buffer);
        self.load(&padded(&buffer[..count], 0.0))
    }
}

#[cold]
fn padded(x: &[f32], fill: f32) -> [f32; 16] {
    let mut buffer = [fill; 16];
    buffer[..x.len()].copy_from_slice(x);
    buffer
}

#[cold]
fn copy_some(from: &[f32; 16], to: &mut [f32]) {
    to.copy_from_slice(&from[..to.len()]);
}
