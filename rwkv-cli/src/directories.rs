//! Where the user's files belong, and files that are not finished yet.

use std::path::{Path, PathBuf};
use std::{env, io};

use anyhow::{Context, Result};
use tempfile::NamedTempFile;

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

/// The directory that a file is in, or is to be in.
pub fn of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A new file beside `path`, which is to get that name once it is whole. Others may read it as they may any file that the
/// user makes.
///
/// # Errors
/// No file can be made there.
pub fn file_beside(path: &Path, prefix: &str) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.prefix(prefix).tempfile_in(of(path))
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
