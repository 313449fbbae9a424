//! Python string and bytes literals, as `repr` writes them: read, never evaluated.
//!
//! Known are `'…'`, `"…"`, `b'…'` and `b"…"` with the escapes `\\ \' \" \a \b \f \n \r \t \v \xhh`, and
//! in text literals `\uhhhh \Uhhhhhhhh`. Everything else (other prefixes, triple quotes, octal and named
//! escapes, concatenation, expressions) is refused.

use thiserror::Error;

use crate::error::excerpt;

/// What is wrong with a literal.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum LiteralError {
    #[error("literal is {0}, expected '…', \"…\" or b'…'")]
    NotALiteral(String),
    #[error(
        "escape {0} in the literal, expected one of \\\\ \\' \\\" \\a \\b \\f \\n \\r \\t \\v \\x \\u \\U"
    )]
    UnknownEscape(String),
    #[error("escape {0} in the literal, expected {1} hexadecimal digits")]
    BadDigits(String, usize),
    #[error("escape {0} in the literal is not a character, expected a Unicode scalar value")]
    NotACharacter(String),
    #[error("character {0:?} in a bytes literal, expected ASCII or \\x escapes")]
    NotAscii(char),
}

/// Appends the bytes that `literal` stands for to `out`: UTF-8 for a text literal, the bytes themselves
/// for a bytes literal.
pub(crate) fn read(literal: &str, out: &mut Vec<u8>) -> Result<(), LiteralError> {
    let not_a_literal = || LiteralError::NotALiteral(excerpt(literal.as_bytes()));
    let (is_bytes, quoted) = match literal.strip_prefix('b') {
        Some(rest) => (true, rest),
        None => (false, literal),
    };
    let quote =
        quoted.bytes().next().filter(|byte| matches!(byte, b'\'' | b'"')).ok_or_else(not_a_literal)?;
    let body = quoted[1..].strip_suffix(char::from(quote)).ok_or_else(not_a_literal)?;

    let mut rest = body;
    while let Some(at) = rest.bytes().position(|byte| byte == b'\\' || byte == quote) {
        push_plain(&rest[..at], is_bytes, out)?;
        if rest.as_bytes()[at] == quote {
            // The literal closes before its last quote: two literals, or an expression.
            return Err(not_a_literal());
        }
        rest = push_escape(&rest[at..], is_bytes, out).ok_or_else(not_a_literal)??;
    }
    push_plain(rest, is_bytes, out)
}

fn push_plain(text: &str, is_bytes: bool, out: &mut Vec<u8>) -> Result<(), LiteralError> {
    if is_bytes && let Some(c) = text.chars().find(|c| !c.is_ascii()) {
        return Err(LiteralError::NotAscii(c));
    }
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

/// Reads the escape at the start of `text` and returns what follows it; `None` when the text ends within
/// the backslash, which means that the closing quote was escaped.
fn push_escape<'a>(
    text: &'a str,
    is_bytes: bool,
    out: &mut Vec<u8>,
) -> Option<Result<&'a str, LiteralError>> {
    let kind = text[1..].chars().next()?;
    let after = &text[1 + kind.len_utf8()..];
    let byte = match kind {
        '\\' | '\'' | '"' => kind as u8,
        'a' => 0x07,
        'b' => 0x08,
        't' => b'\t',
        'n' => b'\n',
        'v' => 0x0b,
        'f' => 0x0c,
        'r' => b'\r',
        'x' => return Some(push_code(text, 2, is_bytes, out)),
        'u' if !is_bytes => return Some(push_code(text, 4, is_bytes, out)),
        'U' if !is_bytes => return Some(push_code(text, 8, is_bytes, out)),
        _ => return Some(Err(LiteralError::UnknownEscape(printable(&text[..1 + kind.len_utf8()])))),
    };
    out.push(byte);
    Some(Ok(after))
}

/// Reads `\x`, `\u` or `\U` and its `digits` hexadecimal digits.
///
/// In a bytes literal the number is a byte. In a text literal it is a code point, so `'\x80'` is the two
/// bytes C2 80.
fn push_code<'a>(
    text: &'a str,
    digits: usize,
    is_bytes: bool,
    out: &mut Vec<u8>,
) -> Result<&'a str, LiteralError> {
    let end = 2 + digits;
    let escape = || printable(text.split_at_checked(end).map_or(text, |(escape, _)| escape));
    let hex = text
        .get(2..end)
        .filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
        .ok_or_else(|| LiteralError::BadDigits(escape(), digits))?;
    let code = u32::from_str_radix(hex, 16).map_err(|_| LiteralError::BadDigits(escape(), digits))?;
    match u8::try_from(code) {
        Ok(byte) if is_bytes => out.push(byte),
        _ => {
            let c = char::from_u32(code).ok_or_else(|| LiteralError::NotACharacter(escape()))?;
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    Ok(&text[end..])
}

/// An escape as it stands in the file, short already; control characters would break the line.
fn printable(escape: &str) -> String {
    escape.chars().take(10).map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(literal: &str) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        read(literal, &mut out).map(|()| out).map_err(|e| e.to_string())
    }

    #[test]
    fn literals_that_python_writes() {
        let cases: &[(&str, &[u8])] = &[
            ("'a'", b"a"),
            ("' '", b" "),
            ("''", b""),
            ("\"'\"", b"'"),
            ("'\"'", b"\""),
            (r"'\\'", b"\\"),
            (r"'\''", b"'"),
            (r#""\"""#, b"\""),
            (r"'\n\r\t\a\b\f\v'", b"\n\r\t\x07\x08\x0c\x0b"),
            (r"'\x00\x7f'", b"\x00\x7f"),
            (r"'\x80'", b"\xc2\x80"),
            (r"'\xff'", b"\xc3\xbf"),
            (r"b'\x80'", b"\x80"),
            (r#"b"\xff'""#, b"\xff'"),
            (r"b'\xe4\xbd a'", b"\xe4\xbd a"),
            (r"'\u200d'", "\u{200d}".as_bytes()),
            (r"'\uFFFD'", "\u{fffd}".as_bytes()),
            (r"'\U0001f600'", "\u{1f600}".as_bytes()),
            ("'你好'", "你好".as_bytes()),
            ("'b'", b"b"),
            ("'a b  c'", b"a b  c"),
        ];
        for (literal, expected) in cases {
            assert_eq!(bytes_of(literal).as_deref(), Ok(*expected), "{literal}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        let cases = [
            ("", "literal is \"\", expected"),
            ("a", "literal is \"a\", expected"),
            ("'", "literal is"),
            ("b", "literal is"),
            ("b'", "literal is"),
            ("'a", "literal is"),
            ("a'", "literal is"),
            ("'a\"", "literal is"),
            ("r'a'", "literal is"),
            ("B'a'", "literal is"),
            ("bb'a'", "literal is"),
            ("'''a'''", "literal is"),
            ("'a' 'b'", "literal is"),
            ("'a'+'b'", "literal is"),
            (r"'a\'", "literal is"),
            ("__import__('os').system('x')", "literal is \"__import__('os').system('x')\", expected"),
            (r"'\q'", r"escape \q in the literal, expected one of"),
            (r"'\0'", r"escape \0"),
            (r"'\N{DASH}'", r"escape \N"),
            (r"b'\u0041'", r"escape \u in"),
            (r"b'\U00000041'", r"escape \U in"),
            (r"'\x4'", r"escape \x4 in the literal, expected 2 hexadecimal digits"),
            (r"'\x'", r"escape \x in the literal, expected 2"),
            (r"'\x+4'", r"expected 2 hexadecimal digits"),
            (r"'\x4é'", r"expected 2 hexadecimal digits"),
            (r"'\u12'", r"expected 4 hexadecimal digits"),
            (r"'\ud800'", r"escape \ud800 in the literal is not a character"),
            (r"'\U00110000'", r"escape \U00110000 in the literal is not a character"),
            ("b'é'", "character 'é' in a bytes literal"),
            (r"b'\é'", r"in the literal, expected one of"),
        ];
        for (literal, message) in cases {
            let found = bytes_of(literal).expect_err(literal);
            assert!(found.contains(message), "{literal}: found {found:?}, expected {message:?}");
        }
    }
}
