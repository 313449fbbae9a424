//! How fast a file streams through the cache, next to plain reads of the same file in the same mode.
//!
//! `cargo run --release -p rwkv-cache --example throughput -- FILE [direct|buffered] [GROUP_MIB] [READERS] [CHUNK_KIB]`
//!
//! Direct reads need a file whose pages are on the disk already; the page cache plays no part in them.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use rwkv_cache::source::{Io, open};
use rwkv_cache::{Cache, CacheOptions, Extent, Group, GroupId, RingShape, Source, plan_with};

const MIB: u64 = 1 << 20;

/// An odd number; the kinds of reading take turns, because other programs use the disk too.
const ROUNDS: usize = 9;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("a file to read is missing")?;
    let io: Io = args.next().as_deref().unwrap_or("auto").parse()?;
    let mut number = |default: u64| args.next().map_or(Ok(default), |text| text.parse::<u64>());
    let group_bytes = number(16)? * MIB;
    let readers = number(4)? as usize;
    let chunk_bytes = number(1024)? as usize * 1024;

    let source = open(&path, io)?;
    let info = source.describe();
    println!("{} bytes of {}, {} ({})", source.len(), info.name, info.mode, info.reason);
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let room = RingShape::default().slots as u64 * group_bytes;
        let single = plain(&*source, 1, 4 * MIB, room)?;
        let several = plain(&*source, readers, MIB, room)?;
        let cached = through_the_cache(&source, group_bytes, readers, chunk_bytes)?;
        println!(
            "round {round}: plain {single:.2} GB/s, plain in {readers} threads {several:.2} GB/s, \
             through the cache {cached:.2} GB/s"
        );
        rounds.push((cached / single, cached / several));
    }
    let median = |mut shares: Vec<f64>| {
        shares.sort_by(f64::total_cmp);
        100.0 * shares[ROUNDS / 2]
    };
    println!(
        "median: {:.0} % of plain reads, {:.0} % of plain reads in {readers} threads",
        median(rounds.iter().map(|round| round.0).collect()),
        median(rounds.iter().map(|round| round.1).collect())
    );
    Ok(())
}

/// Gigabytes per second of sequential reads of `step` bytes, taken in turn by so many threads, into
/// `room` bytes of memory all together: what fits into the processor's cache is read faster.
fn plain(source: &dyn Source, threads: usize, step: u64, room: u64) -> Result<f64, Box<dyn Error>> {
    let room_bytes = (room / threads as u64).next_multiple_of(step) as usize;
    let begin = Instant::now();
    let steps = source.len() / step;
    let next = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        let read = || {
            let mut room = huge_pages(room_bytes)?;
            let aligned = room.as_ptr().align_offset(2 << 20);
            let mut place = 0;
            loop {
                let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if index >= steps {
                    return Ok(());
                }
                source.read_exact_at(index * step, &mut room[aligned + place..][..step as usize])?;
                place = (place + step as usize) % room_bytes;
            }
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic")) as std::io::Result<()>
    })?;
    Ok((steps * step) as f64 / begin.elapsed().as_secs_f64() / 1e9)
}

/// Memory like that of a ring slot, because the size of the pages matters to direct reads.
fn huge_pages(len: usize) -> std::io::Result<memmap2::MmapMut> {
    let room = memmap2::MmapMut::map_anon(len + (2 << 20))?;
    #[cfg(target_os = "linux")]
    room.advise(memmap2::Advice::HugePage)?;
    Ok(room)
}

/// Gigabytes per second of one sweep with nothing pinned, after a short one that warms up.
fn through_the_cache(
    source: &Arc<dyn Source>,
    group_bytes: u64,
    readers: usize,
    chunk_bytes: usize,
) -> Result<f64, Box<dyn Error>> {
    let groups: Vec<Group> = (0..source.len() / group_bytes)
        .map(|index| {
            Group::swept(format!("group.{index}"), Extent { offset: index * group_bytes, len: group_bytes })
        })
        .collect();
    let shape = RingShape::default();
    let plan = plan_with(&groups, shape.slots as u64 * group_bytes, shape)?;
    let options = CacheOptions::default().readers(readers).chunk_bytes(chunk_bytes);
    let count = groups.len();
    let cache = Cache::new(Arc::clone(source), groups, plan, options)?;
    for index in 0..count.min(3) {
        cache.lease(GroupId::new(index))?;
    }
    cache.expect(&[]);
    let begin = Instant::now();
    for index in 0..count {
        cache.lease(GroupId::new(index))?;
    }
    // What was read ahead before the start is about what is read ahead of the next sweep at the end.
    Ok((count as u64 * group_bytes) as f64 / begin.elapsed().as_secs_f64() / 1e9)
}
