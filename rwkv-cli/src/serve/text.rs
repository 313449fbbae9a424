//! Text from bytes that come in pieces.

/// Releases whole characters; bytes that become none are U+FFFD.
#[derive(Debug, Clone, Default)]
pub struct Characters {
    /// The beginning of a character: at most three bytes.
    pending: Vec<u8>,
}

impl Characters {
    /// Takes bytes and returns the characters that are complete with them.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = 0;
        let mut chunks = self.pending.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            let is_last = chunks.peek().is_none();
            let may_be_completed =
                std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if is_last && may_be_completed {
                rest = invalid.len();
            } else if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.pending.drain(..self.pending.len() - rest);
        text
    }

    /// The text has ended: what is incomplete stays so.
    pub fn finish(&mut self) -> String {
        let is_incomplete = !std::mem::take(&mut self.pending).is_empty();
        if is_incomplete { char::REPLACEMENT_CHARACTER.into() } else { String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_gives_the_same_text() {
        let texts: [&[u8]; 6] = [
            "안녕하세요, 🦀 é".as_bytes(),
            b"\xff\xff",
            b"a\xe2\x82",
            b"\xe2\x82\xe2\x82\xac",
            b"\xf0\x9f\xa6 \xf0\x9f\xa6\x80",
            b"",
        ];
        for bytes in texts {
            for size in 1..=bytes.len().max(1) {
                let mut characters = Characters::default();
                let mut text: String = bytes.chunks(size).map(|part| characters.push(part)).collect();
                assert!(characters.pending.len() <= 3);
                text.push_str(&characters.finish());
                assert_eq!(text, String::from_utf8_lossy(bytes), "{bytes:?} by {size}");
            }
        }
    }
}
