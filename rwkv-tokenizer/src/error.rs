//! The errors of this crate: one for vocabularies, one for encoding, one for decoding.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::literal::LiteralError;

/// A vocabulary that cannot be read, or is not one.
///
/// Prints as one line that names the file and the line, what was found there, and what was expected:
/// `my_vocab.txt:7: length is 3, expected 2, the number of bytes of the literal`.
#[derive(Debug)]
pub struct VocabularyError {
    path: Option<PathBuf>,
    line: Option<usize>,
    kind: VocabularyErrorKind,
}

/// What is wrong with a vocabulary.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VocabularyErrorKind {
    /// The operating system could not read the file; the cause is the error's source.
    #[error("cannot be read")]
    Read(#[source] io::Error),
    /// The file, or what it would need in memory, is beyond what a vocabulary can be.
    #[error("{what} is {found}, expected at most {limit}")]
    TooLarge {
        /// The thing that was measured.
        what: &'static str,
        /// Its measure, at least.
        found: u64,
        /// The largest measure that is accepted.
        limit: u64,
    },
    /// The line does not follow the format `id literal length`.
    #[error("{0}")]
    Syntax(String),
    /// The line, or entry, has an id that an earlier one has.
    #[error("id {id} appears a second time, expected each id once")]
    DuplicateId {
        /// The id in question.
        id: u32,
    },
    /// The token has two ids.
    #[error("id {id} is the token {token}, expected a new one: it is id {first} already")]
    DuplicateToken {
        /// The id of the later line or entry.
        id: u32,
        /// The id of the earlier line or entry.
        first: u32,
        /// The token, escaped for printing and shortened.
        token: String,
    },
    /// The id is 0, which is the end of text and has no token, or above
    /// [`MAX_TOKEN_ID`](crate::MAX_TOKEN_ID).
    #[error("id is {found}, expected 1 to {}", crate::MAX_TOKEN_ID)]
    Id {
        /// The id as it was found.
        found: String,
    },
    /// The token has no bytes.
    #[error("token of id {id} is empty, expected at least one byte")]
    EmptyToken {
        /// The id in question.
        id: u32,
    },
    /// There is no token at all.
    #[error("no token found, expected at least one")]
    Empty,
}

impl VocabularyError {
    pub(crate) fn new(line: Option<usize>, kind: VocabularyErrorKind) -> Self {
        Self { path: None, line, kind }
    }

    pub(crate) fn in_file(self, path: &Path) -> Self {
        Self { path: Some(path.to_owned()), ..self }
    }

    /// The file, when the vocabulary came from one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The line, counted from 1, when one line is at fault.
    pub fn line(&self) -> Option<usize> {
        self.line
    }

    /// What is wrong.
    pub fn kind(&self) -> &VocabularyErrorKind {
        &self.kind
    }
}

impl fmt::Display for VocabularyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.path, self.line) {
            (Some(path), Some(line)) => write!(f, "{}:{line}: ", path.display())?,
            (Some(path), None) => write!(f, "{}: ", path.display())?,
            (None, Some(line)) => write!(f, "vocabulary line {line}: ")?,
            (None, None) => write!(f, "vocabulary: ")?,
        }
        self.kind.fmt(f)
    }
}

impl std::error::Error for VocabularyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.kind.source()
    }
}

impl From<LiteralError> for VocabularyErrorKind {
    fn from(error: LiteralError) -> Self {
        Self::Syntax(error.to_string())
    }
}

/// A text that a vocabulary without all 256 bytes has no tokens for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("no token matches at byte {offset} (0x{byte:02x}), expected a vocabulary that covers the text")]
pub struct EncodeError {
    /// Where in the text, in bytes; everything before it has its tokens.
    pub offset: usize,
    /// The byte at that place.
    pub byte: u8,
}

/// An id that the vocabulary does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("token id {id} at position {position} is not in the vocabulary, expected one of its ids or 0")]
pub struct DecodeError {
    /// The unknown id.
    pub id: u32,
    /// Its place among the ids.
    pub position: usize,
}

/// The beginning of something found in a file, quoted and printable on one line.
pub(crate) fn excerpt(found: &[u8]) -> String {
    const KEPT: usize = 48;
    // A character has at most four bytes, so a huge line costs nothing here.
    let head = String::from_utf8_lossy(&found[..found.len().min(4 * KEPT + 4)]);
    let kept: String = head.chars().take(KEPT).collect();
    let more = if kept.len() < head.len() { "…" } else { "" };
    format!("{kept:?}{more}")
}
