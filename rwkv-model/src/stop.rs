use crate::error::{Result, bail};

/// Finds stop strings in a stream of bytes, across the borders of tokens, and releases everything else.
///
/// Held back is only what may still become a stop string: the longest suffix of the text so far that is a
/// proper prefix of one. The result does not depend on how the bytes are cut into pushes: the match is the
/// stop string that is complete first, and the longest of those that are complete at the same byte.
///
/// What is released is cut only where a stop string could begin. A stop string that is valid UTF-8 begins at a
/// character, so a character is released in parts only if it came in parts.
///
/// ```
/// use rwkv_model::StopMatcher;
///
/// let mut matcher = StopMatcher::new(["\n\nUser:"])?;
/// let mut text = Vec::new();
/// assert_eq!(matcher.push(b"Hello.\n", &mut text), None);
/// assert_eq!(text, b"Hello.");
/// assert_eq!(matcher.push(b"\nUser: more", &mut text), Some(0));
/// assert_eq!(text, b"Hello.");
/// # Ok::<(), rwkv_model::ModelError>(())
/// ```
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    held: Vec<u8>,
    found: Option<usize>,
}

/// A stop string and how many of its bytes the text ends with (Knuth, Morris and Pratt).
#[derive(Debug, Clone)]
struct Stop {
    bytes: Vec<u8>,
    /// `borders[i]`: the longest proper prefix of `bytes[..=i]` that is also its suffix.
    borders: Vec<usize>,
    matched: usize,
}

impl StopMatcher {
    /// A matcher for these stop strings; with none, everything is released at once.
    ///
    /// # Errors
    /// A stop string is empty.
    pub fn new<S: AsRef<[u8]>>(stops: impl IntoIterator<Item = S>) -> Result<StopMatcher> {
        let mut list = Vec::new();
        for (index, stop) in stops.into_iter().enumerate() {
            let bytes = stop.as_ref().to_vec();
            if bytes.is_empty() {
                bail!(Parameter, "stop string {index} is empty; expected at least one byte");
            }
            list.push(Stop { borders: borders(&bytes), bytes, matched: 0 });
        }
        Ok(StopMatcher { stops: list, held: Vec::new(), found: None })
    }

    /// Takes the next bytes and appends to `released` what can no longer be part of a stop string.
    ///
    /// Returns the index of the stop string once one is complete; the text before it has been released, the
    /// stop string and what follows it is dropped. After that, nothing is released any more.
    pub fn push(&mut self, bytes: &[u8], released: &mut Vec<u8>) -> Option<usize> {
        if self.found.is_some() {
            return self.found;
        }
        for &byte in bytes {
            self.held.push(byte);
            let mut partial = 0;
            let mut complete: Option<(usize, usize)> = None;
            for (index, stop) in self.stops.iter_mut().enumerate() {
                stop.advance(byte);
                partial = partial.max(stop.matched);
                if stop.matched == stop.bytes.len() && complete.is_none_or(|(_, len)| len < stop.matched) {
                    complete = Some((index, stop.matched));
                }
            }
            if let Some((index, len)) = complete {
                self.held.truncate(self.held.len() - len);
                released.append(&mut self.held);
                self.found = Some(index);
                return self.found;
            }
            released.extend(self.held.drain(..self.held.len() - partial));
        }
        None
    }

    /// Releases what is held back: the text has ended, and no stop string can become complete.
    pub fn finish(&mut self, released: &mut Vec<u8>) {
        if self.found.is_none() {
            released.append(&mut self.held);
        }
        self.reset();
    }

    /// The bytes held back so far.
    pub fn held(&self) -> &[u8] {
        &self.held
    }

    /// Forgets the text, to begin another one.
    pub fn reset(&mut self) {
        self.held.clear();
        self.found = None;
        for stop in &mut self.stops {
            stop.matched = 0;
        }
    }
}

impl Stop {
    fn advance(&mut self, byte: u8) {
        while self.matched == self.bytes.len() || self.bytes[self.matched] != byte {
            if self.matched == 0 {
                return;
            }
            self.matched = self.borders[self.matched - 1];
        }
        self.matched += 1;
    }
}

fn borders(bytes: &[u8]) -> Vec<usize> {
    let mut borders = vec![0; bytes.len()];
    let mut border = 0;
    for end in 1..bytes.len() {
        while border > 0 && bytes[border] != bytes[end] {
            border = borders[border - 1];
        }
        border += usize::from(bytes[border] == bytes[end]);
        borders[end] = border;
    }
    borders
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds the pieces and returns the released text and the stop string found.
    fn run(stops: &[&str], pieces: &[&[u8]]) -> (Vec<u8>, Option<usize>) {
        let mut matcher = StopMatcher::new(stops).unwrap();
        let mut text = Vec::new();
        let mut found = None;
        for piece in pieces {
            found = matcher.push(piece, &mut text);
        }
        matcher.finish(&mut text);
        (text, found)
    }

    /// The definition: the first byte at which a stop string is complete, the longest of those.
    fn defined(stops: &[&str], text: &[u8]) -> (Vec<u8>, Option<usize>) {
        for end in 1..=text.len() {
            let complete =
                stops.iter().enumerate().filter(|(_, stop)| text[..end].ends_with(stop.as_bytes()));
            if let Some((index, stop)) = complete.rev().max_by_key(|(_, stop)| stop.len()) {
                return (text[..end - stop.len()].to_vec(), Some(index));
            }
        }
        (text.to_vec(), None)
    }

    #[test]
    fn every_cut_gives_the_defined_result() {
        let cases: &[(&[&str], &str)] = &[
            (&["\n\nUser:"], "Hi.\n\nUser: more"),
            (&["\n\nUser:"], "Hi.\n\nUse\n\n\nUser:"),
            (&["abcd", "bc"], "xabcd"),
            (&["bc", "abc"], "xabc"),
            (&["abc", "abc"], "abc"),
            (&["aab"], "aaaab"),
            (&["aaaa", "ab"], "aaab"),
            (&["ababac"], "abababac"),
            (&["é\n"], "caféé\n."),
            (&[], "no stops"),
            (&["nowhere"], "now here nowher"),
        ];
        for (stops, text) in cases {
            let expected = defined(stops, text.as_bytes());
            for first in 0..=text.len() {
                for second in first..=text.len() {
                    let bytes = text.as_bytes();
                    let pieces = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                    assert_eq!(run(stops, &pieces), expected, "{stops:?} {text:?} cut at {first}, {second}");
                }
            }
        }
    }

    #[test]
    fn a_stop_string_across_tokens_is_never_released() {
        let (text, found) = run(&["\n\nUser:"], &[b"Hello", b"\n\n", b"User", b":"]);
        assert_eq!((text.as_slice(), found), (b"Hello".as_slice(), Some(0)));
    }

    #[test]
    fn held_text_is_released_at_the_end() {
        let (text, found) = run(&["\n\nUser:"], &[b"Hello\n\nUser"]);
        assert_eq!((text.as_slice(), found), (b"Hello\n\nUser".as_slice(), None));
    }

    #[test]
    fn ordinary_text_is_not_delayed() {
        let mut matcher = StopMatcher::new(["<|a very long stop string that never comes|>"]).unwrap();
        let mut text = Vec::new();
        for word in ["plain ", "text ", "with a < in it, ", "and <| too"] {
            matcher.push(word.as_bytes(), &mut text);
            assert_eq!(matcher.held(), b"", "after {word:?}");
        }
    }

    #[test]
    fn nothing_is_released_after_the_stop_string() {
        let mut matcher = StopMatcher::new(["."]).unwrap();
        let mut text = Vec::new();
        assert_eq!(matcher.push(b"a.b", &mut text), Some(0));
        assert_eq!(matcher.push(b"c", &mut text), Some(0));
        matcher.finish(&mut text);
        assert_eq!(text, b"a");
        assert_eq!(matcher.push(b"d", &mut text), None, "a finished matcher begins anew");
        assert_eq!(text, b"ad");
    }

    #[test]
    fn an_empty_stop_string_is_refused() {
        let error = StopMatcher::new(["a", ""]).unwrap_err();
        assert_eq!(error.to_string(), "stop string 1 is empty; expected at least one byte");
    }
}
