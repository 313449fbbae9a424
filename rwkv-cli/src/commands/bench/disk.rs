//! What the disk can do: plain reads of the same file in the same mode.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use memmap2::MmapMut;
use rwkv_model::cache::Source;
use rwkv_model::cache::source::{Io, open};

/// Threads that read, as many as the cache has.
const READERS: usize = 4;
/// Bytes of a read.
const READ_BYTES: usize = 1 << 20;
/// Where the memory begins: at a huge page.
const ALIGNMENT: usize = 2 << 20;
/// How long a measurement takes.
const TIME: Duration = Duration::from_secs(1);

/// A file to measure the disk with.
pub struct Disk {
    source: Arc<dyn Source>,
    /// Memory of each reader.
    room_bytes: usize,
}

impl Disk {
    /// Opens a file. Reads go in turn to so much memory in all as the ring has: in less, the processor's cache would
    /// help.
    ///
    /// # Errors
    /// The file cannot be read in that mode.
    pub fn open(path: &Path, io: Io, ring_bytes: u64) -> Result<Disk> {
        let each = usize::try_from(ring_bytes)? / READERS;
        Ok(Disk { source: open(path, io)?, room_bytes: (each / READ_BYTES).max(1) * READ_BYTES })
    }

    /// Bytes per second.
    ///
    /// # Errors
    /// A read fails.
    pub fn measure(&self) -> io::Result<f64> {
        let reads = (self.source.len() / READ_BYTES as u64).max(1);
        let mut rooms = (0..READERS).map(|_| room(self.room_bytes)).collect::<io::Result<Vec<_>>>()?;
        let (next, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let begin = Instant::now();
        let read = |room: &mut MmapMut| -> io::Result<()> {
            let start = room.as_ptr().align_offset(ALIGNMENT);
            let room = &mut room[start..][..self.room_bytes];
            for place in (0..self.room_bytes).step_by(READ_BYTES).cycle() {
                if begin.elapsed() >= TIME {
                    break;
                }
                let offset = next.fetch_add(1, Ordering::Relaxed) % reads * READ_BYTES as u64;
                let len = (self.source.len() - offset).min(READ_BYTES as u64) as usize;
                self.source.read_exact_at(offset, &mut room[place..][..len])?;
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
