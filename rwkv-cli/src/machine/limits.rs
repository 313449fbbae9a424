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

/// The best that was seen of each limit.
pub struct Limits {
    buffer: MmapMut,
    probes: Option<(Isa, Team)>,
    /// Bytes per second.
    pub memory: f64,
    /// Multiply-adds per second.
    pub int8: f64,
    /// Multiply-adds per second.
    pub f32: f64,
}

impl Limits {
    /// Prepares the measurements: fills the buffer, which is memory of the kind that weights are held in.
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
        Ok(Limits { buffer, probes: None, memory: 0.0, int8: 0.0, f32: 0.0 })
    }

    /// Begins anew with other threads.
    pub fn use_threads(&mut self, isa: Isa, threads: usize) {
        self.probes = Some((isa, Team::new(threads)));
        (self.memory, self.int8, self.f32) = (0.0, 0.0, 0.0);
    }

    /// Bytes of the buffer.
    pub fn buffer_bytes(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// Measures the bandwidth once more.
    pub fn probe_memory(&mut self) {
        if let Some((isa, team)) = &mut self.probes {
            self.memory = self.memory.max(probe::memory_bandwidth(*isa, team, &self.buffer, PASSES));
        }
    }

    /// Bytes per second at which one row of activations is multiplied with a matrix of this codec, which is too large for
    /// the processor's cache.
    pub fn probe_codec(&mut self, codec: Codec, width: usize) -> f64 {
        let Some((isa, team)) = &mut self.probes else { return 0.0 };
        let isa = *isa;
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

    /// Measures the peaks once more.
    pub fn probe_arithmetic(&mut self) {
        if let Some((isa, team)) = &mut self.probes {
            self.int8 = self.int8.max(probe::int8_peak(*isa, team));
            self.f32 = self.f32.max(probe::f32_peak(*isa, team));
        }
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
