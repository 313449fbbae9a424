//! Named states: what sessions remember, kept as session files in one folder.
//!
//! A name is made of letters, digits, `-`, `_` and `.`, and does not begin with a dot: it can be nothing but the name of a
//! file in that folder, and no file in the making, which begins with one.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use anyhow::Context;
use rwkv_model::Identity;
use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::{Fields, wrong};
use crate::session::Session;

/// What follows a name in the name of its file.
const EXTENSION: &str = "state";
/// The most bytes of a name.
const MOST_NAME_BYTES: usize = 64;

/// The name of a state.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StateName(String);

impl StateName {
    /// Checks a name.
    ///
    /// # Errors
    /// 400: it has other characters, or too many.
    pub fn new(name: &str, param: &str) -> Result<StateName, ApiError> {
        let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_name = (1..=MOST_NAME_BYTES).contains(&name.len())
            && !name.starts_with('.')
            && name.bytes().all(is_safe);
        if !is_name {
            let expected = format!(
                "1 to {MOST_NAME_BYTES} letters, digits, `-`, `_` and `.`, without a dot at the beginning"
            );
            return Err(wrong(param.to_owned(), &Value::String(name.to_owned()), &expected));
        }
        Ok(StateName(name.to_owned()))
    }

    /// Takes a name from a request.
    ///
    /// # Errors
    /// As [`StateName::new`].
    pub fn take(fields: &mut Fields, param: &str) -> Result<Option<StateName>, ApiError> {
        fields.text(param)?.map(|name| StateName::new(&name, &fields.path(param))).transpose()
    }
}

impl fmt::Display for StateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The folder of states.
#[derive(Debug)]
pub struct States {
    dir: PathBuf,
    most_bytes: u64,
    /// Held while files are added, so that the bound holds.
    adding: Mutex<()>,
}

impl States {
    /// The folder, which is made if it is not there, with a bound for the bytes of all states in it.
    ///
    /// # Errors
    /// It cannot be made or written to.
    pub fn open(dir: &Path, most_bytes: u64) -> anyhow::Result<States> {
        let failed = || format!("--state-dir {}: cannot be used", dir.display());
        fs::create_dir_all(dir).with_context(failed)?;
        tempfile::tempfile_in(dir).with_context(failed)?;
        Ok(States { dir: dir.to_owned(), most_bytes, adding: Mutex::new(()) })
    }

    /// Whether it is the folder of that path.
    pub fn is_at(&self, path: &Path) -> bool {
        matches!((self.dir.canonicalize(), path.canonicalize()), (Ok(here), Ok(there)) if here == there)
    }

    /// The states, by name.
    ///
    /// # Errors
    /// 500: the folder cannot be read.
    pub fn list(&self) -> Result<Vec<Value>, ApiError> {
        let mut found: Vec<(StateName, Value)> = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(|error| unreadable(&error))? {
            let path = entry.map_err(|error| unreadable(&error))?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let is_state = path.extension().is_some_and(|extension| extension == EXTENSION);
            let (true, Some(stem)) = (is_state, stem) else { continue };
            // Somebody else's files may have any name.
            let Ok(name) = StateName::new(stem, "name") else { continue };
            if let Some(described) = self.describe(&name)? {
                found.push((name, described));
            }
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(found.into_iter().map(|(_, described)| described).collect())
    }

    /// A state as the API shows it.
    ///
    /// # Errors
    /// 404: there is none of this name.
    pub fn get(&self, name: &StateName) -> Result<Value, ApiError> {
        self.describe(name)?.ok_or_else(|| absent(name))
    }

    /// Reads a state.
    ///
    /// # Errors
    /// 404: there is none of this name. 400: it belongs to another model, or is damaged.
    pub fn load(&self, name: &StateName, model: &Identity) -> Result<Session, ApiError> {
        self.get(name)?;
        Session::load(&self.path(name), model).map_err(|error| {
            tracing::warn!(%name, error = format!("{error:#}"), "state not loaded");
            let message =
                format!("state \"{name}\" cannot be used: it belongs to another model, or is damaged");
            ApiError::field("state", message).code("state_unusable")
        })
    }

    /// Keeps a state, in the place of one of the same name.
    ///
    /// # Errors
    /// 507: the folder is full. 500: it cannot be written to.
    pub fn save(&self, name: &StateName, session: &Session) -> Result<Value, ApiError> {
        let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let others = self.bytes_without(name)?;
        let bytes = others.saturating_add(session.state.bytes());
        if bytes > self.most_bytes {
            return Err(ApiError::full(format!(
                "states would take {bytes} bytes; there is room for {}: delete some",
                self.most_bytes
            )));
        }
        session.save(&self.path(name)).map_err(|error| {
            tracing::error!(%name, error = format!("{error:#}"), "state not saved");
            ApiError::internal("the state cannot be written")
        })?;
        self.get(name)
    }

    /// Deletes a state.
    ///
    /// # Errors
    /// 404: there is none of this name. 500: it cannot be deleted.
    pub fn delete(&self, name: &StateName) -> Result<(), ApiError> {
        match fs::remove_file(self.path(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(absent(name)),
            Err(_) => Err(ApiError::internal("the state cannot be deleted")),
            Ok(()) => Ok(()),
        }
    }

    fn describe(&self, name: &StateName) -> Result<Option<Value>, ApiError> {
        let metadata = match fs::metadata(self.path(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            metadata => metadata.map_err(|error| unreadable(&error))?,
        };
        let created = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Ok(metadata.is_file().then(|| {
            json!({
                "id": name.0,
                "object": "state",
                "created": created.map(|time| time.as_secs()),
                "bytes": metadata.len(),
            })
        }))
    }

    fn bytes_without(&self, name: &StateName) -> Result<u64, ApiError> {
        let others = self.list()?.into_iter().filter(|state| state["id"] != name.0);
        Ok(others.filter_map(|state| state["bytes"].as_u64()).sum())
    }

    fn path(&self, name: &StateName) -> PathBuf {
        self.dir.join(format!("{name}.{EXTENSION}"))
    }
}

fn absent(name: &StateName) -> ApiError {
    ApiError::not_found(format!("there is no state {:?}", name.0))
}

fn unreadable(error: &io::Error) -> ApiError {
    tracing::error!(%error, "the folder of states cannot be read");
    ApiError::internal("the folder of states cannot be read")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_the_folder() {
        for name in ["a", "book", "A-b_c.2", &"x".repeat(64)] {
            assert!(StateName::new(name, "name").is_ok(), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            ".hidden",
            "../up",
            "a/b",
            "a\\b",
            "/etc/passwd",
            "C:x",
            "a b",
            "ä",
            "a\0",
            "a\n",
            "~",
            "%2e%2e",
            &"x".repeat(65),
        ] {
            assert!(StateName::new(name, "name").is_err(), "{name}");
        }
    }
}
