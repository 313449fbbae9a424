//! The machine's own limits, measured: what a kernel's speed is a share of.

use std::hint::black_box;
use std::time::Instant;

use crate::isa::{Isa, Kind};
use crate::scalar;
use crate::team::Team;
#[cfg(target_arch = "x86_64")]
use crate::x86;

/// Bytes of one item of a memory probe: about as much as a task of a step reads.
const MEMORY_ITEM: usize = 256 << 10;
/// Rounds of one item of an arithmetic probe: some tens of microseconds.
const ARITHMETIC_ROUNDS: usize = 20_000;
/// Items of an arithmetic probe per thread: threads take them as they come.
const ARITHMETIC_ITEMS: usize = 16;

/// Bytes per second at which the team reads `buffer` in order, the best of `passes`.
///
/// This is the memory's bandwidth if `buffer` is several times larger than the last-level cache and was written before.
///
/// # Panics
/// `buffer` is empty or `passes` is zero.
pub fn memory_bandwidth(isa: Isa, team: &mut Team, buffer: &[u8], passes: usize) -> f64 {
    assert!(!buffer.is_empty() && passes > 0, "{passes} passes over {} bytes", buffer.len());
    let mut items: Vec<(&[u8], u64)> = buffer.chunks(MEMORY_ITEM).map(|part| (part, 0)).collect();
    let seconds = best_of(passes, || {
        team.for_each(&mut items, |(part, sum)| *sum = read(isa, part));
        black_box(&items);
    });
    buffer.len() as f64 / seconds
}

/// Integer multiply-adds per second of the dot products that the `u8` kernels use, sums in registers and operands there or in the
/// nearest cache.
pub fn int8_peak(isa: Isa, team: &mut Team) -> f64 {
    arithmetic_peak(team, |rounds| match isa.kind() {
        Kind::Scalar => scalar::probe::int8(rounds),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this kind exists only where its features were detected.
        Kind::Avx2 => unsafe { x86::probe::avx2::int8(rounds) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Kind::Avx512 => unsafe { x86::probe::avx512::int8(rounds) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Kind::Avx512Vnni => unsafe { x86::probe::avx512_vnni::int8(rounds) },
    })
}

/// f32 multiply-adds per second, operands in registers.
pub fn f32_peak(isa: Isa, team: &mut Team) -> f64 {
    arithmetic_peak(team, |rounds| match isa.kind() {
        Kind::Scalar => scalar::probe::f32(rounds),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this kind exists only where its features were detected.
        Kind::Avx2 => unsafe { x86::probe::avx2::f32(rounds) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Kind::Avx512 | Kind::Avx512Vnni => unsafe { x86::probe::avx512::f32(rounds) },
    })
}

fn arithmetic_peak(team: &mut Team, work: impl Fn(usize) -> usize + Sync) -> f64 {
    let mut items = vec![0usize; ARITHMETIC_ITEMS * team.threads()];
    let seconds = best_of(8, || team.for_each(&mut items, |macs| *macs = work(ARITHMETIC_ROUNDS)));
    items.iter().sum::<usize>() as f64 / seconds
}

fn read(isa: Isa, bytes: &[u8]) -> u64 {
    match isa.kind() {
        Kind::Scalar => scalar::probe::read(bytes),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this kind exists only where its features were detected.
        Kind::Avx2 => unsafe { x86::probe::avx2::read(bytes) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Kind::Avx512 | Kind::Avx512Vnni => unsafe { x86::probe::avx512::read(bytes) },
    }
}

/// Seconds of the fastest of `runs`.
fn best_of(runs: usize, mut work: impl FnMut()) -> f64 {
    (0..runs)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_isa_has_limits() {
        let mut team = Team::new(2);
        let buffer = vec![1u8; (1 << 20) + 13];
        for &isa in Isa::available() {
            for limit in [
                memory_bandwidth(isa, &mut team, &buffer, 2),
                int8_peak(isa, &mut team),
                f32_peak(isa, &mut team),
            ] {
                assert!(limit.is_finite() && limit > 1e6, "{isa}: {limit} per second");
            }
        }
    }
}
