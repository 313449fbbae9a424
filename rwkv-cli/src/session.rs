//! A session that can be put away and taken up again: a state, and the token that it has not seen yet.
//!
//! A session file is the state file of `rwkv-model` with one more entry in its metadata, `rwkv.session`. The last token of a
//! text is kept there, and not fed, so that the session goes on with or without a further prompt.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use rwkv_model::{Identity, State};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tempfile::NamedTempFile;

use crate::directories;
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
        let failed = || format!("state {}: cannot be written", path.display());
        let plain =
            NamedTempFile::with_prefix_in(".rwkv-state-", directories::of(path)).with_context(failed)?;
        self.state.save(plain.path())?;
        let bytes = fs::read(plain.path()).with_context(failed)?;
        let (header, data) = split(&bytes)?;
        let header = with_tail(header, &self.tail)?;
        let mut file = directories::file_beside(path, ".rwkv-state-").with_context(failed)?;
        file.write_all(&(header.len() as u64).to_le_bytes()).with_context(failed)?;
        file.write_all(&header).with_context(failed)?;
        file.write_all(data).with_context(failed)?;
        file.as_file().sync_all().with_context(failed)?;
        file.persist(path).map_err(|error| error.error).with_context(failed)?;
        Ok(())
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

/// Checks early that a file can be made at `path`, before hours of work would be lost.
pub fn check_writable(option: &str, path: &Path) -> Result<()> {
    let dir = directories::of(path);
    if path.is_dir() {
        return Err(Stop::usage(format!(
            "{option} {}: is a directory; expected the name of a file",
            path.display()
        )));
    }
    tempfile::tempfile_in(dir)
        .map(drop)
        .with_context(|| format!("{option} {}: nothing can be written there", path.display()))
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

/// The header with the tail in its metadata, padded so that the data stays aligned.
fn with_tail(header: &[u8], tail: &Tail) -> Result<Vec<u8>> {
    let mut header: Map<String, Value> = serde_json::from_slice(header)?;
    let metadata = header.entry("__metadata__").or_insert_with(|| Value::Object(Map::new()));
    metadata[KEY] = Value::String(serde_json::to_string(tail)?);
    let mut bytes = serde_json::to_vec(&header)?;
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    Ok(bytes)
}
