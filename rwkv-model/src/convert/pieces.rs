use std::ops::Range;

use rwkv_kernels::Team;

use crate::error::Result;

/// Pieces of a tensor that are encoded at the same time.
pub(super) struct Pieces {
    team: Team,
    pieces: Vec<Piece>,
}

struct Piece {
    range: Range<usize>,
    values: Vec<f32>,
    encoded: Vec<u8>,
    result: Result<()>,
}

/// Pieces at hand for each thread, so that none waits for the slowest.
const PER_THREAD: usize = 4;

impl Pieces {
    pub fn new(threads: usize) -> Pieces {
        let team = Team::new(threads);
        let piece = || Piece { range: 0..0, values: Vec::new(), encoded: Vec::new(), result: Ok(()) };
        Pieces { pieces: std::iter::repeat_with(piece).take(PER_THREAD * team.threads()).collect(), team }
    }

    /// Cuts a range (of rows, or of columns) into pieces of `size`, encodes them on all threads, and hands them on in
    /// order. `encode` has a buffer for weights, and one for the bytes, both empty.
    pub fn run(
        &mut self,
        range: Range<usize>,
        size: usize,
        encode: impl Fn(Range<usize>, &mut Vec<f32>, &mut Vec<u8>) -> Result<()> + Sync,
        mut hand_on: impl FnMut(Range<usize>, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut begins = range.clone().step_by(size).peekable();
        while begins.peek().is_some() {
            let mut count = 0;
            for (piece, begin) in self.pieces.iter_mut().zip(&mut begins) {
                piece.range = begin..range.end.min(begin + size);
                count += 1;
            }
            self.team.for_each(&mut self.pieces[..count], |piece| {
                piece.values.clear();
                piece.encoded.clear();
                piece.result = encode(piece.range.clone(), &mut piece.values, &mut piece.encoded);
            });
            for piece in &mut self.pieces[..count] {
                std::mem::replace(&mut piece.result, Ok(()))?;
                hand_on(piece.range.clone(), &piece.encoded)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ErrorKind, ModelError};

    #[test]
    fn pieces_come_in_order_and_cover_the_range() {
        for threads in [1, 3] {
            let mut pieces = Pieces::new(threads);
            for (range, size) in [(0..0, 4), (0..1, 4), (3..103, 7), (0..64, 16)] {
                let mut seen = Vec::new();
                let encode = |range: Range<usize>, _: &mut Vec<f32>, out: &mut Vec<u8>| {
                    out.extend(range.map(|i| i as u8));
                    Ok(())
                };
                pieces
                    .run(range.clone(), size, encode, |part, bytes| {
                        assert_eq!(part.len(), bytes.len());
                        seen.extend_from_slice(bytes);
                        Ok(())
                    })
                    .unwrap();
                assert_eq!(seen, range.map(|i| i as u8).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn the_first_error_in_order_is_reported() {
        let mut pieces = Pieces::new(2);
        let fail = |range: Range<usize>, _: &mut Vec<f32>, _: &mut Vec<u8>| {
            if range.start < 20 {
                return Ok(());
            }
            Err(ModelError::new(ErrorKind::Checkpoint, format!("at {}", range.start)))
        };
        let mut handed_on = 0;
        let error = pieces.run(0..100, 5, fail, |range, _| {
            handed_on = range.end;
            Ok(())
        });
        assert_eq!(error.unwrap_err().to_string(), "at 20");
        assert_eq!(handed_on, 20);
    }
}
