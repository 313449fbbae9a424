use std::fs::{self, File};
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A file that gets its name when it is whole.
///
/// What is written goes to a file with a temporary name, `.rwkv-KIND-*.tmp`, in the directory of the target.
/// [`commit`](Self::commit) makes it durable and renames it in one step: whoever opens the target's name sees the old file or the new
/// one, whole. A file that is dropped before is removed, and the target stays as it was.
#[derive(Debug)]
pub struct NewFile {
    file: NamedTempFile,
    target: PathBuf,
}

impl NewFile {
    /// Starts a file that will be called `path`. A symbolic link stays one, and what it leads to is replaced in the end.
    ///
    /// # Errors
    ///
    /// When `path` is there and is no regular file, but a directory, a device or a pipe, say; when it is a link that leads nowhere; when
    /// no file can be made in its directory.
    pub fn create(path: impl AsRef<Path>, kind: &str) -> io::Result<NewFile> {
        let path = path.as_ref();
        // The name of a directory, whether there is one or not.
        if path
            .as_os_str()
            .as_encoded_bytes()
            .last()
            .is_some_and(|&byte| std::path::is_separator(byte.into()))
        {
            return Err(refused("is a directory, expected the name of a file to write"));
        }
        // The working directory may change before the end.
        let mut target = std::path::absolute(path)?;
        match fs::symlink_metadata(&target) {
            Ok(metadata) if metadata.is_symlink() => target = fs::canonicalize(&target)?,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        match fs::metadata(&target) {
            Ok(metadata) if metadata.is_dir() => {
                return Err(refused("is a directory, expected the name of a file to write"));
            }
            Ok(metadata) if !metadata.is_file() => {
                return Err(refused("is a device or a pipe, expected the name of a file to write"));
            }
            _ => {}
        }
        let directory = target.parent().unwrap_or(&target);
        // Says why better than the error of a file whose name nobody knows.
        fs::metadata(directory)?;
        let mut builder = tempfile::Builder::new();
        let prefix = format!(".rwkv-{kind}-");
        builder.prefix(&prefix).suffix(".tmp");
        // As any new file has them, less the umask: the default would keep the file from all other users.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = builder.tempfile_in(directory).map_err(nameless)?;
        Ok(NewFile { file, target })
    }

    /// Whether [`create`](Self::create) would work now. Nothing stays.
    ///
    /// # Errors
    ///
    /// Those of [`create`](Self::create).
    pub fn check(path: impl AsRef<Path>) -> io::Result<()> {
        NewFile::create(path, "check").map(drop)
    }

    /// What the file will be called: an absolute path.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The file.
    pub fn as_file(&self) -> &File {
        self.file.as_file()
    }

    /// Makes the file durable and gives it its name. What had the name before is replaced.
    ///
    /// # Errors
    ///
    /// The operating system's. The target is then as it was.
    pub fn commit(self) -> io::Result<()> {
        self.file.as_file().sync_all()?;
        self.file.persist(&self.target).map_err(|error| error.error)?;
        sync_directory(&self.target);
        Ok(())
    }

    /// The same, if nothing has the name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AlreadyExists`] if something has the name by now; the operating system's. The target is then as it was.
    pub fn commit_new(self) -> io::Result<()> {
        self.file.as_file().sync_all()?;
        let error = match self.file.persist_noclobber(&self.target) {
            Ok(_) => {
                sync_directory(&self.target);
                return Ok(());
            }
            Err(error) => error,
        };
        // Not every file system can rename without replacing.
        if error.error.kind() == ErrorKind::AlreadyExists || fs::symlink_metadata(&self.target).is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        NewFile { file: error.file, target: self.target }.commit()
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.as_file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.as_file().flush()
    }
}

impl Seek for NewFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.as_file().seek(to)
    }
}

fn refused(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, why)
}

/// Without the temporary name, which says nothing to anybody, where the kind says it all.
fn nameless(error: io::Error) -> io::Error {
    match error.kind() {
        kind @ (ErrorKind::NotFound
        | ErrorKind::PermissionDenied
        | ErrorKind::ReadOnlyFilesystem
        | ErrorKind::StorageFull
        | ErrorKind::QuotaExceeded) => kind.into(),
        _ => error,
    }
}

/// Makes the rename durable. The file is complete and in place already, so a file system that cannot do this is not
/// an error.
fn sync_directory(target: &Path) {
    if cfg!(unix)
        && let Some(directory) = target.parent()
        && let Ok(directory) = File::open(directory)
    {
        let _best_effort = directory.sync_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn write(path: &Path, text: &str) -> NewFile {
        let mut file = NewFile::create(path, "test").unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn has_its_name_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let file = write(&path, "first");
        assert!(!path.exists());
        assert!(names(dir.path())[0].starts_with(".rwkv-test-"));
        file.commit().unwrap();
        drop(write(&path, "dropped"));
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), names(dir.path()).len()), ("first", 1));
        write(&path, "second").commit().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        NewFile::check(&path).unwrap();
        assert_eq!(names(dir.path()), ["a"]);
    }

    #[test]
    fn a_name_that_was_taken_meanwhile_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let (ours, late) = (write(&path, "ours"), write(&path, "late"));
        ours.commit_new().unwrap();
        assert_eq!(late.commit_new().unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "ours");
        assert_eq!(names(dir.path()), ["a"]);
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for (path, why) in
            [(dir.path().to_owned(), "is a directory"), (dir.path().join("no/"), "is a directory")]
        {
            let error = NewFile::create(&path, "test").unwrap_err().to_string();
            assert!(error.starts_with(why), "{}: {error}", path.display());
        }
        let error = NewFile::create(dir.path().join("no/a"), "test").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(names(dir.path()).is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_and_devices_are_left_alone() {
        use std::os::unix::fs::symlink;

        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("far")).unwrap();
        fs::write(at("far/file"), "old").unwrap();
        symlink("far/file", at("link")).unwrap();
        symlink("nowhere", at("broken")).unwrap();
        symlink("/dev/null", at("null")).unwrap();
        write(&at("link"), "new").commit().unwrap();
        assert_eq!(fs::read_to_string(at("far/file")).unwrap(), "new");
        assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
        assert_eq!(NewFile::create(at("broken"), "test").unwrap_err().kind(), ErrorKind::NotFound);
        for device in [at("null"), "/dev/null".into()] {
            let error = NewFile::create(&device, "test").unwrap_err().to_string();
            assert!(error.starts_with("is a device"), "{error}");
        }
        assert_eq!(names(dir.path()), ["broken", "far", "link", "null"]);
    }
}
