//! Token ids from a text that comes in pieces.

use std::ops::Deref;

use crate::error::EncodeError;
use crate::tokenizer::Tokenizer;
use crate::trie::{ROOT, Stuck};

/// Turns a stream of bytes into a stream of token ids.
///
/// The ids are those of the whole text in one piece, however it is cut: a token is given out once no further byte
/// could make it another one. What is kept back for that is less than the longest token, so a text of any length
/// is encoded in constant memory.
///
/// `T` is a way to hold a [`Tokenizer`]: `&Tokenizer`, `Arc<Tokenizer>`, `Box<Tokenizer>`.
#[derive(Debug, Clone)]
pub struct StreamEncoder<T> {
    tokenizer: T,
    /// Where the walk through the trie is.
    node: u32,
    /// The bytes that led there: they have no token yet.
    pending: Vec<u8>,
    /// Bytes of the text before those.
    encoded: usize,
}

impl<T: Deref<Target = Tokenizer>> StreamEncoder<T> {
    /// An encoder at the start of a text.
    pub fn new(tokenizer: T) -> Self {
        Self { tokenizer, node: ROOT, pending: Vec::new(), encoded: 0 }
    }

    /// Takes the next bytes and appends the ids that are decided with them to `ids`.
    ///
    /// # Errors
    ///
    /// No token matches at some place of the text; this cannot happen with a
    /// [complete](Tokenizer::is_complete) vocabulary. `ids` has the tokens before that place, and the encoder is at
    /// the start of a new text.
    pub fn push(&mut self, text: impl AsRef<[u8]>, ids: &mut Vec<u32>) -> Result<(), EncodeError> {
        let text = text.as_ref();
        let start = ids.len();
        match self.tokenizer.trie().go_on(self.node, text, ids) {
            Ok(node) => {
                self.node = node;
                self.pending.extend_from_slice(text);
                let encoded = self.byte_len(&ids[start..]);
                self.encoded += encoded;
                self.pending.drain(..encoded);
                Ok(())
            }
            Err(Stuck) => Err(self.stuck(text, &ids[start..])),
        }
    }

    /// Ends the text and appends the ids of what is kept back.
    ///
    /// The encoder is then at the start of a new text.
    ///
    /// # Errors
    ///
    /// Those of [`push`](StreamEncoder::push).
    pub fn finish(&mut self, ids: &mut Vec<u32>) -> Result<(), EncodeError> {
        let start = ids.len();
        match self.tokenizer.trie().end(self.node, ids) {
            Ok(()) => {
                self.reset();
                Ok(())
            }
            Err(Stuck) => Err(self.stuck(&[], &ids[start..])),
        }
    }

    /// The bytes that are kept back: a part of a token.
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }

    fn byte_len(&self, ids: &[u32]) -> usize {
        ids.iter().filter_map(|&id| self.tokenizer.token_bytes(id)).map(<[u8]>::len).sum()
    }

    /// The error after `ids` of the pending bytes and `text`, which starts the encoder anew.
    fn stuck(&mut self, text: &[u8], ids: &[u32]) -> EncodeError {
        let at = self.byte_len(ids);
        let byte = self.pending.iter().chain(text).nth(at).copied();
        let error = EncodeError {
            offset: self.encoded + at,
            byte: byte.expect("the byte that has no token is still to be encoded"),
        };
        self.reset();
        error
    }

    fn reset(&mut self) {
        self.node = ROOT;
        self.pending.clear();
        self.encoded = 0;
    }
}
