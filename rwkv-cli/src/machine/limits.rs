//! What the machine can do: the bandwidth of its memory and the peaks of its arithmetic.

use std::time::Instant;
use std::{fs, io};

use memmap2::MmapMut;
use rwkv_model::available_memory;
use rwkv_model::kernels::{Activations, Codec, Isa, Panels, RowTiles, TILE_ROWS, Team, matmul, probe};

/// The buffer that the bandwidth is measured with has at least so many bytes, where memory allows it.
const BUFFER_BYTES: u64 = 512 << 20;
/// Assumed where the system does not say how much memory is available.
const ASSUMED_AVAILABLE: u64 = 2 << 30;
/// Passes over the buffer for one measurement.
const PASSES: usize = 2;
/// What the buffer is filled with: as floats of 16 or 32 bits, and as codes and their scales, numbers of ordinary size.
const FILLING: u8 = 0x38;
/// Bytes of weights that a task of a product goes over, about.
const TASK_BYTES: usize = 128 << 10;

/// What the limits are measured with.
pub struct Limits {
    buffer: MmapMut,
    isa: Isa,
    team: Team,
}

impl Limits {
    /// Prepares measurements with one thread: fills the buffer, which is memory of the kind that weights are held in.
    ///
    /// # Errors
    /// The memory cannot be had.
    pub fn new() -> io::Result<Limits> {
        let available = available_memory().unwrap_or(ASSUMED_AVAILABLE);
        let bytes = (2 * last_level_cache()).max(BUFFER_BYTES).min(available / 4).max(1 << 20);
        let bytes = usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let mut buffer = MmapMut::map_anon(bytes)?;
        // As the cache asks for its memory: in small pages the limit would look lower than it is.
        #[cfg(target_os = "linux")]
        let _ = buffer.advise(memmap2::Advice::HugePage);
        buffer.fill(FILLING);
        Ok(Limits { buffer, isa: Isa::detect(), team: Team::new(1) })
    }

    /// From now on measures with these threads.
    pub fn use_threads(&mut self, isa: Isa, threads: usize) {
        (self.isa, self.team) = (isa, Team::new(threads));
    }

    /// Bytes of the buffer.
    pub fn buffer_bytes(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// Bytes per second at which memory is read.
    pub fn probe_memory(&mut self) -> f64 {
        probe::memory_bandwidth(self.isa, &mut self.team, &self.buffer, PASSES)
    }

    /// Bytes per second at which one row of activations is multiplied with a matrix of this codec, which is too large for
    /// the processor's cache.
    pub fn probe_codec(&mut self, codec: Codec, width: usize) -> f64 {
        let (isa, team) = (self.isa, &mut self.team);
        let Ok(tile_bytes) = RowTiles::byte_len(codec, TILE_ROWS, width) else { return 0.0 };
        let tiles = (self.buffer.len() / tile_bytes).max(1);
        let bytes = &self.buffer[..(tiles * tile_bytes).min(self.buffer.len())];
        let Ok(matrix) = RowTiles::new(codec, tiles * TILE_ROWS, width, bytes) else { return 0.0 };
        let mut row = Panels::zeroed(1, width, width);
        row.write_row(0, &vec![0.5; width]);
        let mut input = Activations::new();
        input.prepare(isa, &row, codec.forms());
        let task_tiles = (TASK_BYTES / tile_bytes).max(1);
        let mut tasks: Vec<(RowTiles<'_>, Vec<f32>)> = (0..tiles)
            .step_by(task_tiles)
            .map(|first| matrix.tile_range(first..(first + task_tiles).min(tiles)))
            .map(|matrix| (matrix, vec![0.0; matrix.rows()]))
            .collect();
        let mut seconds = f64::INFINITY;
        for _ in 0..PASSES {
            let begin = Instant::now();
            team.for_each(&mut tasks, |(matrix, output)| matmul(isa, *matrix, &input, output));
            seconds = seconds.min(begin.elapsed().as_secs_f64());
        }
        bytes.len() as f64 / seconds
    }

    /// Multiply-adds per second of 8-bit integers, at most.
    pub fn probe_int8(&mut self) -> f64 {
        probe::int8_peak(self.isa, &mut self.team)
    }

    /// Multiply-adds per second of f32, at most.
    pub fn probe_f32(&mut self) -> f64 {
        probe::f32_peak(self.isa, &mut self.team)
    }
}

/// Bytes of the largest cache, 0 where the system does not say.
pub fn last_level_cache() -> u64 {
    let Ok(entries) = fs::read_dir("/sys/devices/system/cpu/cpu0/cache") else { return 0 };
    let size = |entry: fs::DirEntry| size(&fs::read_to_string(entry.path().join("size")).ok()?);
    entries.flatten().filter_map(size).max().unwrap_or(0)
}

/// Reads a number with a unit of 1024 bytes, or of powers of that: `512K`, `480M`.
fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_as_the_system_writes_them() {
        for (text, expected) in [
            ("48K\n", Some(48 << 10)),
            ("480M", Some(480 << 20)),
            ("123", Some(123)),
            ("1G", Some(1 << 30)),
            ("23942700K", Some(23_942_700 << 10)),
            ("", None),
            ("K", None),
            ("12KM", None),
            ("99999999999999999999G", None),
            ("18446744073709551615K", None),
        ] {
            assert_eq!(size(text), expected, "{text:?}");
        }
    }
}
