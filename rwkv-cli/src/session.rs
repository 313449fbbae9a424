//! A session that can be put away and taken up again: a state, and the token that it has not seen yet.
//!
//! A session file is the state file of `rwkv-model` with one more entry in its metadata, `rwkv.session`. The last token of a
//! text is kept there, and not fed, so that the session goes on with or without a further prompt.

use std::collections::HashMap;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use rwkv_model::pack::NewFile;
use rwkv_model::{Identity, State};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::exit::Stop;
use crate::template::{self, BETWEEN};
use crate::vocabulary::Vocabulary;

/// The key of the metadata.
const KEY: &str = "rwkv.session";
/// The header of a state file is some 500 bytes; this is the most that is looked at.
const MAX_HEADER_BYTES: usize = 1 << 20;

/// A state, and what stands between it and the next prompt.
#[derive(Debug, Clone)]
pub struct Session {
    /// What the model remembers.
    pub state: State,
    /// What was said but not yet fed.
    pub tail: Tail,
}

/// The end of a text, in so far as the state does not say it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tail {
    /// Tokens to feed before anything else.
    pub unfed: Vec<u32>,
    /// What the text, unfed tokens included, already has of what the chat's template puts after an answer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trail: String,
}

impl Session {
    /// A session that begins with a state.
    pub fn new(state: State) -> Session {
        Session { state, tail: Tail::default() }
    }

    /// Whether nothing was said yet.
    pub fn is_new(&self) -> bool {
        self.state.tokens() == 0 && self.tail.unfed.is_empty()
    }

    /// Reads a session file, or a plain state file.
    ///
    /// # Errors
    /// It cannot be read, or belongs to another model.
    pub fn load(path: &Path, model: &Identity) -> Result<Session> {
        let state = State::load(path, model)?;
        let bytes = fs::read(path).with_context(|| format!("state {}: cannot be read", path.display()))?;
        let tail = read_tail(&bytes).with_context(|| format!("state {}", path.display()))?;
        let vocab = model.config().vocab;
        if let Some(token) = tail.unfed.iter().find(|&&token| token as usize >= vocab) {
            bail!("state {}: has token {token}; expected tokens below {vocab}", path.display());
        }
        Ok(Session { state, tail })
    }

    /// Writes the session, whole or not at all.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let tail = HashMap::from([(KEY.to_owned(), serde_json::to_string(&self.tail)?)]);
        let bytes = self.state.to_bytes_with(tail)?;
        let written = NewFile::create(path, "state").and_then(|mut file| {
            file.write_all(&bytes)?;
            file.commit()
        });
        written.with_context(|| format!("state {}: cannot be written", path.display()))
    }
}

impl Tail {
    /// The end of an answer of which `visible` bytes are the answer, and what follows belongs to a stop string. `unfed` is
    /// the last token, if the state has not seen it.
    ///
    /// The next turn begins with [`template::after_answer`]. If the model's tokens end with a beginning of that, it goes on from
    /// there. Tokens that say something else after the answer are not fed, as far as the last one can be spared.
    pub fn of_answer(
        tokens: &[u32],
        unfed: Option<u32>,
        visible: usize,
        vocabulary: &Vocabulary,
    ) -> Result<Tail> {
        let text = vocabulary.text(tokens);
        let after = template::after_answer();
        let trail = |from: usize, to: usize| {
            let trail = text.get(from..to).unwrap_or_default();
            after.as_bytes().starts_with(trail).then(|| String::from_utf8_lossy(trail).into_owned())
        };
        if let Some(trail) = trail(visible, text.len()) {
            return Ok(Tail { unfed: unfed.into_iter().collect(), trail });
        }
        let last = unfed.map_or(0, |id| vocabulary.text(&[id]).len());
        let fed = text.len() - last;
        let unfed = vocabulary.try_encode(text.get(fed..visible).unwrap_or_default())?;
        Ok(Tail { unfed, trail: trail(visible, fed).unwrap_or_default() })
    }

    /// A turn, with what has to stand between it and this tail.
    pub fn before(&self, turn: &str) -> String {
        let text = format!("{BETWEEN}{turn}");
        text.strip_prefix(self.trail.as_str()).unwrap_or(&text).to_owned()
    }
}

/// Checks early that there is a file to go on from.
pub fn check_readable(path: &Path) -> Result<()> {
    let metadata = fs::metadata(path).with_context(|| format!("state {}: cannot be read", path.display()))?;
    match metadata.is_file() {
        true => Ok(()),
        false => Err(Stop::usage(format!("state {}: is no file; expected a saved state", path.display()))),
    }
}

/// Checks early that a file can be made at `path`, before hours of work would be lost.
pub fn check_writable(option: &str, path: &Path) -> Result<()> {
    NewFile::check(path).map_err(|error| unwritable(option, path, error))
}

/// Why no file can be made at `path`.
pub fn unwritable(option: &str, path: &Path, error: io::Error) -> anyhow::Error {
    match error.kind() {
        // There is something, and it is no file.
        ErrorKind::InvalidInput => Stop::usage(format!("{option} {}: {error}", path.display())),
        _ => anyhow::Error::new(error).context(format!("{option} {}: cannot be written", path.display())),
    }
}

/// The header and the data of a safetensors file.
fn split(bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let len =
        bytes.first_chunk().map(|&len| u64::from_le_bytes(len)).and_then(|len| usize::try_from(len).ok());
    let len =
        len.filter(|&len| len <= MAX_HEADER_BYTES).context("is no state file: its header is too long")?;
    let rest = &bytes[8..];
    rest.split_at_checked(len).context("is no state file: it ends in its header")
}

fn read_tail(bytes: &[u8]) -> Result<Tail> {
    let header: Value = serde_json::from_slice(split(bytes)?.0)?;
    match header["__metadata__"][KEY].as_str() {
        Some(json) => serde_json::from_str(json).context("has session data that cannot be understood"),
        None => Ok(Tail::default()),
    }
}
