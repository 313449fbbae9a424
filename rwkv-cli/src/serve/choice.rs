//! One answer on its way from a session's events to text.

use std::collections::VecDeque;

use rwkv_model::{FinishReason, Finished, SessionEvent, TokenLogprobs};

use super::scored::{Scored, characters_begun};
use super::text::Characters;
use crate::vocabulary::Vocabulary;

/// What an event adds to an answer.
#[derive(Debug, Default)]
pub struct Piece {
    /// Whole characters.
    pub text: String,
    /// The tokens whose text has begun to come.
    pub scored: Vec<Scored>,
    /// The end, if this is it.
    pub end: Option<Box<Finished>>,
}

/// An answer so far.
#[derive(Debug, Default)]
pub struct Choice {
    characters: Characters,
    /// Blanks are left out until something else has come.
    skips_blanks: bool,
    /// Bytes and characters of all tokens.
    bytes: usize,
    offset: usize,
    /// Bytes that no stop string can take back.
    released: usize,
    /// With the byte that each begins at: not released yet.
    held: VecDeque<(usize, Scored)>,
    tokens: Vec<u32>,
}

impl Choice {
    /// An answer that has not begun, after what `characters` has taken.
    pub fn new(skips_blanks: bool, characters: Characters) -> Choice {
        Choice { skips_blanks, characters, ..Choice::default() }
    }

    /// Takes an event of the session.
    pub fn take(&mut self, event: SessionEvent, vocabulary: &Vocabulary) -> Piece {
        let mut piece = Piece::default();
        match event {
            SessionEvent::Token { id, bytes, logprobs } => {
                self.note(id, logprobs, vocabulary);
                self.release(&bytes, &mut piece);
            }
            SessionEvent::Rest { bytes } => self.release(&bytes, &mut piece),
            SessionEvent::Finished(finished) => {
                let rest = self.characters.finish();
                self.say(&rest, &mut piece);
                piece.end = Some(finished);
            }
            _ => {}
        }
        piece
    }

    /// The tokens so far, those of a stop string included.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Bytes of the answer, blanks at its beginning included.
    pub fn visible_bytes(&self) -> usize {
        self.released
    }

    fn note(&mut self, id: u32, logprobs: Option<TokenLogprobs>, vocabulary: &Vocabulary) {
        self.tokens.push(id);
        let mut bytes = Vec::new();
        vocabulary.append(id, &mut bytes);
        let (begin, offset) = (self.bytes, self.offset);
        self.bytes += bytes.len();
        self.offset += characters_begun(&bytes);
        if logprobs.is_some() {
            self.held.push_back((begin, Scored::new(offset, bytes, logprobs.as_ref(), vocabulary)));
        }
    }

    fn release(&mut self, bytes: &[u8], piece: &mut Piece) {
        self.released += bytes.len();
        let text = self.characters.push(bytes);
        self.say(&text, piece);
        let begun = self.held.iter().take_while(|(begin, _)| *begin < self.released).count();
        piece.scored.extend(self.held.drain(..begun).map(|(_, scored)| scored));
    }

    fn say(&mut self, text: &str, piece: &mut Piece) {
        let text = if self.skips_blanks { text.trim_start() } else { text };
        self.skips_blanks &= text.is_empty();
        piece.text.push_str(text);
    }
}

/// The `finish_reason` of an end.
pub fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length | FinishReason::TimeLimit | FinishReason::Memory => "length",
        _ => "stop",
    }
}
