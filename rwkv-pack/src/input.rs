//! A regular file that is read by position.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{PackError, PackErrorKind};

/// An open file, its length at opening time, and its path for error messages.
///
/// Reads are positioned, so that a shared reference serves any number of threads.
#[derive(Debug)]
pub(crate) struct InputFile {
    path: PathBuf,
    file: File,
    len: u64,
    #[cfg(not(any(unix, windows)))]
    cursor: std::sync::Mutex<()>,
}

impl InputFile {
    /// Opens `path`, which must be a regular file with at least one byte.
    pub fn open(path: &Path) -> Result<Self, PackError> {
        Self::open_regular(path).map_err(|error| error.in_file(path))
    }

    fn open_regular(path: &Path) -> Result<Self, PackError> {
        // Asked before opening, because opening a named pipe waits for its writer.
        let found = std::fs::metadata(path).map_err(|error| PackError::io("cannot be opened", error))?;
        let wrong = |what: &str| Err(PackError::new(PackErrorKind::WrongFormat, what));
        if found.is_dir() {
            return wrong("is a directory, expected a model file");
        }
        if !found.is_file() {
            return wrong("is a device, pipe or socket, expected a regular file");
        }
        let file = File::open(path).map_err(|error| PackError::io("cannot be opened", error))?;
        let len = file.metadata().map_err(|error| PackError::io("its length cannot be read", error))?.len();
        if len == 0 {
            return wrong("is an empty file, expected a model: download or convert it again");
        }
        Ok(Self {
            path: path.to_path_buf(),
            file,
            len,
            #[cfg(not(any(unix, windows)))]
            cursor: std::sync::Mutex::new(()),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Length in bytes when the file was opened.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Fills `buf` from `offset` on. The error names the file and the offset.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), PackError> {
        self.read_positioned(buf, offset).map_err(|error| {
            let wanted = format!("{} bytes", buf.len());
            let error = if error.kind() == io::ErrorKind::UnexpectedEof {
                let line = format!("{wanted} could not be read, the file ends before them");
                PackError::new(PackErrorKind::Truncated, line)
            } else {
                PackError::io(format!("{wanted} could not be read"), error)
            };
            error.at(offset).in_file(&self.path)
        })
    }

    #[cfg(unix)]
    fn read_positioned(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, buf, offset)
    }

    #[cfg(windows)]
    fn read_positioned(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match std::os::windows::fs::FileExt::seek_read(&self.file, buf, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    buf = &mut buf[read..];
                    offset += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    #[cfg(not(any(unix, windows)))]
    fn read_positioned(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        use std::io::{Read, Seek};
        let _cursor = self.cursor.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        (&self.file).seek(io::SeekFrom::Start(offset))?;
        (&self.file).read_exact(buf)
    }

    /// Up to `most` bytes from the head of the file.
    pub fn head(&self, most: usize) -> Result<Vec<u8>, PackError> {
        let len = usize::try_from(self.len).map_or(most, |len| len.min(most));
        let mut head = vec![0; len];
        self.read_exact_at(&mut head, 0)?;
        Ok(head)
    }

    /// Reads `len` bytes from `offset` on, replacing what `buf` held.
    ///
    /// An extent that does not lie in the file is refused before anything is allocated.
    pub fn read_extent(&self, offset: u64, len: u64, buf: &mut Vec<u8>) -> Result<(), PackError> {
        let end = offset.checked_add(len).filter(|&end| end <= self.len);
        let (Some(_), Ok(len)) = (end, usize::try_from(len)) else {
            let line = format!("{len} bytes were promised here, the file has {} bytes in all", self.len);
            return Err(PackError::new(PackErrorKind::Truncated, line).at(offset).in_file(&self.path));
        };
        buf.clear();
        // A sparse file can promise more than there is memory: an error, not an abort.
        buf.try_reserve_exact(len).map_err(|error| {
            let line = format!("{len} bytes do not fit into memory");
            PackError::new(PackErrorKind::Io, line).caused_by(error).at(offset).in_file(&self.path)
        })?;
        buf.resize(len, 0);
        self.read_exact_at(buf, offset)
    }

    /// Passes the bytes of an extent to `chunk`, at most one MiB at a time, in order.
    pub fn stream(&self, offset: u64, len: u64, mut chunk: impl FnMut(&[u8])) -> Result<(), PackError> {
        const CHUNK: u64 = 1 << 20;
        let mut buf = vec![0; len.min(CHUNK) as usize];
        let mut done = 0;
        while done < len {
            let part = &mut buf[..(len - done).min(CHUNK) as usize];
            self.read_exact_at(part, offset + done)?;
            chunk(part);
            done += part.len() as u64;
        }
        Ok(())
    }
}
