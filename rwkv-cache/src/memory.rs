//! Page-aligned memory that the readers fill while others hold slices of other parts of it.
//!
//! The memory comes from an anonymous map: it is aligned to a page, to 2 MiB when it is that large, it
//! takes physical memory only as it is filled, and it goes back to the system when it is dropped.

use std::io;
use std::ops::Range;

use memmap2::{MmapMut, MmapRaw};

/// The size of a huge page of x86-64 and of most 64-bit Arm systems.
const HUGE_PAGE: usize = 2 << 20;

/// A fixed run of bytes at a fixed address.
#[derive(Debug)]
pub(crate) struct Memory {
    map: MmapRaw,
    start: usize,
    len: usize,
}

impl Memory {
    /// Reserves `len` bytes. No physical memory is taken yet.
    pub(crate) fn reserve(len: usize) -> io::Result<Self> {
        let slack = if len >= HUGE_PAGE { HUGE_PAGE } else { 0 };
        let total =
            len.max(1).checked_add(slack).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let map = MmapRaw::from(MmapMut::map_anon(total)?);
        let start = if slack == 0 { 0 } else { map.as_ptr().align_offset(HUGE_PAGE).min(slack) };
        // Huge pages spare the kernels that stream these bytes most of their TLB misses. Without them
        // everything still works, so a refusal is no error.
        #[cfg(target_os = "linux")]
        if slack != 0 {
            let _ = map.advise_range(memmap2::Advice::HugePage, start, len);
        }
        Ok(Memory { map, start, len })
    }

    /// The number of bytes reserved.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first `len` bytes.
    ///
    /// # Safety
    /// Nobody may hold a slice of [`Memory::bytes_mut`] of these bytes while the result lives.
    pub(crate) unsafe fn bytes(&self, len: usize) -> &[u8] {
        assert!(len <= self.len, "{len} bytes of a memory of {} bytes", self.len);
        // SAFETY: `start + len` lies within the map, which lives as long as `self`; every byte of an
        // anonymous map is initialised (zero until written); the caller excludes writers.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(self.start), len) }
    }

    /// The bytes of `range`, to be filled.
    ///
    /// # Safety
    /// Nobody may hold another slice of any of these bytes while the result lives.
    #[allow(clippy::mut_from_ref, reason = "the ring's states give each range to one reader at a time")]
    pub(crate) unsafe fn bytes_mut(&self, range: Range<usize>) -> &mut [u8] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "bytes {range:?} of a memory of {} bytes",
            self.len
        );
        // SAFETY: the range lies within the map, which is writable and lives as long as `self`; every
        // byte of an anonymous map is initialised; the caller excludes every other slice.
        unsafe {
            std::slice::from_raw_parts_mut(self.map.as_mut_ptr().add(self.start + range.start), range.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_aligned_and_holds_what_was_written() {
        for len in [0, 1, 4096, HUGE_PAGE - 1, HUGE_PAGE, HUGE_PAGE + 1, 3 * HUGE_PAGE + 17] {
            let memory = Memory::reserve(len).expect("memory");
            // SAFETY: this test holds one slice at a time.
            let bytes = unsafe { memory.bytes_mut(0..len) };
            let align = if len >= HUGE_PAGE { HUGE_PAGE } else { 4096 };
            assert_eq!(bytes.as_ptr().align_offset(align), 0, "{len} bytes");
            bytes.fill(7);
            // SAFETY: the mutable slice is not used any more.
            assert!(unsafe { memory.bytes(len) }.iter().all(|&b| b == 7), "{len} bytes");
        }
    }

    #[test]
    fn refuses_what_no_machine_has() {
        assert!(Memory::reserve(usize::MAX).is_err());
    }
}
