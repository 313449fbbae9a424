//! Which rows of the key/value cache a token attends to.
//!
//! Each policy is defined for one token at a time, so that every split of a prompt gives the same bits. With `r` rows cached
//! before a token, itself becoming row `r`:
//!
//! ```text
//! full       rows 0 ..= r
//! window N   the last N of them
//! top-k      r <= short: all of them; else, with n = r / B complete chunks,
//!            score of chunk c = q · mean of its keys, over all heads,
//!            the k chunks of the highest scores (of equal ones the first), and rows n B ..= r
//! ```
//!
//! Compression goes before: with more than `above` rows cached, each head keeps, of the rows before the last `window`,
//! those `keep - window` that the token's query attends to most, in descending order, and then the last `window`.
//!
//! The reference of RWKV-X decodes by these rules, but feeds a prompt of many tokens by others beyond the short limit,
//! so that its logits there depend on how the prompt is split; here a prompt is what decoding it token by token gives.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{ErrorKind, ModelError, Result, bail};

/// Which rows of the key/value cache a token attends to, in a model that has attention blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Attention {
    /// All of them: the cache grows with every token.
    #[default]
    Full,
    /// The most recent ones, the token itself included; older ones are dropped.
    Window(usize),
    /// The chunks that fit best, and the most recent rows.
    TopK(TopK),
}

/// The numbers of [`Attention::TopK`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopK {
    /// Rows of a chunk, B.
    pub chunk_rows: usize,
    /// Chunks that are attended to, k.
    pub chunks: usize,
    /// Up to so many cached rows all are attended to.
    pub short_rows: usize,
    /// Whether and when cached rows are dropped.
    pub compression: Option<Compression>,
}

/// Dropping the rows that are attended to least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compression {
    /// Up to so many cached rows none is dropped.
    pub above: usize,
    /// Rows that are kept, those of the window included.
    pub keep: usize,
    /// The most recent rows, which are always kept.
    pub window: usize,
}

impl Default for TopK {
    /// Three chunks of 2048 rows, all rows up to 6144, no compression.
    fn default() -> TopK {
        TopK::new(2048, 3)
    }
}

impl TopK {
    /// So many chunks of so many rows, all rows up to as many as these have together, no compression.
    pub fn new(chunk_rows: usize, chunks: usize) -> TopK {
        TopK { chunk_rows, chunks, short_rows: chunk_rows.saturating_mul(chunks), compression: None }
    }
}

impl Default for Compression {
    /// From more than 20000 rows to 16000, 2000 of which are the most recent ones.
    fn default() -> Compression {
        Compression { above: 20000, keep: 16000, window: 2000 }
    }
}

/// More rows than any cache has; keeps sums of rows far from overflow.
const MAX_ROWS: usize = 1 << 40;

impl Attention {
    /// The default window, in rows.
    pub const DEFAULT_WINDOW: usize = 2048;

    pub(crate) fn validate(&self) -> Result<()> {
        let within = |what: &str, rows: usize| -> Result<()> {
            if rows == 0 || rows > MAX_ROWS {
                bail!(Parameter, "{what} is {rows}; expected 1 to {MAX_ROWS}");
            }
            Ok(())
        };
        match self {
            Attention::Full => Ok(()),
            Attention::Window(rows) => within("the attention's window", *rows),
            Attention::TopK(top_k) => {
                within("the rows of an attention chunk", top_k.chunk_rows)?;
                within("the number of attention chunks", top_k.chunks)?;
                if let Some(Compression { above, keep, window }) = top_k.compression {
                    within("the rows from which a cache is compressed", above)?;
                    if !(window < keep && keep <= above) {
                        bail!(
                            Parameter,
                            "compression keeps {keep} of {above} rows, with a window of {window}; expected window < kept <= all"
                        );
                    }
                }
                Ok(())
            }
        }
    }

    pub(crate) fn top_k(&self) -> Option<&TopK> {
        match self {
            Attention::TopK(top_k) => Some(top_k),
            _ => None,
        }
    }

    pub(crate) fn compression(&self) -> Option<&Compression> {
        self.top_k().and_then(|top_k| top_k.compression.as_ref())
    }
}

impl fmt::Display for Attention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attention::Full => f.write_str("full"),
            Attention::Window(rows) => write!(f, "window:{rows}"),
            Attention::TopK(TopK { chunk_rows, chunks, .. }) => write!(f, "top-k:{chunk_rows},{chunks}"),
        }
    }
}

impl FromStr for Attention {
    type Err = ModelError;

    /// Reads `full`, `window` or `window:N`, `top-k` or `top-k:B,k`.
    fn from_str(text: &str) -> Result<Attention> {
        let (name, numbers) = match text.split_once(':') {
            Some((name, numbers)) => (name, Some(numbers)),
            None => (text, None),
        };
        let wrong = || {
            let what = format!("attention is {text:?}; expected full, window:N or top-k:B,k");
            ModelError::new(ErrorKind::Parameter, what)
        };
        let number = |text: &str| text.parse::<usize>().map_err(|_| wrong());
        let attention = match (name, numbers) {
            ("full", None) => Attention::Full,
            ("window", None) => Attention::Window(Attention::DEFAULT_WINDOW),
            ("window", Some(rows)) => Attention::Window(number(rows)?),
            ("top-k", None) => Attention::TopK(TopK::default()),
            ("top-k", Some(numbers)) => {
                let (chunk_rows, chunks) = numbers.split_once(',').ok_or_else(wrong)?;
                Attention::TopK(TopK::new(number(chunk_rows)?, number(chunks)?))
            }
            _ => return Err(wrong()),
        };
        attention.validate()?;
        Ok(attention)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for text in ["full", "window:2048", "window:1", "top-k:2048,3", "top-k:16,2"] {
            assert_eq!(text.parse::<Attention>().unwrap().to_string(), text);
        }
        assert_eq!("window".parse::<Attention>().unwrap(), Attention::Window(2048));
        assert_eq!("top-k".parse::<Attention>().unwrap(), Attention::TopK(TopK::default()));
    }

    #[test]
    fn other_names_are_refused_with_those_that_are_known() {
        for text in
            ["", "Full", "full:1", "window:", "window:0", "window:-1", "top-k:16", "top-k:0,1", "top-k:1,2,3"]
        {
            let error = text.parse::<Attention>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Parameter, "{text}");
        }
    }
}
