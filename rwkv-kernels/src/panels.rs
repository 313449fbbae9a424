/// The activations of a step: `rows` tokens by `cols` channels, stored in panels of `width` channels.
///
/// A panel is a contiguous row-major `[rows, width]` block (the last one may be narrower), so that
/// threads which own different channels own different slices. With `width == cols` this is a plain
/// row-major matrix; with one row it is a plain vector whatever the width.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Panels {
    elements: Vec<f32>,
    rows: usize,
    cols: usize,
    width: usize,
}

impl Panels {
    /// All zeros.
    ///
    /// # Panics
    /// `width` is zero.
    pub fn zeroed(rows: usize, cols: usize, width: usize) -> Panels {
        let mut panels = Panels::default();
        panels.reset(rows, cols, width);
        panels
    }

    /// Takes a new shape and keeps the allocation. The contents are unspecified.
    ///
    /// # Panics
    /// `width` is zero.
    pub fn reset(&mut self, rows: usize, cols: usize, width: usize) {
        assert!(width > 0, "panels of no width");
        self.elements.resize(rows * cols, 0.0);
        (self.rows, self.cols, self.width) = (rows, cols, width);
    }

    /// Tokens.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Channels.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Channels of a panel, but for a narrower last one.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Panel `p`: row-major `[rows, width]`, or narrower if it is the last.
    ///
    /// # Panics
    /// There is no panel `p`.
    pub fn panel(&self, p: usize) -> &[f32] {
        let start = self.panel_start(p);
        &self.elements[start..start + self.rows * self.panel_width(p)]
    }

    /// Panel `p` for writing.
    ///
    /// # Panics
    /// There is no panel `p`.
    pub fn panel_mut(&mut self, p: usize) -> &mut [f32] {
        let start = self.panel_start(p);
        let len = self.rows * self.panel_width(p);
        &mut self.elements[start..start + len]
    }

    /// Every panel, ascending: disjoint slices for the tasks of a [`Team`](crate::Team).
    pub fn panels_mut(&mut self) -> std::slice::ChunksMut<'_, f32> {
        self.elements.chunks_mut((self.rows * self.width).max(1))
    }

    /// How many panels there are.
    pub fn panel_count(&self) -> usize {
        self.cols.div_ceil(self.width.max(1))
    }

    /// Channels of panel `p`.
    pub fn panel_width(&self, p: usize) -> usize {
        self.width.min(self.cols - p * self.width)
    }

    /// The element of row `r` and channel `c`.
    ///
    /// # Panics
    /// It is out of range.
    pub fn get(&self, r: usize, c: usize) -> f32 {
        assert!(r < self.rows && c < self.cols, "({r}, {c}) of ({}, {})", self.rows, self.cols);
        let p = c / self.width;
        self.elements[self.panel_start(p) + r * self.panel_width(p) + c % self.width]
    }

    /// Copies row `r` into `out`.
    ///
    /// # Panics
    /// `out` has not `cols` elements, or there is no row `r`.
    pub fn read_row(&self, r: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "one element per channel");
        self.read_row_from(r, 0, out);
    }

    /// Copies some channels of row `r` into `out`, from channel `first` on.
    ///
    /// # Panics
    /// They are out of range.
    pub fn read_row_from(&self, r: usize, first: usize, mut out: &mut [f32]) {
        let mut c = first;
        while !out.is_empty() {
            let rest = &self.row_part(r, c / self.width)[c % self.width..];
            let (part, others) = out.split_at_mut(rest.len().min(out.len()));
            part.copy_from_slice(&rest[..part.len()]);
            c += part.len();
            out = others;
        }
    }

    /// Copies `row` into row `r`.
    ///
    /// # Panics
    /// `row` has not `cols` elements, or there is no row `r`.
    pub fn write_row(&mut self, r: usize, row: &[f32]) {
        assert_eq!(row.len(), self.cols, "one element per channel");
        for (p, part) in row.chunks(self.width).enumerate() {
            let width = self.panel_width(p);
            self.panel_mut(p)[r * width..(r + 1) * width].copy_from_slice(part);
        }
    }

    /// The channels of row `r` that panel `p` holds.
    ///
    /// # Panics
    /// There is no such row or panel.
    pub fn row_part(&self, r: usize, p: usize) -> &[f32] {
        assert!(r < self.rows, "row {r} of {}", self.rows);
        let width = self.panel_width(p);
        &self.panel(p)[r * width..(r + 1) * width]
    }

    /// All elements, panel after panel.
    pub fn as_slice(&self) -> &[f32] {
        &self.elements
    }

    /// All elements for writing, panel after panel.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.elements
    }

    fn panel_start(&self, p: usize) -> usize {
        assert!(p * self.width < self.cols, "panel {p} of {}", self.panel_count());
        p * self.rows * self.width
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_round_trip_through_every_width() {
        for (rows, cols) in [(1, 1), (1, 40), (3, 40), (5, 96)] {
            for width in [1, 7, 16, 32, cols, cols + 5] {
                let mut panels = Panels::zeroed(rows, cols, width);
                for r in 0..rows {
                    let row: Vec<f32> = (0..cols).map(|c| (r * cols + c) as f32).collect();
                    panels.write_row(r, &row);
                }
                for r in 0..rows {
                    let mut row = vec![0.0; cols];
                    panels.read_row(r, &mut row);
                    for (c, &x) in row.iter().enumerate() {
                        assert_eq!(x, (r * cols + c) as f32, "{rows}x{cols} width {width}");
                        assert_eq!(panels.get(r, c), x);
                        let mut some = vec![0.0; (cols - c).min(21)];
                        panels.read_row_from(r, c, &mut some);
                        assert_eq!(some, row[c..c + some.len()]);
                    }
                }
                assert_eq!(panels.panels_mut().count(), panels.panel_count());
            }
        }
    }
}
