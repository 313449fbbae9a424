//! Text from token ids, one at a time.

use std::ops::Deref;

use crate::tokenizer::{Tokenizer, UNKNOWN};

/// Turns a stream of token ids into a stream of text.
///
/// A token can end in the middle of a character. The decoder releases every character as soon as its last
/// byte has come and keeps back nothing but the first bytes of an incomplete one, at most three. Bytes
/// that can no longer become a character become U+FFFD at once. All that [`push`](Decoder::push) and
/// [`finish`](Decoder::finish) return, put together, is the [`decode_lossy`](Tokenizer::decode_lossy) of
/// all ids, whatever they are.
///
/// `T` is a way to hold a [`Tokenizer`]: `&Tokenizer`, `Arc<Tokenizer>`, `Box<Tokenizer>`.
#[derive(Debug, Clone)]
pub struct Decoder<T> {
    tokenizer: T,
    /// The beginning of a character, not yet released.
    pending: Vec<u8>,
    released: String,
}

impl<T: Deref<Target = Tokenizer>> Decoder<T> {
    /// A decoder at the start of a text.
    pub fn new(tokenizer: T) -> Self {
        Self { tokenizer, pending: Vec::new(), released: String::new() }
    }

    /// Takes the next id and returns the text that is complete with it, often one token's, sometimes none.
    ///
    /// [`END_OF_TEXT`](crate::END_OF_TEXT) changes nothing; an id that is not in the vocabulary gives U+FFFD.
    pub fn push(&mut self, id: u32) -> &str {
        self.released.clear();
        self.take(id);
        &self.released
    }

    /// Takes several ids and returns the text that is complete with the last of them.
    pub fn push_all(&mut self, ids: &[u32]) -> &str {
        self.released.clear();
        for &id in ids {
            self.take(id);
        }
        &self.released
    }

    /// Ends the text: returns U+FFFD if an incomplete character is left, else nothing.
    ///
    /// The decoder is then at the start of a new text.
    pub fn finish(&mut self) -> &str {
        self.released.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.released.push(char::REPLACEMENT_CHARACTER);
        }
        &self.released
    }

    /// The bytes that are kept back: the beginning of one character, 0 to 3 bytes.
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }

    fn take(&mut self, id: u32) {
        let token = self.tokenizer.bytes_of(id).unwrap_or(UNKNOWN);
        if self.pending.is_empty() {
            let rest = release(token, &mut self.released);
            self.pending.extend_from_slice(rest);
        } else {
            self.pending.extend_from_slice(token);
            let kept = release(&self.pending, &mut self.released).len();
            self.pending.drain(..self.pending.len() - kept);
        }
    }
}

/// Appends the text of `bytes` to `text`, without the incomplete character at their end, and returns that.
fn release<'a>(bytes: &'a [u8], text: &mut String) -> &'a [u8] {
    let mut rest = bytes;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        let invalid = chunk.invalid();
        rest = &rest[chunk.valid().len() + invalid.len()..];
        if rest.is_empty() && is_incomplete(invalid) {
            return &bytes[bytes.len() - invalid.len()..];
        }
        if !invalid.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    &[]
}

/// Whether more bytes could make this a character.
fn is_incomplete(bytes: &[u8]) -> bool {
    str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}
