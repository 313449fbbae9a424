//! The tokenizer: a vocabulary and its trie.

use std::fmt;
use std::path::Path;

use crate::decoder::Decoder;
use crate::encoder::StreamEncoder;
use crate::error::{DecodeError, EncodeError, VocabularyError, VocabularyErrorKind as Kind, excerpt};
use crate::trie::{BuildError, Stuck, Trie};
use crate::vocabulary::{self, Vocabulary};

/// The id that ends a text. It has no bytes, encoding never produces it, and decoding it gives nothing.
pub const END_OF_TEXT: u32 = 0;

/// What [`Tokenizer::decode_lossy`] and [`Decoder`] make of an id that is not in the vocabulary.
pub(crate) const UNKNOWN: &[u8] = "\u{fffd}".as_bytes();

/// Bytes of ordinary text for each id that room is made for at first.
const BYTES_PER_TOKEN: usize = 3;

/// Text to token ids by greedy longest match, and back.
///
/// The tokens are byte strings, so the text is bytes too: any bytes, valid UTF-8 or not, without
/// normalisation and without special tokens (the text `<|endoftext|>` is ordinary text). At each position
/// the longest token that the remaining bytes start with is taken. The result depends on the whole text:
/// two halves that are encoded separately can give other ids than the text in one piece. For a text that
/// comes in pieces there is [`StreamEncoder`].
///
/// Encoding `n` bytes takes at most `2 n` steps in the trie, whatever the text and the vocabulary.
///
/// A tokenizer never changes after it is made and is shared between threads by reference.
#[derive(Clone)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    trie: Trie,
    complete: bool,
}

impl Tokenizer {
    /// Reads a vocabulary file in the text format of the World vocabulary.
    ///
    /// Each line is `id literal length`: the id in decimal (1 to [`MAX_TOKEN_ID`](crate::MAX_TOKEN_ID)),
    /// a Python text or bytes literal, and the number of bytes that it stands for (text as UTF-8). Lines
    /// end with LF or CRLF, the last one needs no end. Ids may come in any order and leave gaps. The
    /// literals are read, never evaluated.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is larger than 64 MiB, has a line that does not follow the format, has an
    /// id or a token twice, or an empty token, or no token at all. The error names the file and the line.
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self, VocabularyError> {
        let path = path.as_ref();
        vocabulary::read_file(path)
            .and_then(|text| Self::from_bytes(&text))
            .map_err(|error| error.in_file(path))
    }

    /// Reads a vocabulary from the contents of a file, see [`Tokenizer::from_path`].
    ///
    /// # Errors
    ///
    /// Those of [`Tokenizer::from_path`], with the line and without a file.
    pub fn from_bytes(text: &[u8]) -> Result<Self, VocabularyError> {
        let (vocabulary, ids) = Vocabulary::parse(text)?;
        Self::new(vocabulary, |id| ids.iter().position(|&other| other == id).map(|at| at + 1))
    }

    /// Makes a tokenizer of tokens and their ids, in any order.
    ///
    /// # Errors
    ///
    /// An id is 0 or above [`MAX_TOKEN_ID`](crate::MAX_TOKEN_ID), an id or a token appears twice, a token
    /// is empty, there is none, or together they have more than 64 MiB.
    pub fn from_tokens<B: AsRef<[u8]>>(
        tokens: impl IntoIterator<Item = (u32, B)>,
    ) -> Result<Self, VocabularyError> {
        let mut vocabulary = Vocabulary::default();
        for (id, token) in tokens {
            vocabulary.add(id, token.as_ref())?;
        }
        Self::new(vocabulary, |_| None)
    }

    /// `line_of` gives the line of an id, where there are lines.
    fn new(vocabulary: Vocabulary, line_of: impl Fn(u32) -> Option<usize>) -> Result<Self, VocabularyError> {
        let sorted = vocabulary.sorted();
        if sorted.is_empty() {
            return Err(VocabularyError::new(None, Kind::Empty));
        }
        let trie =
            Trie::build(&sorted, |id| vocabulary.get(id).unwrap_or_default()).map_err(
                |error| match error {
                    BuildError::TooManyNodes { cells, limit } => {
                        let what = "size of the trie in cells";
                        VocabularyError::new(None, Kind::TooLarge { what, found: cells, limit })
                    }
                    BuildError::SameToken(a, b) => {
                        let (first, id) = if line_of(a) <= line_of(b) { (a, b) } else { (b, a) };
                        let token = excerpt(vocabulary.get(id).unwrap_or_default());
                        VocabularyError::new(line_of(id), Kind::DuplicateToken { id, first, token })
                    }
                },
            )?;
        let complete = (0..=255).all(|byte| trie.id_of(&[byte]).is_some());
        Ok(Self { vocabulary, trie, complete })
    }

    /// The token ids of `text`.
    ///
    /// # Panics
    ///
    /// The vocabulary is not [complete](Tokenizer::is_complete). For such a vocabulary there is
    /// [`Tokenizer::try_encode`].
    pub fn encode(&self, text: impl AsRef<[u8]>) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.as_ref().len() / BYTES_PER_TOKEN);
        self.encode_into(text, &mut ids);
        ids
    }

    /// Appends the token ids of `text` to `ids`, so that one buffer serves many texts.
    ///
    /// # Panics
    ///
    /// The vocabulary is not [complete](Tokenizer::is_complete). For such a vocabulary there is
    /// [`Tokenizer::try_encode_into`].
    pub fn encode_into(&self, text: impl AsRef<[u8]>, ids: &mut Vec<u32>) {
        assert!(self.complete, "encode needs a vocabulary with all 256 bytes; use try_encode with this one");
        if let Err(error) = self.try_encode_into(text, ids) {
            unreachable!("a complete vocabulary encodes everything: {error}");
        }
    }

    /// The token ids of `text`, with any vocabulary.
    ///
    /// # Errors
    ///
    /// No token matches at some place of the text; this cannot happen with a
    /// [complete](Tokenizer::is_complete) vocabulary. The longest match is not given up for a shorter one
    /// to avoid this.
    pub fn try_encode(&self, text: impl AsRef<[u8]>) -> Result<Vec<u32>, EncodeError> {
        let mut ids = Vec::with_capacity(text.as_ref().len() / BYTES_PER_TOKEN);
        self.try_encode_into(text, &mut ids)?;
        Ok(ids)
    }

    /// Appends the token ids of `text` to `ids`, with any vocabulary.
    ///
    /// # Errors
    ///
    /// Those of [`Tokenizer::try_encode`]; `ids` is then as it was.
    pub fn try_encode_into(&self, text: impl AsRef<[u8]>, ids: &mut Vec<u32>) -> Result<(), EncodeError> {
        let text = text.as_ref();
        let start = ids.len();
        self.trie.encode(text, ids).map_err(|Stuck| {
            let offset = ids[start..].iter().filter_map(|&id| self.token_bytes(id)).map(<[u8]>::len).sum();
            ids.truncate(start);
            EncodeError { offset, byte: text[offset] }
        })
    }

    /// The bytes that `ids` stand for, exactly; [`END_OF_TEXT`] stands for none.
    ///
    /// # Errors
    ///
    /// An id is not in the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<Vec<u8>, DecodeError> {
        let mut bytes = Vec::new();
        self.decode_into(ids, &mut bytes)?;
        Ok(bytes)
    }

    /// Appends the bytes that `ids` stand for to `bytes`.
    ///
    /// # Errors
    ///
    /// An id is not in the vocabulary; `bytes` is then as it was.
    pub fn decode_into(&self, ids: &[u32], bytes: &mut Vec<u8>) -> Result<(), DecodeError> {
        let start = bytes.len();
        for (position, &id) in ids.iter().enumerate() {
            let Some(token) = self.bytes_of(id) else {
                bytes.truncate(start);
                return Err(DecodeError { id, position });
            };
            bytes.extend_from_slice(token);
        }
        Ok(())
    }

    /// The text that `ids` stand for. It cannot fail: bytes that are not UTF-8 become U+FFFD as in
    /// [`String::from_utf8_lossy`], and so does an id that is not in the vocabulary.
    pub fn decode_lossy(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::new();
        for &id in ids {
            bytes.extend_from_slice(self.bytes_of(id).unwrap_or(UNKNOWN));
        }
        String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// An encoder for a text that comes in pieces.
    pub fn stream_encoder(&self) -> StreamEncoder<&Self> {
        StreamEncoder::new(self)
    }

    /// A decoder that gives the text of one id after another.
    pub fn decoder(&self) -> Decoder<&Self> {
        Decoder::new(self)
    }

    /// The largest id plus 1: the least number of logits that a model for this vocabulary has.
    ///
    /// The World vocabulary has 65530; its models have 65536, and their last six ids stand for nothing.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.size()
    }

    /// Whether each of the 256 bytes is a token, so that every text can be encoded.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The bytes of one token; `None` for [`END_OF_TEXT`] and for ids that are not in the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.vocabulary.get(id)
    }

    /// The id of the token with exactly these bytes.
    pub fn id_of(&self, token: impl AsRef<[u8]>) -> Option<u32> {
        self.trie.id_of(token.as_ref())
    }

    /// The bytes of one id, none for the end of text; `None` if the vocabulary does not have it.
    pub(crate) fn bytes_of(&self, id: u32) -> Option<&[u8]> {
        if id == END_OF_TEXT { Some(&[]) } else { self.token_bytes(id) }
    }

    pub(crate) fn trie(&self) -> &Trie {
        &self.trie
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("complete", &self.complete)
            .finish_non_exhaustive()
    }
}
