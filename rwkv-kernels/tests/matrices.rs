//! Products with row tiles and columns: the bits of the definition, whatever the instruction set, the
//! number of rows and the split; and the definition is right.

use rwkv_kernels::{
    Activations, Codec, Columns, EncodeError, Isa, LayoutError, Panels, RowTiles, SparseRows, TILE_ROWS,
    Team, encode_columns, encode_row_tiles, matmul, matmul_columns,
};

/// What the outputs are pre-filled with, and what must follow them untouched.
const GUARD: f32 = -77.25;

/// A fixed sequence of numbers that look random.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 32
    }

    /// In -1..1.
    fn float(&mut self) -> f32 {
        (self.next() as f32 / (1u64 << 31) as f32) - 1.0
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }

    /// Of which some 80 % are zero.
    fn sparse(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| if self.next().is_multiple_of(5) { self.float().abs() } else { 0.0 }).collect()
    }
}

fn panels(rows: usize, cols: usize, values: &[f32]) -> Panels {
    let mut panels = Panels::zeroed(rows, cols, cols);
    panels.as_mut_slice().copy_from_slice(values);
    panels
}

fn activations(isa: Isa, x: &Panels, codec: Codec) -> Activations {
    let mut activations = Activations::new();
    activations.prepare(isa, x, codec.forms());
    activations
}

fn tiles(codec: Codec, rows: usize, cols: usize, weights: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_row_tiles(codec, rows, cols, weights, &mut bytes).expect("these weights fit every codec");
    bytes
}

fn columns(codec: Codec, rows: usize, cols: usize, weights: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_columns(codec, rows, cols, weights, 0..cols, &mut bytes).expect("these weights fit every codec");
    bytes
}

fn run_tiles(isa: Isa, w: RowTiles<'_>, x: &Panels) -> Vec<u32> {
    let mut y = vec![GUARD; x.rows() * w.rows() + 32];
    let (out, guard) = y.split_at_mut(x.rows() * w.rows());
    matmul(isa, w, &activations(isa, x, w.codec()), out);
    assert!(guard.iter().all(|&g| g == GUARD), "{isa} {} wrote past the end", w.codec());
    out.iter().map(|y| y.to_bits()).collect()
}

fn run_columns(isa: Isa, w: Columns<'_>, outs: std::ops::Range<usize>, x: &Panels) -> Vec<u32> {
    let mut sparse = SparseRows::new();
    sparse.gather(isa, x);
    let mut y = vec![GUARD; x.rows() * outs.len() + 80];
    let (out, guard) = y.split_at_mut(x.rows() * outs.len());
    matmul_columns(isa, w, outs, &sparse, out);
    assert!(guard.iter().all(|&g| g == GUARD), "{isa} {} wrote past the end", w.codec());
    out.iter().map(|y| y.to_bits()).collect()
}

fn column_codecs() -> impl Iterator<Item = Codec> {
    Codec::ALL.into_iter().filter(|&codec| codec != Codec::I8)
}

#[test]
fn row_tiles_have_the_bits_of_the_definition_for_every_row_count() {
    let mut rng = Rng(1);
    for codec in Codec::ALL {
        for (rows, cols) in [(1, 1), (15, 63), (16, 64), (17, 65), (100, 200), (160, 320)] {
            let bytes = tiles(codec, rows, cols, &rng.floats(rows * cols));
            let w = RowTiles::new(codec, rows, cols, &bytes).expect("encoded for this shape");
            for n in 0..=20 {
                let x = panels(n, cols, &rng.floats(n * cols));
                let expected = run_tiles(Isa::scalar(), w, &x);
                for &isa in Isa::available() {
                    assert_eq!(run_tiles(isa, w, &x), expected, "{isa} {codec} {rows}x{cols}, {n} rows");
                }
            }
        }
    }
}

#[test]
fn columns_have_the_bits_of_the_definition_for_every_row_count() {
    let mut rng = Rng(2);
    for codec in column_codecs() {
        for (rows, cols) in [(1, 1), (63, 5), (64, 127), (65, 128), (200, 300), (2200, 70)] {
            let bytes = columns(codec, rows, cols, &rng.floats(rows * cols));
            let w = Columns::new(codec, rows, cols, &bytes).expect("encoded for this shape");
            // A few rows, and more than a few, as pairs and with one left over.
            for n in (0..=20).chain([24, 25, 26, 41]) {
                let x = panels(n, cols, &rng.sparse(n * cols));
                let expected = run_columns(Isa::scalar(), w, 0..rows, &x);
                for &isa in Isa::available() {
                    assert_eq!(
                        run_columns(isa, w, 0..rows, &x),
                        expected,
                        "{isa} {codec} {rows}x{cols}, {n} rows"
                    );
                }
            }
        }
    }
}

#[test]
fn columns_do_not_change_with_the_share_of_zeros() {
    let (rows, cols) = (192, 150);
    let mut rng = Rng(3);
    let weights = rng.floats(rows * cols);
    for codec in column_codecs() {
        let bytes = columns(codec, rows, cols, &weights);
        let w = Columns::new(codec, rows, cols, &bytes).expect("encoded for this shape");
        for n in [1, 9] {
            for x in [vec![0.0; n * cols], rng.floats(n * cols)] {
                let x = panels(n, cols, &x);
                let expected = run_columns(Isa::scalar(), w, 0..rows, &x);
                for &isa in Isa::available() {
                    assert_eq!(run_columns(isa, w, 0..rows, &x), expected, "{isa} {codec}, {n} rows");
                }
            }
        }
    }
}

/// A row's output depends on that row alone: not on the rows beside it, on the tiles of the same call, or on the thread.
#[test]
fn no_split_changes_a_bit() {
    let (rows, cols, n) = (176, 192, 7);
    let mut rng = Rng(4);
    let (weights, x) = (rng.floats(rows * cols), panels(n, cols, &rng.sparse(n * cols)));
    for &isa in Isa::available() {
        for codec in Codec::ALL {
            let bytes = tiles(codec, rows, cols, &weights);
            let w = RowTiles::new(codec, rows, cols, &bytes).expect("encoded for this shape");
            let whole = run_tiles(isa, w, &x);
            for threads in 1..=4 {
                for step in [1, 2, 3, 5] {
                    let mut parts: Vec<(RowTiles<'_>, Vec<u32>)> = (0..w.tiles())
                        .step_by(step)
                        .map(|t| (w.tile_range(t..w.tiles().min(t + step)), Vec::new()))
                        .collect();
                    Team::new(threads).for_each(&mut parts, |(w, y)| *y = run_tiles(isa, *w, &x));
                    for (p, (w, part)) in parts.iter().enumerate() {
                        for r in 0..n {
                            let row = &whole[r * rows + p * step * TILE_ROWS..][..w.rows()];
                            assert_eq!(
                                &part[r * w.rows()..][..w.rows()],
                                row,
                                "{isa} {codec} {threads} threads"
                            );
                        }
                    }
                }
            }
            for r in 0..n {
                let alone = panels(1, cols, &x.as_slice()[r * cols..][..cols]);
                assert_eq!(
                    run_tiles(isa, w, &alone),
                    whole[r * rows..][..rows],
                    "{isa} {codec} row {r} alone"
                );
            }
        }
        for codec in column_codecs() {
            let bytes = columns(codec, rows, cols, &weights);
            let w = Columns::new(codec, rows, cols, &bytes).expect("encoded for this shape");
            let whole = run_columns(isa, w, 0..rows, &x);
            for (start, end) in [(0, 64), (64, 128), (64, 176), (128, 129), (0, 1)] {
                let part = run_columns(isa, w, start..end, &x);
                for r in 0..n {
                    let row = &whole[r * rows..][start..end];
                    assert_eq!(
                        &part[r * (end - start)..][..end - start],
                        row,
                        "{isa} {codec} {start}..{end}"
                    );
                    let alone = panels(1, cols, &x.as_slice()[r * cols..][..cols]);
                    assert_eq!(run_columns(isa, w, start..end, &alone), *row, "{isa} {codec} row {r} alone");
                }
            }
        }
    }
}

/// Products agree with f64 arithmetic on the decoded weights, as closely as the activations are quantised.
#[test]
fn the_definition_multiplies_the_decoded_weights() {
    let (rows, cols, n) = (40, 300, 3);
    let mut rng = Rng(5);
    let (weights, x) = (rng.floats(rows * cols), rng.floats(n * cols));
    for codec in Codec::ALL {
        let quantised = matches!(codec, Codec::U8 | Codec::I8 | Codec::U4);
        let bytes = tiles(codec, rows, cols, &weights);
        let w = RowTiles::new(codec, rows, cols, &bytes).expect("encoded for this shape");
        let y = run_tiles(Isa::scalar(), w, &panels(n, cols, &x));
        let mut row = vec![0.0; cols];
        for r in 0..rows {
            w.decode_row(r, &mut row);
            for t in 0..n {
                let x = &x[t * cols..][..cols];
                let exact: f64 = row.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
                // Each activation is off by at most half a step of 1/127 of its group's largest, here 1.
                let bound: f64 =
                    if quantised { row.iter().map(|w| f64::from(w.abs()) * 0.5 / 127.0).sum() } else { 0.0 };
                let found = f64::from(f32::from_bits(y[t * rows + r]));
                assert!((found - exact).abs() <= bound + 1e-4, "{codec}: {found} for {exact} within {bound}");
            }
        }
    }
    for codec in column_codecs() {
        let bytes = columns(codec, rows, cols, &weights);
        let w = Columns::new(codec, rows, cols, &bytes).expect("encoded for this shape");
        let y = run_columns(Isa::scalar(), w, 0..rows, &panels(n, cols, &x));
        for t in 0..n {
            let mut exact = vec![0.0f64; rows];
            let mut column = vec![0.0; rows];
            for k in 0..cols {
                w.decode_column(k, &mut column);
                for (sum, &w) in exact.iter_mut().zip(&column) {
                    *sum += f64::from(w) * f64::from(x[t * cols + k]);
                }
            }
            for (r, exact) in exact.iter().enumerate() {
                let found = f64::from(f32::from_bits(y[t * rows + r]));
                assert!((found - exact).abs() <= 1e-4, "{codec}: {found} for {exact}");
            }
        }
    }
}

/// A float codec is exact (or rounds once); u8 and i8 are off by at most half a step, and u4, which may cut off the ends of a
/// group's range, is on the mean square.
#[test]
fn encoding_is_within_half_a_step() {
    let (rows, cols) = (33, 130);
    let mut rng = Rng(6);
    let weights: Vec<f32> =
        rng.floats(rows * cols).iter().enumerate().map(|(i, w)| w + (i % 7) as f32).collect();
    for codec in Codec::ALL {
        let bytes = tiles(codec, rows, cols, &weights);
        let w = RowTiles::new(codec, rows, cols, &bytes).expect("encoded for this shape");
        let mut decoded = vec![0.0; cols];
        for (r, row) in weights.chunks_exact(cols).enumerate() {
            w.decode_row(r, &mut decoded);
            for (g, (row, decoded)) in row.chunks(32).zip(decoded.chunks(32)).enumerate() {
                let group = if codec == Codec::U8 {
                    &weights[r * cols..][..cols][g / 2 * 64..cols.min(g / 2 * 64 + 64)]
                } else {
                    row
                };
                let (low, high) = group.iter().fold((f32::MAX, f32::MIN), |(l, h), &w| (l.min(w), h.max(w)));
                // f16 rounds the minimum down and the scale up, by one part in 1024 each.
                let step = |levels: f32| (high - low + low.abs() / 1024.0) / levels * (1.0 + 1.0 / 1024.0);
                let squares: f32 = row.iter().zip(decoded).map(|(w, d)| (w - d).powi(2)).sum();
                let mean = (squares / row.len() as f32).sqrt();
                for (&w, &d) in row.iter().zip(decoded) {
                    let bound = match codec {
                        Codec::F32 => 0.0,
                        Codec::F16 => w.abs() / 2048.0,
                        Codec::Bf16 => w.abs() / 256.0,
                        Codec::I8 => 7.0 / 127.0 * 0.5,
                        Codec::U8 => step(255.0) * 0.5,
                        Codec::U4 => {
                            assert!(
                                mean <= step(15.0) * 0.5 * 1.001,
                                "u4: off by {mean}, step {}",
                                step(15.0)
                            );
                            step(15.0) * 1.5
                        }
                        _ => unreachable!("a codec without a bound"),
                    };
                    assert!((w - d).abs() <= bound * 1.001, "{codec}: {w} became {d}, bound {bound}");
                }
            }
        }
    }
}

/// Codes at their ends, scales that are subnormal, activations that are equal, huge, infinite or NaN.
#[test]
fn extremes_have_the_bits_of_the_definition() {
    let (rows, cols) = (32, 128);
    let weight_cases: [(&str, Vec<f32>); 7] = [
        ("all zero", vec![0.0; rows * cols]),
        ("all equal", vec![0.375; rows * cols]),
        ("all -128", vec![-128.0; rows * cols]),
        ("all 127", vec![127.0; rows * cols]),
        ("alternating ends", (0..rows * cols).map(|i| if i % 2 == 0 { -128.0 } else { 127.0 }).collect()),
        ("subnormal", (0..rows * cols).map(|i| f32::from_bits(i as u32 + 1)).collect()),
        ("subnormal scale", (0..rows * cols).map(|i| (i % 5) as f32 * 1e-7).collect()),
    ];
    let mut specials = vec![0.5f32; cols];
    specials[3] = f32::NAN;
    specials[70] = f32::NEG_INFINITY;
    let input_cases: [(&str, Vec<f32>); 8] = [
        ("zero", vec![0.0; cols]),
        ("negative zero", vec![-0.0; cols]),
        ("largest code", vec![1.0; cols]),
        ("alternating ends", (0..cols).map(|k| if k % 2 == 0 { 1.0 } else { -1.0 }).collect()),
        ("subnormal", vec![f32::from_bits(77); cols]),
        ("huge", vec![3e38; cols]),
        ("not finite", specials),
        ("ties", (0..cols).map(|k| if k % 64 == 0 { 127.0 } else { k as f32 - 63.5 }).collect()),
    ];
    for codec in Codec::ALL {
        for (weights_name, weights) in &weight_cases {
            for (input_name, input) in &input_cases {
                let case = format!("{codec}, weights {weights_name}, input {input_name}");
                for n in [1, 8] {
                    let x = panels(n, cols, &input.repeat(n));
                    let bytes = tiles(codec, rows, cols, weights);
                    let w = RowTiles::new(codec, rows, cols, &bytes).expect("encoded for this shape");
                    let expected = canonical(run_tiles(Isa::scalar(), w, &x));
                    for &isa in Isa::available() {
                        assert_eq!(canonical(run_tiles(isa, w, &x)), expected, "{isa} {case}");
                    }
                    if codec != Codec::I8 {
                        let bytes = columns(codec, rows, cols, weights);
                        let w = Columns::new(codec, rows, cols, &bytes).expect("encoded for this shape");
                        let expected = canonical(run_columns(Isa::scalar(), w, 0..rows, &x));
                        for &isa in Isa::available() {
                            assert_eq!(canonical(run_columns(isa, w, 0..rows, &x)), expected, "{isa} {case}");
                        }
                    }
                }
            }
        }
    }
}

/// The sign and payload of a NaN that arithmetic makes are no part of IEEE 754; that it is one is.
fn canonical(bits: Vec<u32>) -> Vec<u32> {
    bits.into_iter().map(|b| if f32::from_bits(b).is_nan() { f32::NAN.to_bits() } else { b }).collect()
}

/// A NaN or an infinity among the inputs must show in the outputs, and not as a plausible number.
#[test]
fn what_is_not_finite_reaches_the_output() {
    let (rows, cols) = (16, 64);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut input = vec![0.25; cols];
        input[9] = bad;
        let x = panels(1, cols, &input);
        for codec in Codec::ALL {
            let bytes = tiles(codec, rows, cols, &vec![0.5; rows * cols]);
            let w = RowTiles::new(codec, rows, cols, &bytes).expect("encoded for this shape");
            for &isa in Isa::available() {
                for bits in run_tiles(isa, w, &x) {
                    assert!(!f32::from_bits(bits).is_finite(), "{isa} {codec} {bad}");
                }
            }
        }
    }
}

#[test]
fn slabs_and_ranges_encode_as_the_whole() {
    let (rows, cols) = (70, 90);
    let weights = Rng(7).floats(rows * cols);
    for codec in Codec::ALL {
        let mut slabs = Vec::new();
        for slab in weights.chunks(32 * cols) {
            encode_row_tiles(codec, slab.len() / cols, cols, slab, &mut slabs).expect("these weights fit");
        }
        assert_eq!(slabs, tiles(codec, rows, cols, &weights), "{codec} slabs");
        if codec != Codec::I8 {
            let mut ranges = Vec::new();
            for range in [0..7, 7..64, 64..90] {
                encode_columns(codec, rows, cols, &weights, range, &mut ranges).expect("these weights fit");
            }
            assert_eq!(ranges, columns(codec, rows, cols, &weights), "{codec} ranges");
        }
    }
}

#[test]
fn what_cannot_be_stored_is_refused() {
    let mut out = vec![1, 2, 3];
    let mut weights = vec![0.0; 16 * 8];
    weights[19] = f32::NAN;
    assert!(matches!(
        encode_row_tiles(Codec::U8, 16, 8, &weights, &mut out),
        Err(EncodeError::NotFinite { row: 2, col: 3, value }) if value.is_nan()
    ));
    weights[19] = 70_000.0;
    for codec in [Codec::F16, Codec::U8, Codec::U4] {
        let refused = EncodeError::TooLarge { row: 2, col: 3, value: 70_000.0, codec };
        assert_eq!(encode_row_tiles(codec, 16, 8, &weights, &mut out), Err(refused.clone()));
        assert_eq!(encode_columns(codec, 16, 8, &weights, 0..8, &mut out), Err(refused));
    }
    assert_eq!(out, [1, 2, 3], "a refused matrix leaves nothing behind");
    for codec in [Codec::F32, Codec::Bf16, Codec::I8] {
        encode_row_tiles(codec, 16, 8, &weights, &mut Vec::new()).expect("these reach that far");
    }
    assert!(matches!(RowTiles::byte_len(Codec::U8, 0, 64), Err(LayoutError::Shape { .. })));
    assert!(matches!(RowTiles::byte_len(Codec::I8, 16, 65_537), Err(LayoutError::Shape { .. })));
    assert!(matches!(RowTiles::byte_len(Codec::F32, usize::MAX / 64, 4096), Err(LayoutError::Shape { .. })));
    assert!(matches!(Columns::byte_len(Codec::F32, usize::MAX, 4096), Err(LayoutError::Shape { .. })));
    assert!(matches!(Columns::byte_len(Codec::I8, 64, 64), Err(LayoutError::NoColumns { .. })));
    assert!(matches!(
        RowTiles::new(Codec::U8, 16, 64, &[0; 1087]),
        Err(LayoutError::Length { found: 1087, expected: 1088, .. })
    ));
}
