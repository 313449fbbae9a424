//! The tokens of a vocabulary, by id, and the text format that they are read from.
//!
//! A line is `id literal length`: the id in decimal, a Python literal (see the module `literal`), and the
//! number of bytes that the literal stands for. The literal is everything between the first and the last
//! space of the line, so it may contain spaces itself. Lines end with LF or CRLF; the last one needs no
//! end.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{VocabularyError, VocabularyErrorKind as Kind, excerpt};
use crate::literal;

/// The largest id that a vocabulary may have: 2^20 - 1. The tables are as long as the largest id, so it is
/// bounded.
pub const MAX_TOKEN_ID: u32 = (1 << 20) - 1;

/// The largest vocabulary file: sixty times the World vocabulary. Beyond it, it is some other file.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Tokens by id. Id 0 never has one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Vocabulary {
    bytes: Vec<u8>,
    /// Where the token of each id lies in `bytes`; a length of 0 means no token.
    spans: Vec<Span>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Span {
    start: u32,
    len: u32,
}

impl Vocabulary {
    /// Reads a vocabulary in the text format, and the ids in the order of its lines.
    pub(crate) fn parse(text: &[u8]) -> Result<(Self, Vec<u32>), VocabularyError> {
        let found = text.len() as u64;
        if found > MAX_FILE_BYTES {
            return Err(VocabularyError::new(None, too_many_bytes(found)));
        }
        let (mut vocabulary, mut ids) = (Self::default(), Vec::new());
        let text = str::from_utf8(text).map_err(|error| {
            let (before, found) = text.split_at(error.valid_up_to());
            let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
            let found = excerpt(&found[..found.len().min(4)]);
            VocabularyError::new(Some(line), Kind::Syntax(format!("text is {found}, expected UTF-8")))
        })?;
        if text.trim_ascii().is_empty() {
            return Ok((vocabulary, ids));
        }
        let text = text.strip_suffix('\n').unwrap_or(text);
        for (number, line) in (1..).zip(text.split('\n')) {
            let line = line.strip_suffix('\r').unwrap_or(line);
            let id = vocabulary.add_line(line).map_err(|kind| VocabularyError::new(Some(number), kind))?;
            ids.push(id);
        }
        Ok((vocabulary, ids))
    }

    fn add_line(&mut self, line: &str) -> Result<u32, Kind> {
        let (id, rest) = line.split_once(' ').ok_or_else(|| not_a_line(line))?;
        let (literal, length) = rest.rsplit_once(' ').ok_or_else(|| not_a_line(line))?;
        let id = match decimal(id).and_then(|id| u32::try_from(id).ok()) {
            Some(id) => id,
            None if decimal(id).is_some() => return Err(Kind::Id { found: id.to_owned() }),
            None => return Err(not_a_line(line)),
        };
        let Some(length) = decimal(length) else { return Err(not_a_line(line)) };
        let start = self.bytes.len();
        literal::read(literal, &mut self.bytes)?;
        let found = (self.bytes.len() - start) as u64;
        if length != found {
            let what = "the number of bytes of the literal";
            return Err(Kind::Syntax(format!("length is {length}, expected {found}, {what}")));
        }
        self.claim(id, start)?;
        Ok(id)
    }

    /// Adds a token that did not come from a line.
    pub(crate) fn add(&mut self, id: u32, token: &[u8]) -> Result<(), VocabularyError> {
        let start = self.bytes.len();
        let found = (start + token.len()) as u64;
        if found > MAX_FILE_BYTES {
            return Err(VocabularyError::new(None, too_many_bytes(found)));
        }
        self.bytes.extend_from_slice(token);
        self.claim(id, start).map_err(|kind| VocabularyError::new(None, kind))
    }

    /// Gives the bytes from `start` on to `id`.
    fn claim(&mut self, id: u32, start: usize) -> Result<(), Kind> {
        if id == 0 || id > MAX_TOKEN_ID {
            return Err(Kind::Id { found: id.to_string() });
        }
        if start == self.bytes.len() {
            return Err(Kind::EmptyToken { id });
        }
        let at = id as usize;
        if self.spans.len() <= at {
            self.spans.resize(at + 1, Span::default());
        }
        if self.spans[at].len != 0 {
            return Err(Kind::DuplicateId { id });
        }
        // All bytes together are at most MAX_FILE_BYTES.
        self.spans[at] = Span { start: start as u32, len: (self.bytes.len() - start) as u32 };
        Ok(())
    }

    pub(crate) fn get(&self, id: u32) -> Option<&[u8]> {
        let span = self.spans.get(id as usize).filter(|span| span.len != 0)?;
        Some(&self.bytes[span.start as usize..][..span.len as usize])
    }

    /// The largest id, plus 1.
    pub(crate) fn size(&self) -> usize {
        self.spans.len()
    }

    /// The ids of all tokens, in the order of the tokens' bytes.
    pub(crate) fn sorted(&self) -> Vec<u32> {
        let token = |id| self.get(id).unwrap_or_default();
        let ids = (0..).zip(&self.spans).filter(|(_, span)| span.len != 0).map(|(id, _)| id);
        // Nearly all comparisons are decided by the first eight bytes.
        let mut keyed: Vec<(u64, u32)> = ids.map(|id| (prefix(token(id)), id)).collect();
        keyed.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| token(a.1).cmp(token(b.1))));
        keyed.into_iter().map(|(_, id)| id).collect()
    }
}

/// The first eight bytes as a number that orders like them; equal numbers decide nothing.
fn prefix(token: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let len = token.len().min(8);
    bytes[..len].copy_from_slice(&token[..len]);
    u64::from_be_bytes(bytes)
}

/// The bytes of a vocabulary file.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, VocabularyError> {
    let read = || {
        let mut text = Vec::new();
        File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut text)?;
        Ok(text)
    };
    read().map_err(|error| VocabularyError::new(None, Kind::Read(error)))
}

fn too_many_bytes(found: u64) -> Kind {
    Kind::TooLarge { what: "size in bytes", found, limit: MAX_FILE_BYTES }
}

fn not_a_line(line: &str) -> Kind {
    Kind::Syntax(format!("line is {}, expected `id literal length`", excerpt(line.as_bytes())))
}

/// Only digits: no sign, no space, no separator. A number beyond `u64` counts as the largest.
fn decimal(digits: &str) -> Option<u64> {
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| digits.parse().unwrap_or(u64::MAX))
}
