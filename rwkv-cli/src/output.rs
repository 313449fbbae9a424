//! Everything that goes to the standard output stream: data, and the text that models write.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use serde::Serialize;

/// The standard output stream. What is written may wait until [`flush`](Output::flush), and comes out at the latest when
/// [`finish`](Output::finish) is called.
///
/// A reader who has gone away is an error of the kind `BrokenPipe`, which ends the program in silence.
#[derive(Debug)]
pub struct Output {
    out: BufWriter<StdoutLock<'static>>,
    terminal: bool,
    /// The last byte written, if any.
    last: Option<u8>,
}

impl Output {
    /// The stream, locked.
    pub fn stdout() -> Output {
        let terminal = io::stdout().is_terminal();
        Output { out: BufWriter::new(io::stdout().lock()), terminal, last: None }
    }

    /// Whether a person reads it.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Writes bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.last = bytes.last().copied().or(self.last);
        self.out.write_all(bytes)
    }

    /// Writes a line.
    pub fn line(&mut self, line: impl Display) -> io::Result<()> {
        self.last = Some(b'\n');
        writeln!(self.out, "{line}")
    }

    /// Writes a value as one line of JSON.
    pub fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        let json = serde_json::to_string(value)?;
        self.line(json)
    }

    /// Writes what a model made, at once. A terminal gets no control characters: what a model says must
    /// not move the cursor or change the title of a window.
    pub fn text(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.terminal {
            self.bytes(&printable(bytes))?
        } else {
            self.bytes(bytes)?
        }
        self.flush()
    }

    /// Ends the line at a terminal, where something stands on it.
    pub fn end_line(&mut self) -> io::Result<()> {
        if self.terminal && self.last.is_some_and(|last| last != b'\n') {
            self.bytes(b"\n")?;
        }
        self.flush()
    }

    /// Sends out what waits.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Sends out what waits, and says whether that worked.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()
    }
}

/// Control characters as the symbols that Unicode has for them; line feed and tabulator stay.
pub fn printable(bytes: &[u8]) -> Cow<'_, [u8]> {
    let is_control = |byte: u8| (byte < 0x20 && !matches!(byte, b'\n' | b'\t')) || byte == 0x7f;
    if !bytes.iter().any(|&byte| is_control(byte)) {
        return Cow::Borrowed(bytes);
    }
    let mut shown = Vec::with_capacity(bytes.len() + 16);
    for &byte in bytes {
        if is_control(byte) {
            let symbol = if byte == 0x7f {
                '\u{2421}'
            } else {
                char::from_u32(0x2400 + u32::from(byte)).unwrap_or(' ')
            };
            shown.extend_from_slice(symbol.encode_utf8(&mut [0; 4]).as_bytes());
        } else {
            shown.push(byte);
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_control_characters() {
        assert_eq!(*printable(b"a\tb\n"), *b"a\tb\n");
        assert_eq!(*printable(b"\x1b[2J\x7f\r"), *"␛[2J␡␍".as_bytes());
        assert_eq!(*printable("é\u{3266}".as_bytes()), *"é\u{3266}".as_bytes());
    }
}
