//! Products with row tiles: `T` tiles by `C` rows of activations at a time, in registers.

#![allow(clippy::needless_range_loop, reason = "several arrays of registers are indexed alike")]

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::mem::MaybeUninit;

use crate::activations::Activations;
use crate::codec::{Codec, GROUP, TILE_ROWS};
use crate::tiles::{I8_SCALE_BYTES, ROW_HALVES, RowTiles, U4_GROUP_BYTES, U8_GROUP_BYTES};
use crate::x86::tile_ops::{Avx2, Avx512, Avx512Vnni, TileOps};

/// # Safety
/// AVX2, FMA and F16C exist; `x` has the forms and the width of `w`, and `y` is `[x.rows(), w.rows()]`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn avx2(w: RowTiles<'_>, x: &Activations, y: &mut [f32]) {
    // SAFETY: handed on.
    unsafe { Product::<Avx2>::new(w, x, y).run::<1, 4>() }
}

/// # Safety
/// AVX-512 F, BW, DQ and VL exist; sizes as for [`avx2`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
pub(crate) unsafe fn avx512(w: RowTiles<'_>, x: &Activations, y: &mut [f32]) {
    // SAFETY: handed on.
    unsafe { Product::<Avx512>::new(w, x, y).run::<2, 8>() }
}

/// # Safety
/// AVX-512 F, BW, DQ, VL and VNNI exist; sizes as for [`avx2`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(crate) unsafe fn avx512_vnni(w: RowTiles<'_>, x: &Activations, y: &mut [f32]) {
    // SAFETY: handed on.
    unsafe { Product::<Avx512Vnni>::new(w, x, y).run::<2, 8>() }
}

/// How far ahead one row prefetches in each tile: beyond the next page, so that its address is translated
/// before it is needed. Hardware prefetchers stop at a page's end.
const AHEAD: usize = 4352;

/// Prefetches the part of `bytes` bytes that comes [`AHEAD`] later.
#[inline(always)]
unsafe fn prefetch<const T: usize>(w: [*const u8; T], bytes: usize) {
    for w in w {
        for line in (0..bytes).step_by(64) {
            // SAFETY: a prefetch does not fault, wherever it points.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(AHEAD + line).cast()) };
        }
    }
}

struct Product<'a, O> {
    w: RowTiles<'a>,
    x: &'a Activations,
    y: &'a mut [f32],
    ops: std::marker::PhantomData<O>,
}

/// One block of the product: tiles from `tile`, rows of activations from `row`.
#[derive(Clone, Copy)]
struct Block {
    tile: usize,
    row: usize,
}

impl<'a, O: TileOps> Product<'a, O> {
    fn new(w: RowTiles<'a>, x: &'a Activations, y: &'a mut [f32]) -> Self {
        Product { w, x, y, ops: std::marker::PhantomData }
    }

    /// All tiles and rows, in blocks of `T` by `C` and smaller ones for what is left.
    #[inline(always)]
    unsafe fn run<const T: usize, const C: usize>(mut self) {
        // One row is bound by memory: more tiles give more independent chains, and the sums need few registers.
        let wide = if self.x.rows() == 1 { 4 } else { T };
        let mut tile = 0;
        while tile < self.w.tiles() {
            let left = self.w.tiles() - tile;
            // SAFETY: the blocks cover tiles and rows that exist.
            unsafe {
                tile += match left {
                    _ if wide == 4 && left >= 4 => self.rows::<4, 1>(tile),
                    _ if T == 2 && left >= 2 => self.rows::<2, C>(tile),
                    _ => self.rows::<1, C>(tile),
                };
            }
        }
    }

    /// All rows for `T` tiles; returns `T`.
    #[inline(always)]
    unsafe fn rows<const T: usize, const C: usize>(&mut self, tile: usize) -> usize {
        let rows = self.x.rows();
        let mut row = 0;
        // SAFETY: as in `run`.
        unsafe {
            while row + C <= rows {
                self.block::<T, C>(Block { tile, row });
                row += C;
            }
            if C > 4 && row + 4 <= rows {
                self.block::<T, 4>(Block { tile, row });
                row += 4;
            }
            if C > 2 && row + 2 <= rows {
                self.block::<T, 2>(Block { tile, row });
                row += 2;
            }
            if C > 1 && row < rows {
                self.block::<T, 1>(Block { tile, row });
            }
        }
        T
    }

    #[inline(always)]
    unsafe fn block<const T: usize, const C: usize>(&mut self, at: Block) {
        // SAFETY: as in `run`.
        unsafe {
            let sums = match self.w.codec() {
                Codec::F32 => self.floats::<T, C>(at, 4 * TILE_ROWS, |p| O::load_f32(p)),
                Codec::F16 => self.floats::<T, C>(at, ROW_HALVES, |p| O::load_f16(p)),
                Codec::Bf16 => self.floats::<T, C>(at, ROW_HALVES, |p| O::load_bf16(p)),
                Codec::U8 => self.groups_u8::<T, C>(at),
                Codec::U4 => self.groups_u4::<T, C>(at),
                Codec::I8 => self.rows_i8::<T, C>(at),
            };
            for t in 0..T {
                for c in 0..C {
                    self.store(at.tile + t, at.row + c, sums[t][c]);
                }
            }
        }
    }

    /// `acc = fma(w[k], x[k], acc)`, `k` ascending.
    #[inline(always)]
    unsafe fn floats<const T: usize, const C: usize>(
        &self,
        at: Block,
        step: usize,
        load: impl Fn(*const u8) -> O::F,
    ) -> [[O::F; C]; T] {
        // SAFETY: each tile has `cols` times `step` bytes, each row of the dense form at least `cols` elements.
        unsafe {
            let w: [*const u8; T] = std::array::from_fn(|t| self.tile(at.tile + t));
            let x: [*const f32; C] =
                std::array::from_fn(|c| self.x.dense().as_ptr().add((at.row + c) * self.x.padded()));
            let mut acc = [[O::zero(); C]; T];
            for k in 0..self.w.cols() {
                let w = w.map(|w| w.add(k * step));
                if C == 1 && (step == 64 || k % 2 == 0) {
                    prefetch(w, 64);
                }
                let weights: [O::F; T] = std::array::from_fn(|t| load(w[t]));
                for c in 0..C {
                    let x = O::splat(*x[c].add(k));
                    for t in 0..T {
                        acc[t][c] = O::fma(weights[t], x, acc[t][c]);
                    }
                }
            }
            acc
        }
    }

    #[inline(always)]
    unsafe fn groups_u8<const T: usize, const C: usize>(&self, at: Block) -> [[O::F; C]; T] {
        // SAFETY: each tile has `groups` groups of the codec's size, each row of codes `groups` times 64.
        unsafe {
            let groups = self.x.padded() / GROUP;
            let w: [*const u8; T] = std::array::from_fn(|t| self.tile(at.tile + t));
            let x: [*const i8; C] =
                std::array::from_fn(|c| self.x.codes().as_ptr().add((at.row + c) * self.x.padded()));
            let (scales, sums) = (self.x.scales().as_ptr(), self.x.sums().as_ptr());
            let mut acc = [[O::zero(); C]; T];
            for g in 0..groups {
                let w: [*const u8; T] = std::array::from_fn(|t| w[t].add(g * U8_GROUP_BYTES));
                if C == 1 {
                    prefetch(w, U8_GROUP_BYTES);
                }
                let codes = w.map(|w| w.add(2 * ROW_HALVES));
                let d = Self::quads::<T, C, 16>(codes, x.map(|x| x.add(g * GROUP)));
                for t in 0..T {
                    let (scale, min) = (O::load_f16(w[t]), O::load_f16(w[t].add(ROW_HALVES)));
                    for c in 0..C {
                        let i = (at.row + c) * groups + g;
                        let s = O::mul(scale, O::splat(*scales.add(i)));
                        let dotted = O::fma(O::to_f32(d[t][c]), s, acc[t][c]);
                        acc[t][c] = O::fma(O::splat(*sums.add(i)), min, dotted);
                    }
                }
            }
            acc
        }
    }

    #[inline(always)]
    unsafe fn groups_u4<const T: usize, const C: usize>(&self, at: Block) -> [[O::F; C]; T] {
        // SAFETY: as in `groups_u8`.
        unsafe {
            let groups = self.x.padded() / GROUP;
            let w: [*const u8; T] = std::array::from_fn(|t| self.tile(at.tile + t));
            let x: [*const i8; C] =
                std::array::from_fn(|c| self.x.codes().as_ptr().add((at.row + c) * self.x.padded()));
            let (scales, sums) = (self.x.scales().as_ptr(), self.x.half_sums().as_ptr());
            let mut acc = [[O::zero(); C]; T];
            for h in 0..2 * groups {
                let (g, half) = (h / 2, h % 2);
                let w: [*const u8; T] = std::array::from_fn(|t| w[t].add(g * U4_GROUP_BYTES));
                if C == 1 && half == 0 {
                    prefetch(w, U4_GROUP_BYTES);
                }
                let mut d = [[O::izero(); C]; T];
                for pair in 0..4 {
                    let nibbles: [(O::I, O::I); T] = std::array::from_fn(|t| {
                        O::nibbles(O::load_codes(w[t].add(4 * ROW_HALVES + (4 * half + pair) * 64)))
                    });
                    for c in 0..C {
                        let x = x[c].add(g * GROUP + half * 32 + pair * 8);
                        let (low, high) = (O::broadcast(x), O::broadcast(x.add(4)));
                        for t in 0..T {
                            d[t][c] = O::dot(O::dot(d[t][c], nibbles[t].0, low), nibbles[t].1, high);
                        }
                    }
                }
                for t in 0..T {
                    let pair = w[t].add(2 * half * ROW_HALVES);
                    let (scale, min) = (O::load_f16(pair), O::load_f16(pair.add(ROW_HALVES)));
                    for c in 0..C {
                        let row = (at.row + c) * groups;
                        let s = O::mul(scale, O::splat(*scales.add(row + g)));
                        let dotted = O::fma(O::to_f32(d[t][c]), s, acc[t][c]);
                        acc[t][c] = O::fma(O::splat(*sums.add(2 * row + h)), min, dotted);
                    }
                }
            }
            acc
        }
    }

    #[inline(always)]
    unsafe fn rows_i8<const T: usize, const C: usize>(&self, at: Block) -> [[O::F; C]; T] {
        // SAFETY: each tile has its scales and `padded` codes per row, as many as a row of activations.
        unsafe {
            let w: [*const u8; T] = std::array::from_fn(|t| self.tile(at.tile + t));
            let x: [*const i8; C] =
                std::array::from_fn(|c| self.x.row_codes().as_ptr().add((at.row + c) * self.x.padded()));
            let mut d = [[O::izero(); C]; T];
            for g in 0..self.x.padded() / GROUP {
                let codes = w.map(|w| w.add(I8_SCALE_BYTES + g * GROUP * TILE_ROWS));
                if C == 1 {
                    prefetch(codes, GROUP * TILE_ROWS);
                }
                let group = Self::quads::<T, C, 16>(codes, x.map(|x| x.add(g * GROUP)));
                for t in 0..T {
                    for c in 0..C {
                        d[t][c] = O::iadd(d[t][c], group[t][c]);
                    }
                }
            }
            let mut acc = [[O::zero(); C]; T];
            for t in 0..T {
                let scale = O::load_f32(w[t]);
                for c in 0..C {
                    // The codes are stored with a bias of 128: Σ(q - 128)x = Σqx - 128 Σx, exactly.
                    let bias = O::isplat(128 * self.x.row_sums()[at.row + c]);
                    let d = O::to_f32(O::isub(d[t][c], bias));
                    acc[t][c] = O::mul(d, O::mul(scale, O::splat(self.x.row_scales()[at.row + c])));
                }
            }
            acc
        }
    }

    /// Exact dot products over `Q` quads.
    #[inline(always)]
    unsafe fn quads<const T: usize, const C: usize, const Q: usize>(
        w: [*const u8; T],
        x: [*const i8; C],
    ) -> [[O::I; C]; T] {
        // SAFETY: the caller's pointers have `Q` quads.
        unsafe {
            let mut d = [[O::izero(); C]; T];
            if C == 1 {
                // Two sums each, so that the next quad does not wait for the last.
                let mut odd = [O::izero(); T];
                for q in (0..Q).step_by(2) {
                    let (x0, x1) = (O::broadcast(x[0].add(4 * q)), O::broadcast(x[0].add(4 * q + 4)));
                    for t in 0..T {
                        let w = w[t].add(q * 64);
                        d[t][0] = O::dot(d[t][0], O::load_codes(w), x0);
                        odd[t] = O::dot(odd[t], O::load_codes(w.add(64)), x1);
                    }
                }
                for t in 0..T {
                    d[t][0] = O::iadd(d[t][0], odd[t]);
                }
                return d;
            }
            for q in 0..Q {
                let codes: [O::I; T] = std::array::from_fn(|t| O::load_codes(w[t].add(q * 64)));
                for c in 0..C {
                    let x = O::broadcast(x[c].add(4 * q));
                    for t in 0..T {
                        d[t][c] = O::dot(d[t][c], codes[t], x);
                    }
                }
            }
            d
        }
    }

    #[inline(always)]
    unsafe fn tile(&self, tile: usize) -> *const u8 {
        debug_assert!(tile < self.w.tiles());
        // SAFETY: the caller's tile exists.
        unsafe { self.w.bytes().as_ptr().add(tile * self.w.tile_bytes()) }
    }

    /// Writes the outputs of a tile for one row of activations, but not the padding of the last tile.
    #[inline(always)]
    unsafe fn store(&mut self, tile: usize, row: usize, sums: O::F) {
        let first = tile * TILE_ROWS;
        let count = (self.w.rows() - first).min(TILE_ROWS);
        let at = row * self.w.rows() + first;
        // SAFETY: `y` is `[x.rows(), w.rows()]`, so `count` outputs exist from `at` on.
        unsafe {
            if count == TILE_ROWS {
                O::store(self.y.as_mut_ptr().add(at), sums);
            } else {
                let mut tail = MaybeUninit::<[f32; TILE_ROWS]>::uninit();
                O::store(tail.as_mut_ptr().cast(), sums);
                self.y[at..at + count].copy_from_slice(&tail.assume_init()[..count]);
            }
        }
    }
}
