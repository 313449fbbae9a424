use std::ops::Range;

use crate::attention::{Attention, Compression};

/// Some consecutive rows of a feed, before the first of which alone the cache may have to be compressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    /// Rows within the feed's share of the sweep.
    pub rows: Range<usize>,
    /// Cached rows before the first of them, after compression.
    pub cached: usize,
    pub compress: bool,
}

/// Cuts `count` rows where the cache, which has `cached` rows before them, is compressed.
pub(super) fn segments(attention: &Attention, mut cached: usize, count: usize) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut first = 0;
    while first < count {
        let mut rows = count - first;
        let mut compress = false;
        if let Some(&Compression { above, keep, .. }) = attention.compression() {
            compress = cached > above;
            if compress {
                cached = keep;
            }
            rows = rows.min(above + 1 - cached);
        }
        segments.push(Segment { rows: first..first + rows, cached, compress });
        first += rows;
        cached += rows;
    }
    segments
}

/// The rows that each row of a segment attends to, as ranges.
#[derive(Debug, Default)]
pub(super) struct Visible {
    ranges: Vec<Range<usize>>,
    /// Where the ranges of each row end.
    ends: Vec<usize>,
}

impl Visible {
    /// The ranges of a row of the segment.
    pub fn of(&self, row: usize) -> &[Range<usize>] {
        let begin = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.ranges[begin..self.ends[row]]
    }

    /// Adds a row that follows `cached` rows, the first of `dropped` of which are not stored: rows count from there.
    ///
    /// `score` is how well a chunk fits the row.
    pub fn push(
        &mut self,
        attention: &Attention,
        cached: usize,
        dropped: usize,
        score: impl Fn(usize) -> f32,
    ) {
        match attention {
            Attention::Full => self.ranges.push(0..cached + 1),
            Attention::Window(rows) => {
                self.ranges.push((cached + 1).saturating_sub(*rows) - dropped..cached + 1 - dropped);
            }
            Attention::TopK(top_k) if cached <= top_k.short_rows => self.ranges.push(0..cached + 1),
            Attention::TopK(top_k) => {
                let complete = cached / top_k.chunk_rows;
                let scores: Vec<f32> = (0..complete).map(score).collect();
                let mut best: Vec<usize> = (0..complete).collect();
                best.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
                best.truncate(top_k.chunks);
                best.sort_unstable();
                let rows_of = |chunk: usize| chunk * top_k.chunk_rows..(chunk + 1) * top_k.chunk_rows;
                self.ranges.extend(best.into_iter().map(rows_of));
                self.ranges.push(complete * top_k.chunk_rows..cached + 1);
            }
        }
        self.ends.push(self.ranges.len());
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "a list of ranges may have one")]
mod tests {
    use super::*;
    use crate::attention::TopK;

    fn visible(attention: Attention, cached: usize, scores: &[f32]) -> Vec<Range<usize>> {
        let mut visible = Visible::default();
        visible.push(&attention, cached, 0, |chunk| scores[chunk]);
        visible.of(0).to_vec()
    }

    #[test]
    fn each_policy_shows_its_rows() {
        assert_eq!(visible(Attention::Full, 0, &[]), [0..1]);
        assert_eq!(visible(Attention::Full, 9, &[]), [0..10]);
        assert_eq!(visible(Attention::Window(4), 2, &[]), [0..3]);
        assert_eq!(visible(Attention::Window(4), 9, &[]), [6..10]);
        let top_k = Attention::TopK(TopK { short_rows: 8, ..TopK::new(4, 2) });
        assert_eq!(visible(top_k, 8, &[]), [0..9], "up to the limit");
        assert_eq!(visible(top_k, 9, &[1.0, 2.0]), [0..4, 4..8, 8..10]);
        assert_eq!(visible(top_k, 14, &[3.0, 1.0, 2.0]), [0..4, 8..12, 12..15]);
        assert_eq!(visible(top_k, 14, &[1.0, 1.0, 1.0]), [0..4, 4..8, 12..15], "of equal ones the first");
        assert_eq!(visible(top_k, 12, &[1.0, 2.0, 3.0]), [4..8, 8..12, 12..13], "itself alone");
    }

    #[test]
    fn segments_end_where_the_cache_is_compressed() {
        let compression = Some(Compression { above: 10, keep: 6, window: 2 });
        let attention = Attention::TopK(TopK { compression, ..TopK::new(4, 2) });
        let segment = |rows, cached, compress| Segment { rows, cached, compress };
        assert_eq!(segments(&Attention::Full, 7, 100), [segment(0..100, 7, false)]);
        assert_eq!(segments(&attention, 7, 3), [segment(0..3, 7, false)]);
        assert_eq!(
            segments(&attention, 7, 12),
            [segment(0..4, 7, false), segment(4..9, 6, true), segment(9..12, 6, true)]
        );
        assert_eq!(segments(&attention, 11, 1), [segment(0..1, 6, true)]);
    }
}
