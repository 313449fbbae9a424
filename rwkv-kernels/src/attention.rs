//! Attention of one head over the rows of a key/value cache.
//!
//! A cache grows in blocks of `block_rows` rows. Within a block of a head, values are `[rows, n]` row-major, so that a lane is
//! a channel; keys are in tiles of 16 rows, `[rows / 16, n, 16]`, so that a lane is a row. No lane ever talks to another.
//!
//! ```text
//! score[i]  = (sum_c q[c] key[i][c]) / sqrt(n)      one chain of fused multiply-adds, channels ascending
//! weight    = softmax(score)                        over the visible rows, in their order
//! y[c]      = sum_i weight[i] value[i][c]           one chain of fused multiply-adds, visible rows in their order
//! ```
//!
//! Several queries share what is read of the rows that all of them see: [`attend_each`]. Each has sums of its own, in the same
//! order, so that it has the same bits as alone.

use std::array;
use std::fmt;
use std::ops::Range;
use std::slice;
use std::str::FromStr;

use crate::codec::TILE_ROWS;
use crate::dispatch::by_isa;
use crate::isa::Isa;
use crate::norm::softmax;

/// How the rows of a key/value cache are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KvFormat {
    /// 32-bit floats: as they are computed.
    F32,
    /// 16-bit IEEE floats, rounded to nearest, ties to even; beyond 65504 they become infinite.
    #[default]
    F16,
}

impl KvFormat {
    /// `f32` or `f16`.
    pub fn name(self) -> &'static str {
        match self {
            KvFormat::F32 => "f32",
            KvFormat::F16 => "f16",
        }
    }

    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            KvFormat::F32 => 4,
            KvFormat::F16 => 2,
        }
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is none of a [`KvFormat`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown format of a key/value cache {0:?} (known: f16, f32)")]
pub struct UnknownKvFormat(String);

impl FromStr for KvFormat {
    type Err = UnknownKvFormat;

    fn from_str(name: &str) -> Result<KvFormat, UnknownKvFormat> {
        match name {
            "f32" => Ok(KvFormat::F32),
            "f16" => Ok(KvFormat::F16),
            _ => Err(UnknownKvFormat(name.to_owned())),
        }
    }
}

/// Stored keys or values of one head.
#[derive(Debug, Clone, Copy)]
pub enum KvRows<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// The bits of 16-bit floats.
    F16(&'a [u16]),
}

/// Stored keys or values of one head, to be written.
#[derive(Debug)]
pub enum KvRowsMut<'a> {
    /// 32-bit floats.
    F32(&'a mut [f32]),
    /// The bits of 16-bit floats.
    F16(&'a mut [u16]),
}

impl KvRows<'_> {
    /// How many numbers there are.
    pub fn len(&self) -> usize {
        match self {
            KvRows::F32(rows) => rows.len(),
            KvRows::F16(rows) => rows.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One of them, widened.
    pub(crate) fn at(&self, index: usize) -> f32 {
        match self {
            KvRows::F32(rows) => rows[index],
            KvRows::F16(rows) => half::f16::from_bits(rows[index]).to_f32(),
        }
    }

    /// The key of `row`, widened, where these are keys of `key.len()` channels.
    ///
    /// # Panics
    /// There is no such row.
    pub fn read_key(&self, row: usize, key: &mut [f32]) {
        let n = key.len();
        key.iter_mut().enumerate().for_each(|(c, out)| *out = self.at(key_place(n, row, c)));
    }

    /// The value of `row`, widened, where these are values of `value.len()` channels.
    ///
    /// # Panics
    /// There is no such row.
    pub fn read_value(&self, row: usize, value: &mut [f32]) {
        let n = value.len();
        value.iter_mut().enumerate().for_each(|(c, out)| *out = self.at(row * n + c));
    }
}

impl KvRowsMut<'_> {
    fn set(&mut self, index: usize, value: f32) {
        match self {
            KvRowsMut::F32(rows) => rows[index] = value,
            KvRowsMut::F16(rows) => rows[index] = half::f16::from_f32(value).to_bits(),
        }
    }

    /// Writes the key of `row`, where these are keys of `key.len()` channels.
    ///
    /// # Panics
    /// There is no such row.
    pub fn write_key(&mut self, row: usize, key: &[f32]) {
        key.iter().enumerate().for_each(|(c, &value)| self.set(key_place(key.len(), row, c), value));
    }

    /// Writes the value of `row`, where these are values of `value.len()` channels.
    ///
    /// # Panics
    /// There is no such row.
    pub fn write_value(&mut self, row: usize, value: &[f32]) {
        value.iter().enumerate().for_each(|(c, &number)| self.set(row * value.len() + c, number));
    }
}

/// Where channel `c` of the key of `row` is, in keys of `n` channels.
pub(crate) fn key_place(n: usize, row: usize, c: usize) -> usize {
    (row / TILE_ROWS * n + c) * TILE_ROWS + row % TILE_ROWS
}

/// Some consecutive rows of a head.
#[derive(Debug, Clone, Copy)]
pub struct KvBlock<'a> {
    /// The keys, in tiles of 16 rows: `[block_rows / 16, n, 16]`.
    pub keys: KvRows<'a>,
    /// The values: `[block_rows, n]`.
    pub values: KvRows<'a>,
}

/// The cache of one head: row `r` is row `r % block_rows` of block `r / block_rows`.
#[derive(Debug, Clone, Copy)]
pub struct KvHead<'a> {
    /// Channels of the head: a multiple of 16.
    pub n: usize,
    /// Rows of a block: a multiple of 16.
    pub block_rows: usize,
    /// The blocks, in order.
    pub blocks: &'a [KvBlock<'a>],
}

impl KvHead<'_> {
    /// Runs `f` on the visible rows, block by block: with the block, the first of its rows, and the places of the
    /// rows in the order of all that are visible.
    fn for_visible(&self, visible: &[Range<usize>], mut f: impl FnMut(KvBlock<'_>, usize, Range<usize>)) {
        let mut place = 0;
        for range in visible {
            let mut row = range.start;
            while row < range.end {
                let first = row % self.block_rows;
                let count = (range.end - row).min(self.block_rows - first);
                f(self.blocks[row / self.block_rows], first, place..place + count);
                place += count;
                row += count;
            }
        }
    }

    /// Runs `f` on the rows of pieces, block by block: with the block, the first of its rows, the queries, and the places of
    /// the rows in the order of all that each query sees; those of other queries are empty.
    fn for_pieces(
        &self,
        pieces: &[Piece],
        mut f: impl FnMut(KvBlock<'_>, usize, Range<usize>, [Range<usize>; ATTEND_QUERIES]),
    ) {
        let mut ends = [0; ATTEND_QUERIES];
        for Piece { queries, rows } in pieces {
            self.for_visible(slice::from_ref(rows), |block, first, rows| {
                let places = array::from_fn(|query| {
                    let begin = ends[query];
                    ends[query] += if queries.contains(&query) { rows.len() } else { 0 };
                    begin..ends[query]
                });
                f(block, first, queries.clone(), places);
            });
        }
    }

    fn check(&self, q: &[f32], visible: &[Range<usize>]) {
        let KvHead { n, block_rows, blocks } = *self;
        assert!(n > 0 && n.is_multiple_of(16), "a head of {n} channels; expected a multiple of 16");
        assert!(
            block_rows > 0 && block_rows.is_multiple_of(TILE_ROWS),
            "blocks of {block_rows} rows; expected a multiple of {TILE_ROWS}"
        );
        assert_eq!(q.len(), n, "one element of the query per channel");
        for block in blocks {
            for (what, rows) in [("keys", block.keys), ("values", block.values)] {
                assert_eq!(rows.len(), block_rows * n, "{what} of a block of {block_rows} rows of {n}");
            }
        }
        for range in visible {
            let rows = blocks.len() * block_rows;
            assert!(range.end <= rows, "visible rows {range:?} of {rows}");
        }
    }
}

/// How much a query attends to each visible row: `softmax(q k / sqrt(n))`, written to `weights` in the order of
/// `visible`. The rows of a range come ascending.
///
/// # Panics
/// A shape is not as described at [`KvHead`], or a row is visible that no block has.
pub fn attention_weights(
    isa: Isa,
    q: &[f32],
    head: KvHead<'_>,
    visible: &[Range<usize>],
    weights: &mut Vec<f32>,
) {
    head.check(q, visible);
    let scale = 1.0 / (head.n as f32).sqrt();
    weights.clear();
    weights.resize(visible.iter().map(ExactSizeIterator::len).sum(), 0.0);
    head.for_visible(visible, |block, first, places| {
        let (keys, scores) = (block.keys, &mut weights[places]);
        by_isa!(isa, attention::scores(q, keys, first, scale, scores));
    });
    softmax(isa, weights);
}

/// One query of a head over the visible rows of its cache: `y = sum of softmax(q k / sqrt(n)) v`.
///
/// Shapes: `q` and `y` are `[n]`. Every visible key and value is read once. With no visible row the result is zero.
/// `weights` is left as [`attention_weights`] has it.
///
/// # Panics
/// As [`attention_weights`], or `y` is not `[n]`.
pub fn attend(
    isa: Isa,
    q: &[f32],
    head: KvHead<'_>,
    visible: &[Range<usize>],
    weights: &mut Vec<f32>,
    y: &mut [f32],
) {
    assert_eq!(y.len(), head.n, "one result per channel");
    attention_weights(isa, q, head, visible, weights);
    y.fill(0.0);
    head.for_visible(visible, |block, first, places| {
        let (values, weights) = (block.values, &weights[places]);
        by_isa!(isa, attention::add_values(weights, values, first, y));
    });
}

/// Queries that [`attend_each`] takes over the rows together.
pub const ATTEND_QUERIES: usize = 4;

/// Several queries of a head over the visible rows of each: as [`attend`] for one after another, to the last bit, but rows
/// that [`ATTEND_QUERIES`] of them see in common are read once for these. They are found where the lists of ranges are as long
/// as each other and the ranges at each place overlap: as those of a prompt's tokens mostly do.
///
/// Shapes: `q` and `y` are `[visible.len(), n]`. `weights` is left as long as the lists of so many queries together.
///
/// # Panics
/// As [`attend`], for each query.
pub fn attend_each(
    isa: Isa,
    q: &[f32],
    head: KvHead<'_>,
    visible: &[&[Range<usize>]],
    weights: &mut Vec<f32>,
    y: &mut [f32],
) {
    let n = head.n;
    assert_eq!(q.len(), n * visible.len(), "the channels of every query");
    assert_eq!(y.len(), q.len(), "one result per channel");
    let some = ATTEND_QUERIES * n;
    for ((q, y), visible) in q.chunks(some).zip(y.chunks_mut(some)).zip(visible.chunks(ATTEND_QUERIES)) {
        let together = visible.try_into().ok().and_then(|visible| Some((visible, pieces(visible)?)));
        if let Some((visible, pieces)) = together {
            attend_together(isa, q, head, visible, &pieces, weights, y);
        } else {
            for ((q, y), visible) in q.chunks_exact(n).zip(y.chunks_exact_mut(n)).zip(visible) {
                attend(isa, q, head, visible, weights, y);
            }
        }
    }
}

/// Rows that some queries see: one of them, or all.
#[derive(Debug)]
struct Piece {
    queries: Range<usize>,
    rows: Range<usize>,
}

/// The visible rows of each query, in their order, cut so that what is common to all is one piece; `None` if there is no
/// such cut.
fn pieces(visible: &[&[Range<usize>]; ATTEND_QUERIES]) -> Option<Vec<Piece>> {
    let places = visible[0].len();
    if visible.iter().any(|ranges| ranges.len() != places) {
        return None;
    }
    let mut pieces = Vec::new();
    for place in 0..places {
        let ranges = visible.map(|ranges| ranges[place].clone());
        let start = ranges.iter().map(|range| range.start).max()?;
        let end = ranges.iter().map(|range| range.end).min()?;
        if start >= end {
            return None;
        }
        let alone = |query: usize, rows: Range<usize>| Piece { queries: query..query + 1, rows };
        let before = ranges.iter().enumerate().map(|(query, range)| alone(query, range.start..start));
        let after = ranges.iter().enumerate().map(|(query, range)| alone(query, end..range.end));
        pieces.extend(before);
        pieces.push(Piece { queries: 0..ATTEND_QUERIES, rows: start..end });
        pieces.extend(after);
    }
    Some(pieces)
}

fn attend_together(
    isa: Isa,
    q: &[f32],
    head: KvHead<'_>,
    visible: &[&[Range<usize>]; ATTEND_QUERIES],
    pieces: &[Piece],
    weights: &mut Vec<f32>,
    y: &mut [f32],
) {
    let n = head.n;
    let q: [&[f32]; ATTEND_QUERIES] = array::from_fn(|query| &q[query * n..][..n]);
    visible.iter().zip(q).for_each(|(visible, q)| head.check(q, visible));
    let scale = 1.0 / (n as f32).sqrt();
    let seen = visible.map(|ranges| ranges.iter().map(ExactSizeIterator::len).sum::<usize>());
    weights.clear();
    weights.resize(seen.iter().sum(), 0.0);
    let mut lists = split(weights, seen);

    head.for_pieces(pieces, |block, first, queries, places| {
        let keys = block.keys;
        if let Some(scores) = all_of(&mut lists, &queries, &places) {
            by_isa!(isa, attention::scores_each(q, keys, first, scale, scores));
        } else {
            let (q, scores) = (q[queries.start], &mut lists[queries.start][places[queries.start].clone()]);
            by_isa!(isa, attention::scores(q, keys, first, scale, scores));
        }
    });
    lists.iter_mut().for_each(|list| softmax(isa, list));
    y.fill(0.0);
    let mut y = split(y, [n; ATTEND_QUERIES]);
    head.for_pieces(pieces, |block, first, queries, places| {
        let values = block.values;
        let weights: [&[f32]; ATTEND_QUERIES] = array::from_fn(|query| &lists[query][places[query].clone()]);
        if queries.len() == ATTEND_QUERIES {
            let y = y.each_mut().map(|y| &mut **y);
            by_isa!(isa, attention::add_values_each(weights, values, first, y));
        } else {
            let (weights, y) = (weights[queries.start], &mut *y[queries.start]);
            by_isa!(isa, attention::add_values(weights, values, first, y));
        }
    });
}

/// The places of each list, if all queries have some.
fn all_of<'a>(
    lists: &'a mut [&mut [f32]; ATTEND_QUERIES],
    queries: &Range<usize>,
    places: &[Range<usize>; ATTEND_QUERIES],
) -> Option<[&'a mut [f32]; ATTEND_QUERIES]> {
    let mut places = places.iter();
    (queries.len() == ATTEND_QUERIES)
        .then(|| lists.each_mut().map(|list| &mut list[places.next().expect("places of each query").clone()]))
}

/// Consecutive parts of such lengths.
fn split(mut x: &mut [f32], lengths: [usize; ATTEND_QUERIES]) -> [&mut [f32]; ATTEND_QUERIES] {
    lengths.map(|length| x.split_off_mut(..length).expect("the lengths add up"))
}
