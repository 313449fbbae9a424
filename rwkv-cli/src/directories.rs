//! Where the user's files belong.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result};

/// The variable that moves the directory of packs.
const CACHE_VARIABLE: &str = "RWKV_CACHE_DIR";

/// Where packs are kept that have no place beside their checkpoint. It may have to be created.
///
/// # Errors
/// The system does not say where the user lives.
pub fn cache() -> Result<PathBuf> {
    if let Some(dir) = variable(CACHE_VARIABLE) {
        return Ok(dir);
    }
    let base = if cfg!(windows) {
        variable("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        home().map(|home| home.join("Library/Caches"))
    } else {
        absolute("XDG_CACHE_HOME").or_else(|| Some(home()?.join(".cache")))
    };
    Ok(base.with_context(|| format!("no cache directory is known; set {CACHE_VARIABLE}"))?.join("rwkv"))
}

/// Where the history of the chat's input is kept. It may have to be created.
pub fn data() -> Option<PathBuf> {
    let base = if cfg!(windows) {
        variable("APPDATA")
    } else if cfg!(target_os = "macos") {
        home().map(|home| home.join("Library/Application Support"))
    } else {
        absolute("XDG_DATA_HOME").or_else(|| Some(home()?.join(".local/share")))
    };
    Some(base?.join("rwkv"))
}

fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// A variable of the XDG base directory specification, which says that relative paths are ignored.
fn absolute(name: &str) -> Option<PathBuf> {
    variable(name).filter(|path| path.is_absolute())
}

fn home() -> Option<PathBuf> {
    env::home_dir().filter(|home| !home.as_os_str().is_empty())
}
