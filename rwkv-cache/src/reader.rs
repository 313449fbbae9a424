//! The threads that read, and how a group is split into reads.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::error::{CacheError, ErrorKind};
use crate::event::{EventKind, ReadOutcome};
use crate::group::{Extent, GroupId};
use crate::ring::{After, Job};
use crate::shared::Shared;

/// How groups are split: into equal reads of `chunk_bytes` or more, but less than twice as much, each of
/// which begins at a multiple of the alignment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    chunk_bytes: u64,
    alignment: u64,
}

impl Split {
    pub(crate) fn new(chunk_bytes: usize, alignment: usize) -> Self {
        let alignment = alignment.max(1) as u64;
        // More than any group has, and few enough to be rounded up.
        let chunk_bytes = (chunk_bytes as u64).min(1 << 48);
        Split { chunk_bytes: chunk_bytes.next_multiple_of(alignment), alignment }
    }

    /// Into how many reads a group of `len` bytes is split; at least one.
    pub(crate) fn chunks(self, len: u64) -> u32 {
        u32::try_from(len.div_ceil(self.piece(len)).max(1)).unwrap_or(u32::MAX)
    }

    /// Which bytes of the group are read by this chunk.
    pub(crate) fn chunk(self, len: u64, chunk: u32) -> Range<u64> {
        let piece = self.piece(len);
        let begin = (piece * u64::from(chunk)).min(len);
        begin..(begin + piece).min(len)
    }

    fn piece(self, len: u64) -> u64 {
        let parts = (len / self.chunk_bytes).clamp(1, u64::from(u32::MAX));
        len.div_ceil(parts).next_multiple_of(self.alignment).max(1)
    }
}

/// The life of a reader thread.
pub(crate) fn run(shared: &Arc<Shared>) {
    while let Some(job) = shared.next_job() {
        let result = guarded(shared, Some(job.group), || read(shared, job));
        match shared.chunk_done(job, result) {
            After::More | After::Failed | After::GivenUp => {}
            After::Complete => {
                let result = guarded(shared, Some(job.group), || inspect(shared, job));
                shared.finish(job, result);
            }
        }
    }
}

/// Turns a panic of the source, the verify hook or the observer into an error, so that nobody waits
/// forever for a reader that is gone.
pub(crate) fn guarded(
    shared: &Shared,
    group: Option<usize>,
    work: impl FnOnce() -> Result<(), CacheError>,
) -> Result<(), CacheError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        let detail = format!("a reader panicked: {said}");
        let error = CacheError::new(ErrorKind::Panicked, &shared.info.name, detail);
        Err(match group {
            Some(group) => error.in_group(&shared.groups[group].name),
            None => error,
        })
    })
}

fn read(shared: &Shared, job: Job) -> Result<(), CacheError> {
    let group = &shared.groups[job.group];
    let range = shared.split.chunk(group.extent.len, job.chunk);
    let extent = Extent { offset: group.extent.offset + range.start, len: range.end - range.start };
    if extent.len == 0 {
        return Ok(());
    }
    let id = GroupId::new(job.group);
    shared.tell_at(id, EventKind::ReadBegin(extent), job.place);
    // SAFETY: the ring has given this chunk of a loading place to this reader alone, `padded` goes past
    // its end only for the last chunk of the group, and nobody leases a place that is loading.
    let buf = unsafe { shared.memories[job.place].bytes_mut(padded(shared, job, range, extent)) };
    let result = shared.source.read_exact_at(extent.offset, buf);
    let outcome = if result.is_ok() { ReadOutcome::Complete } else { ReadOutcome::Failed };
    shared.tell_at(id, EventKind::ReadEnd(extent, outcome), job.place);
    shared.tallies[job.group].bytes(if result.is_ok() { extent.len } else { 0 });
    result.map_err(|error| CacheError::read(&shared.info.name, extent, error).in_group(&group.name))
}

/// The memory to fill: the chunk, and for the last one up to the next multiple of the alignment, where
/// the memory and the source go that far, since direct I/O reads no less.
fn padded(shared: &Shared, job: Job, range: Range<u64>, extent: Extent) -> Range<usize> {
    let alignment = shared.source.alignment().max(1) as u64;
    let padding = range.end.next_multiple_of(alignment) - range.end;
    let memory = shared.memories[job.place].len() as u64;
    let fits = range.end + padding <= memory
        && extent.offset + extent.len + padding <= shared.source.len()
        && extent.offset.is_multiple_of(alignment);
    let end = if fits { range.end + padding } else { range.end };
    // Both lie within the memory, whose length is a `usize`.
    range.start as usize..end as usize
}

/// Looks at a complete group before it is handed out.
fn inspect(shared: &Shared, job: Job) -> Result<(), CacheError> {
    let group = &shared.groups[job.group];
    let error = |kind, detail: String| {
        CacheError::new(kind, &shared.info.name, detail).in_group(&group.name).at(group.extent)
    };
    shared.source.check().map_err(|changed| error(ErrorKind::Changed, changed.to_string()))?;
    // SAFETY: all chunks are read, and the place stays loading until this reader says otherwise.
    let bytes = unsafe { shared.memories[job.place].bytes(group.extent.len as usize) };
    shared.verify_read(job.group, bytes).map_err(|refused| error(ErrorKind::Verify, refused))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_a_group_once() {
        for (chunk_bytes, alignment) in
            [(1, 1), (1, 4096), (10, 1), (100, 64), (1 << 20, 4096), (usize::MAX, 4096)]
        {
            let split = Split::new(chunk_bytes, alignment);
            for len in [0, 1, 9, 10, 11, 19, 20, 21, 4095, 4096, 4097, 1 << 20, (3 << 20) + 5] {
                if len / (chunk_bytes as u64) > 100_000 {
                    continue;
                }
                let chunks = split.chunks(len);
                let mut end = 0;
                for chunk in 0..chunks {
                    let range = split.chunk(len, chunk);
                    assert_eq!(range.start, end, "{len} bytes by {chunk_bytes}, chunk {chunk}");
                    assert!(range.start.is_multiple_of(alignment as u64), "{len} bytes by {chunk_bytes}");
                    assert!(range.start < range.end || len == 0, "{len} bytes by {chunk_bytes}");
                    end = range.end;
                }
                assert_eq!(end, len, "{len} bytes by {chunk_bytes}");
            }
        }
    }
}
