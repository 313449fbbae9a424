//! What the disk can do: plain reads of the same file in the same mode.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use memmap2::MmapMut;
use rwkv_model::cache::Source;
use rwkv_model::cache::source::{Io, SourceInfo, open};

/// Threads that read, as many as the cache has.
const READERS: usize = 4;
/// Bytes of a read.
const READ_BYTES: usize = 1 << 20;
/// Where the memory begins: at a huge page.
const ALIGNMENT: usize = 2 << 20;

/// A file to measure the disk with.
pub struct Disk {
    source: Arc<dyn Source>,
    /// Memory of each reader.
    rooms: Vec<MmapMut>,
    room_bytes: usize,
    /// The next read, by its place in the file.
    next: AtomicU64,
}

impl Disk {
    /// Opens a file. Reads go in turn to so much memory in all as the ring has: in less, the processor's cache would
    /// help.
    ///
    /// # Errors
    /// The file cannot be read in that mode, is empty, or memory cannot be had.
    pub fn open(path: &Path, io: Io, ring_bytes: u64) -> Result<Disk> {
        let source = open(path, io)?;
        anyhow::ensure!(!source.is_empty(), "{}: is empty; there is nothing to read", path.display());
        let each = usize::try_from(ring_bytes)? / READERS;
        let room_bytes = (each / READ_BYTES).max(1) * READ_BYTES;
        let rooms = (0..READERS).map(|_| room(room_bytes)).collect::<io::Result<_>>()?;
        Ok(Disk { source, rooms, room_bytes, next: AtomicU64::new(0) })
    }

    /// How the file is read, and why so.
    pub fn info(&self) -> SourceInfo {
        self.source.describe()
    }

    /// The memory that is read into.
    pub fn room_bytes(&self) -> u64 {
        (READERS * self.room_bytes) as u64
    }

    /// Bytes per second, over so long a time. It goes on in the file where the last measurement ended.
    ///
    /// # Errors
    /// A read fails.
    pub fn measure(&mut self, time: Duration) -> io::Result<f64> {
        let Disk { source, rooms, room_bytes, next } = self;
        let (len, room_bytes) = (source.len(), *room_bytes);
        let reads = len.div_ceil(READ_BYTES as u64);
        let bytes = AtomicU64::new(0);
        let begin = Instant::now();
        let read = |room: &mut MmapMut| -> io::Result<()> {
            let start = room.as_ptr().align_offset(ALIGNMENT);
            let room = &mut room[start..][..room_bytes];
            for place in (0..room_bytes).step_by(READ_BYTES).cycle() {
                if begin.elapsed() >= time {
                    break;
                }
                let offset = next.fetch_add(1, Ordering::Relaxed) % reads * READ_BYTES as u64;
                let len = (len - offset).min(READ_BYTES as u64) as usize;
                source.read_exact_at(offset, &mut room[place..][..len])?;
                bytes.fetch_add(len as u64, Ordering::Relaxed);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = rooms.iter_mut().map(|room| scope.spawn(|| read(room))).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().map_err(|_| io::Error::other("a reader panicked"))?)
        })?;
        Ok(bytes.into_inner() as f64 / begin.elapsed().as_secs_f64())
    }
}

/// Memory like that of a ring: in huge pages, and filled, so that no reader waits for pages.
fn room(len: usize) -> io::Result<MmapMut> {
    let mut room = MmapMut::map_anon(len + ALIGNMENT)?;
    #[cfg(target_os = "linux")]
    let _ = room.advise(memmap2::Advice::HugePage);
    let start = room.as_ptr().align_offset(ALIGNMENT);
    room[start..][..len].fill(1);
    Ok(room)
}
