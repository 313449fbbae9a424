//! A source that fails on purpose, to test what is built on a cache.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{Source, SourceInfo};

/// When a fault strikes. Reads are the calls of [`Source::read_at`], of which a completed short read
/// takes several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At every read.
    Always,
    /// At the read of this number, counted from 0 since the source was made.
    Read(u64),
    /// At each read that wants the byte at this offset. As on a real disk, the bytes before it are
    /// read; the fault strikes at the byte itself.
    Byte(u64),
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The read takes this much longer.
    Delay(Duration),
    /// The read returns no more than this many bytes, at least one.
    Short(usize),
    /// The read is interrupted, as by a signal (EINTR).
    Interrupted,
    /// The read fails with this error number of the system.
    Os(i32),
    /// The bytes are not those of the file: the first one is inverted.
    WrongBytes,
    /// The read returns nothing, as at the end of a file.
    End,
    /// The read panics.
    Panic,
}

/// The error number of an input/output error on Unix.
pub const EIO: i32 = 5;

/// A source that reads through another and fails as it was told to. Faults are injected and removed
/// while it is in use. It has no map, so every byte passes through it.
#[derive(Debug)]
pub struct FaultSource<S> {
    inner: S,
    script: Mutex<Script>,
}

#[derive(Debug, Default)]
struct Script {
    faults: Vec<(When, Fault, u64)>,
    reads: u64,
    struck: u64,
}

impl<S: Source> FaultSource<S> {
    /// A source without faults.
    pub fn new(inner: S) -> Self {
        FaultSource { inner, script: Mutex::default() }
    }

    /// Lets `fault` strike whenever `when` applies, until [`FaultSource::recover`].
    pub fn inject(&self, when: When, fault: Fault) {
        self.inject_times(when, fault, u64::MAX);
    }

    /// Lets `fault` strike the next `times` times that `when` applies.
    pub fn inject_times(&self, when: When, fault: Fault, times: u64) {
        self.script().faults.push((when, fault, times));
    }

    /// Removes every fault.
    pub fn recover(&self) {
        self.script().faults.clear();
    }

    /// How many times the source was read.
    pub fn reads(&self) -> u64 {
        self.script().reads
    }

    /// How many faults have struck.
    pub fn struck(&self) -> u64 {
        self.script().struck
    }

    /// A panic that was asked for happens outside of the lock, so there is no half-changed script.
    fn script(&self) -> std::sync::MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Script {
    /// What happens to the read of `len` bytes at `offset`, and how many bytes of it are read at all.
    fn next(&mut self, offset: u64, len: usize) -> (Option<Fault>, usize) {
        let read = self.reads;
        self.reads += 1;
        let mut rest = len;
        for (when, fault, times) in self.faults.iter_mut().filter(|(.., times)| *times != 0) {
            let strikes = match *when {
                When::Always => true,
                When::Read(number) => number == read,
                When::Byte(byte) if byte > offset && byte - offset < len as u64 => {
                    rest = rest.min((byte - offset) as usize);
                    false
                }
                When::Byte(byte) => byte == offset,
            };
            if strikes {
                *times -= 1;
                self.struck += 1;
                return (Some(*fault), len);
            }
        }
        (None, rest)
    }
}

impl<S: Source> Source for FaultSource<S> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let (fault, len) = self.script().next(offset, buf.len());
        let buf = &mut buf[..len];
        match fault {
            None => self.inner.read_at(offset, buf),
            Some(Fault::Delay(delay)) => {
                std::thread::sleep(delay);
                self.inner.read_at(offset, buf)
            }
            Some(Fault::Short(len)) => {
                let len = len.max(1).min(buf.len());
                self.inner.read_at(offset, &mut buf[..len])
            }
            Some(Fault::Interrupted) => Err(io::ErrorKind::Interrupted.into()),
            Some(Fault::Os(number)) => Err(io::Error::from_raw_os_error(number)),
            Some(Fault::WrongBytes) => {
                let count = self.inner.read_at(offset, buf)?;
                buf[..count].iter_mut().take(1).for_each(|byte| *byte = !*byte);
                Ok(count)
            }
            Some(Fault::End) => Ok(0),
            Some(Fault::Panic) => panic!("the read of {len} bytes at {offset:#x} was told to panic"),
        }
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }

    fn check(&self) -> io::Result<()> {
        self.inner.check()
    }

    fn describe(&self) -> SourceInfo {
        self.inner.describe()
    }
}
