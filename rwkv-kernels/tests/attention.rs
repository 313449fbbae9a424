//! Attention over a cache: equal bits on every instruction set and for every way to cut the cache, and the right numbers.
#![allow(clippy::single_range_in_vec_init, reason = "a list of ranges may have one")]

mod bits;

use std::ops::Range;

use bits::{Numbers, assert_equal_bits};
use rwkv_kernels::{
    Isa, KvBlock, KvFormat, KvHead, KvRows, KvRowsMut, attend, attend_each, attention_weights,
};

/// Keys or values as they are stored.
enum Stored {
    F32(Vec<f32>),
    F16(Vec<u16>),
}

impl Stored {
    fn zeroed(format: KvFormat, len: usize) -> Stored {
        match format {
            KvFormat::F32 => Stored::F32(vec![0.0; len]),
            KvFormat::F16 => Stored::F16(vec![0; len]),
        }
    }

    fn rows(&self) -> KvRows<'_> {
        match self {
            Stored::F32(rows) => KvRows::F32(rows),
            Stored::F16(rows) => KvRows::F16(rows),
        }
    }

    fn rows_mut(&mut self) -> KvRowsMut<'_> {
        match self {
            Stored::F32(rows) => KvRowsMut::F32(rows),
            Stored::F16(rows) => KvRowsMut::F16(rows),
        }
    }
}

/// The cache of a head, owned.
struct Cache {
    n: usize,
    block_rows: usize,
    blocks: Vec<[Stored; 2]>,
}

impl Cache {
    /// Holds these keys and values, both `[rows, n]`.
    fn new(format: KvFormat, n: usize, block_rows: usize, keys: &[f32], values: &[f32]) -> Cache {
        let mut blocks: Vec<[Stored; 2]> = Vec::new();
        for (row, (key, value)) in keys.chunks_exact(n).zip(values.chunks_exact(n)).enumerate() {
            if row % block_rows == 0 {
                blocks.push([(); 2].map(|()| Stored::zeroed(format, block_rows * n)));
            }
            let [stored_keys, stored_values] = blocks.last_mut().unwrap();
            stored_keys.rows_mut().write_key(row % block_rows, key);
            stored_values.rows_mut().write_value(row % block_rows, value);
        }
        Cache { n, block_rows, blocks }
    }

    fn view<T>(&self, f: impl FnOnce(KvHead<'_>) -> T) -> T {
        let blocks: Vec<KvBlock<'_>> =
            self.blocks.iter().map(|[k, v]| KvBlock { keys: k.rows(), values: v.rows() }).collect();
        f(KvHead { n: self.n, block_rows: self.block_rows, blocks: &blocks })
    }

    fn attend(&self, isa: Isa, q: &[f32], visible: &[Range<usize>], y: &mut [f32]) -> Vec<f32> {
        let mut weights = Vec::new();
        self.view(|head| attend(isa, q, head, visible, &mut weights, y));
        weights
    }
}

const FORMATS: [KvFormat; 2] = [KvFormat::F32, KvFormat::F16];

#[test]
fn every_instruction_set_gives_the_same_bits() {
    for format in FORMATS {
        for n in [16, 32, 64, 80, 128] {
            for rows in [1, 15, 16, 17, 63, 64, 65, 200] {
                let numbers = &mut Numbers::new((n * rows) as u64);
                let (keys, values) =
                    (numbers.vector(n * rows, -2.0, 2.0), numbers.vector(n * rows, -2.0, 2.0));
                let q = numbers.vector(n, -3.0, 3.0);
                let cache = Cache::new(format, n, 64, &keys, &values);
                let third = rows / 3;
                for visible in
                    [vec![0..rows], vec![third..rows], vec![0..third, rows - third..rows], Vec::new()]
                {
                    let case = format!("{format}, head of {n}, {rows} rows, {visible:?} visible");
                    let seen = visible.iter().map(|range| range.len()).sum::<usize>();
                    assert_equal_bits(&case, &vec![0.0; n + seen], |isa, both| {
                        let (y, weights) = both.split_at_mut(n);
                        weights.copy_from_slice(&cache.attend(isa, &q, &visible, y));
                    });
                }
            }
        }
    }
}

#[test]
fn queries_together_have_the_bits_of_each_alone() {
    let rows = 150;
    let full = |count: usize| (0..count).map(|i| vec![0..rows - count + i + 1]).collect::<Vec<_>>();
    let window = |count: usize, seen: usize| {
        (0..count).map(|i| vec![rows - count + i + 1 - seen..rows - count + i + 1]).collect::<Vec<_>>()
    };
    let chunks = |of: [[usize; 2]; 4]| -> Vec<Vec<Range<usize>>> {
        let ranges = |(i, chunks): (usize, [usize; 2])| {
            let best = chunks.map(|chunk| chunk * 16..chunk * 16 + 16);
            best.into_iter().chain(std::iter::once(128..130 + i)).collect()
        };
        of.into_iter().enumerate().map(ranges).collect()
    };
    let cases = [
        full(1),
        full(3),
        full(4),
        full(5),
        full(24),
        window(9, 100),
        window(8, 3),
        window(8, 1),
        chunks([[1, 4]; 4]),
        chunks([[1, 4], [1, 4], [2, 4], [1, 4]]),
        vec![vec![0..20], vec![0..5, 5..20], vec![0..20], vec![0..20]],
        vec![vec![]; 4],
        vec![vec![0..0], vec![0..7], vec![3..3], vec![1..2]],
    ];
    for format in FORMATS {
        for n in [16, 64, 80] {
            let numbers = &mut Numbers::new(n as u64);
            let (keys, values) = (numbers.vector(n * rows, -2.0, 2.0), numbers.vector(n * rows, -2.0, 2.0));
            let cache = Cache::new(format, n, 48, &keys, &values);
            for lists in &cases {
                let q = numbers.vector(n * lists.len(), -3.0, 3.0);
                let visible: Vec<&[Range<usize>]> = lists.iter().map(Vec::as_slice).collect();
                for &isa in Isa::available() {
                    let (mut expected, mut found) = (vec![7.0; q.len()], vec![8.0; q.len()]);
                    for (i, visible) in lists.iter().enumerate() {
                        cache.attend(isa, &q[i * n..][..n], visible, &mut expected[i * n..][..n]);
                    }
                    cache.view(|head| attend_each(isa, &q, head, &visible, &mut Vec::new(), &mut found));
                    let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
                    assert!(bits(&found) == bits(&expected), "{isa}, {format}, head of {n}, {lists:?}");
                }
            }
        }
    }
}

#[test]
fn wild_numbers() {
    let (n, rows) = (64, 90);
    for seed in 1..30 {
        let numbers = &mut Numbers::new(seed);
        let mut keys = numbers.vector(n * rows, -1.0, 1.0);
        let mut values = keys.clone();
        for stored in [&mut keys, &mut values] {
            for _ in 0..3 {
                let at = numbers.bits() as usize % stored.len();
                stored[at] = numbers.wild(1)[0];
            }
        }
        let q = numbers.vector(n, -1.0, 1.0);
        for format in FORMATS {
            let cache = Cache::new(format, n, 32, &keys, &values);
            assert_equal_bits("wild", &vec![0.0; n], |isa, y| {
                cache.attend(isa, &q, &[0..rows], y);
            });
        }
    }
}

#[test]
fn the_size_of_blocks_and_the_cut_of_ranges_change_no_bit() {
    let (n, rows) = (64, 150);
    let numbers = &mut Numbers::new(3);
    let (keys, values) = (numbers.vector(n * rows, -2.0, 2.0), numbers.vector(n * rows, -2.0, 2.0));
    let q = numbers.vector(n, -3.0, 3.0);
    for &isa in Isa::available() {
        let run = |block_rows: usize, visible: &[Range<usize>]| {
            let mut y = vec![0.0; n];
            let cache = Cache::new(KvFormat::F16, n, block_rows, &keys, &values);
            let weights = cache.attend(isa, &q, visible, &mut y);
            (weights, y)
        };
        let expected = run(256, &[7..rows]);
        for block_rows in [16, 32, 48, 64] {
            assert!(run(block_rows, &[7..rows]) == expected, "{isa}, blocks of {block_rows}");
            assert!(run(block_rows, &[7..30, 30..31, 31..rows]) == expected, "{isa}, ranges cut");
        }
    }
}

#[test]
fn agrees_with_double_precision() {
    let (n, rows) = (64, 3000);
    let numbers = &mut Numbers::new(4);
    let (keys, values) = (numbers.vector(n * rows, -2.0, 2.0), numbers.vector(n * rows, -2.0, 2.0));
    let q = numbers.vector(n, -3.0, 3.0);
    let visible = [100..1100, 2000..rows];
    for (format, limit) in [(KvFormat::F32, 2e-6), (KvFormat::F16, 2e-3)] {
        let cache = Cache::new(format, n, 64, &keys, &values);
        let mut y = vec![0.0; n];
        let weights = cache.attend(Isa::detect(), &q, &visible, &mut y);
        let seen: Vec<usize> = visible.iter().cloned().flatten().collect();
        let scores: Vec<f64> = seen
            .iter()
            .map(|row| (0..n).map(|c| f64::from(q[c]) * f64::from(keys[row * n + c])).sum::<f64>() / 8.0)
            .collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().map(|score| (score - max).exp()).sum();
        let exact: Vec<f64> = scores.iter().map(|score| (score - max).exp() / total).collect();
        for (i, (&weight, &exact)) in weights.iter().zip(&exact).enumerate() {
            assert!(
                (f64::from(weight) - exact).abs() < limit,
                "{format}: weight {i} is {weight}, not {exact}"
            );
        }
        for (c, &y) in y.iter().enumerate() {
            let exact: f64 = seen.iter().zip(&exact).map(|(row, w)| w * f64::from(values[row * n + c])).sum();
            assert!((f64::from(y) - exact).abs() < limit, "{format}: channel {c} is {y}, not {exact}");
        }
    }
}

#[test]
fn rows_are_read_as_they_were_written() {
    let (n, rows) = (48, 40);
    let numbers = &mut Numbers::new(5);
    let (keys, values) = (numbers.vector(n * rows, -2.0, 2.0), numbers.vector(n * rows, -2.0, 2.0));
    let cache = Cache::new(KvFormat::F32, n, 48, &keys, &values);
    let mut row = vec![0.0; n];
    for i in 0..rows {
        cache.blocks[0][0].rows().read_key(i, &mut row);
        assert_eq!(row, keys[i * n..][..n]);
        cache.blocks[0][1].rows().read_value(i, &mut row);
        assert_eq!(row, values[i * n..][..n]);
    }
}

#[test]
fn a_single_row_is_its_own_value() {
    let numbers = &mut Numbers::new(6);
    let (key, value) = (numbers.vector(64, -1.0, 1.0), numbers.vector(64, -1.0, 1.0));
    let mut y = vec![7.0; 64];
    let cache = Cache::new(KvFormat::F32, 64, 16, &key, &value);
    assert_eq!(cache.attend(Isa::detect(), &key, &[0..1], &mut y), [1.0]);
    assert_eq!(y, value);
    cache.attend(Isa::detect(), &key, &[], &mut y);
    assert_eq!(y, [0.0; 64], "nothing is visible");
}

#[test]
fn names_of_formats_round_trip() {
    for format in FORMATS {
        assert_eq!(format.name().parse(), Ok(format));
    }
    assert!("bf16".parse::<KvFormat>().is_err());
}

#[test]
#[should_panic(expected = "visible rows 0..17 of 16")]
fn a_row_that_is_not_there_is_refused() {
    let cache = Cache::new(KvFormat::F16, 16, 16, &[0.0; 16], &[0.0; 16]);
    cache.attend(Isa::scalar(), &[0.0; 16], &[0..17], &mut [0.0; 16]);
}

#[test]
#[should_panic(expected = "a head of 24 channels; expected a multiple of 16")]
fn an_odd_head_is_refused() {
    let head = KvHead { n: 24, block_rows: 16, blocks: &[] };
    attention_weights(Isa::scalar(), &[0.0; 24], head, &[], &mut Vec::new());
}
