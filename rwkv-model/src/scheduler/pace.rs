//! How long sweeps take, by their rows.
//!
//! The time of a sweep is close to a line: `fixed + row * rows`, where the fixed part is what it takes to go over the weights, in
//! memory or on the disk, and each further row adds arithmetic. The line is fitted by least squares to the sweeps
//! so far, of which older ones count less and less.

use std::time::Duration;

/// How much longer than without a prompt a sweep may take, while sessions decode.
const SLOWDOWN: f64 = 3.0;
/// What a sweep counts less with each one after it.
const FORGET: f64 = 0.98;
/// Rows of prompts in a sweep with decoding sessions, before there is a line.
const FIRST_ROWS: usize = 32;
/// Rows of prompts that are always allowed: a prompt must get on.
const LEAST_ROWS: usize = 8;

/// The line.
#[derive(Debug, Default)]
pub(super) struct Pace {
    weight: f64,
    rows: f64,
    seconds: f64,
    rows_rows: f64,
    rows_seconds: f64,
}

impl Pace {
    /// Takes in a sweep.
    pub fn record(&mut self, rows: usize, time: Duration) {
        let (rows, seconds) = (rows as f64, time.as_secs_f64());
        for (sum, value) in [
            (&mut self.weight, 1.0),
            (&mut self.rows, rows),
            (&mut self.seconds, seconds),
            (&mut self.rows_rows, rows * rows),
            (&mut self.rows_seconds, rows * seconds),
        ] {
            *sum = *sum * FORGET + value;
        }
    }

    /// Rows of prompts that a sweep with so many decoding sessions has room for.
    pub fn prompt_rows(&self, decoding: usize) -> usize {
        let Some((fixed, row)) = self.line() else { return FIRST_ROWS };
        let decoding = decoding as f64;
        // fixed + row * (decoding + prompt) <= SLOWDOWN * (fixed + row * decoding)
        let rows = (SLOWDOWN - 1.0) * (fixed / row + decoding);
        (rows as usize).max(LEAST_ROWS)
    }

    /// The time of a sweep without rows, and of each row, if sweeps of different sizes were seen.
    fn line(&self) -> Option<(f64, f64)> {
        let spread = self.weight * self.rows_rows - self.rows * self.rows;
        // Sweeps of one size say nothing about the slope, and none at all about nothing.
        if self.weight == 0.0 || spread < 0.5 * self.weight {
            return None;
        }
        let row = (self.weight * self.rows_seconds - self.rows * self.seconds) / spread;
        let mean = self.seconds / self.weight;
        // Noise may turn the line around: a row costs something, and so does a sweep.
        let row = row.clamp(1e-4 * mean, mean);
        let fixed = (mean - row * self.rows / self.weight).max(0.0);
        Some((fixed, row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paced(sweeps: &[(usize, f64)]) -> Pace {
        let mut pace = Pace::default();
        for &(rows, ms) in sweeps {
            pace.record(rows, Duration::from_secs_f64(ms / 1e3));
        }
        pace
    }

    #[test]
    fn rows_are_as_many_as_triple_the_time() {
        // 80 ms, and 5 for each row: three times 85 are 255, for 1 + 34 rows.
        let line = |rows: usize| (rows, 80.0 + 5.0 * rows as f64);
        let pace = paced(&[line(1), line(33), line(2), line(256)]);
        assert_eq!(pace.prompt_rows(1), 34);
        assert_eq!(pace.prompt_rows(4), 40);
    }

    #[test]
    fn a_line_that_cannot_be_is_not_believed() {
        assert_eq!(paced(&[]).prompt_rows(1), FIRST_ROWS);
        assert_eq!(paced(&[(4, 10.0), (4, 11.0), (4, 9.0)]).prompt_rows(4), FIRST_ROWS);
        // More rows in less time: as good as free.
        assert!(paced(&[(1, 20.0), (200, 10.0)]).prompt_rows(1) > 1000);
        // All time in the rows.
        assert_eq!(paced(&[(1, 0.001), (100, 500.0), (200, 1000.0)]).prompt_rows(1), LEAST_ROWS);
    }

    #[test]
    fn what_changes_is_followed() {
        let mut pace = paced(&[(1, 1000.0), (32, 1010.0)]);
        let streamed = pace.prompt_rows(1);
        for rows in (0..400).map(|i| 1 + i % 32) {
            pace.record(rows, Duration::from_millis(8 + 2 * rows as u64));
        }
        assert!(streamed > 2000, "{streamed}");
        assert!((8..16).contains(&pace.prompt_rows(1)), "{}", pace.prompt_rows(1));
    }
}
