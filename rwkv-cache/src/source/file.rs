//! What the file sources share: positioned reads, advice to the system, and noticing a changed file.

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;
use std::time::SystemTime;

/// The smallest page of the systems this runs on, in bytes.
pub(crate) const PAGE: usize = 4096;

/// What a file was when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    len: u64,
    modified: Option<SystemTime>,
}

impl Identity {
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        refuse_unless_file(&metadata)?;
        Ok(Identity { len: metadata.len(), modified: metadata.modified().ok() })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Refuses a file that was written to or cut since this was taken. A file that was replaced by
    /// renaming another over it stays open and unchanged, and is not refused.
    pub(crate) fn check(&self, file: &File) -> io::Result<()> {
        let now = Identity::of(file)?;
        if now.len != self.len {
            let what = format!("the file has {} bytes, it had {} when it was opened", now.len, self.len);
            return Err(io::Error::other(what));
        }
        if now.modified != self.modified {
            return Err(io::Error::other("the file was written to after it was opened"));
        }
        Ok(())
    }
}

fn refuse_unless_file(metadata: &Metadata) -> io::Result<()> {
    match metadata.is_file() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// Opens a file to be read.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // Asked before, because opening a named pipe waits for its writer.
    refuse_unless_file(&std::fs::metadata(path)?)?;
    File::open(path)
}

/// One positioned read.
pub(crate) fn read_at(file: &File, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::read_at(file, buf, offset);
    #[cfg(windows)]
    return std::os::windows::fs::FileExt::seek_read(file, buf, offset);
}

/// Opens a file for direct reads.
pub(crate) fn open_direct(path: &Path) -> io::Result<File> {
    refuse_unless_file(&std::fs::metadata(path)?)?;
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt;
        File::options().read(true).custom_flags(libc::O_DIRECT).open(path)
    }
    #[cfg(target_os = "macos")]
    {
        use std::os::fd::AsRawFd;
        let file = File::open(path)?;
        // SAFETY: the descriptor is open for the whole call, and the call touches no memory of ours.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_NOCACHE, 1) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(file),
        }
    }
    #[cfg(not(any(target_os = "linux", target_os = "macos")))]
    {
        let what = format!("no direct reads on this system, for {}", path.display());
        Err(io::Error::new(io::ErrorKind::Unsupported, what))
    }
}

/// The alignment in bytes that the kernel says direct reads of this file need; 0 when it says that there
/// are none, `None` when it says nothing.
pub(crate) fn direct_alignment(file: &File) -> Option<usize> {
    #[cfg(target_os = "linux")]
    {
        use std::mem::MaybeUninit;
        use std::os::fd::AsRawFd;
        let mut facts = MaybeUninit::<libc::statx>::zeroed();
        // SAFETY: the descriptor is open for the whole call, the path is a terminated string, and
        // `facts` is a whole `statx` to write to.
        let result = unsafe {
            libc::statx(
                file.as_raw_fd(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH,
                libc::STATX_DIOALIGN,
                facts.as_mut_ptr(),
            )
        };
        // SAFETY: `statx` is made of integers, and all of them were zeroed.
        let facts = unsafe { facts.assume_init() };
        if result != 0 || facts.stx_mask & libc::STATX_DIOALIGN == 0 {
            return None;
        }
        let alignment = match facts.stx_dio_offset_align {
            0 => 0,
            offset => offset.max(facts.stx_dio_mem_align),
        };
        usize::try_from(alignment).ok()
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = file;
        None
    }
}

/// Tells the system not to read ahead of what is asked for.
pub(crate) fn expect_random(file: &File) {
    #[cfg(target_os = "linux")]
    advise(file, 0, 0, libc::POSIX_FADV_RANDOM);
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

/// Tells the system that these bytes will not be read from its page cache again.
pub(crate) fn forget(file: &File, offset: u64, len: usize) {
    // A length of 0 would mean the rest of the file.
    #[cfg(target_os = "linux")]
    if len != 0 {
        advise(file, offset, len, libc::POSIX_FADV_DONTNEED);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, offset, len);
}

#[cfg(target_os = "linux")]
fn advise(file: &File, offset: u64, len: usize, advice: libc::c_int) {
    use std::os::fd::AsRawFd;
    let (Ok(offset), Ok(len)) = (offset.try_into(), len.try_into()) else { return };
    // SAFETY: the descriptor is open for the whole call, and the call touches no memory of ours. It is
    // advice: a file system that does not take it loses nothing.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, len, advice) };
}
