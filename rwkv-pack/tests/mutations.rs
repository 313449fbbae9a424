//! Random damage to files of each format: whatever it is, there is a result and no panic, and no memory is asked for
//! that the file does not justify.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use rwkv_pack::Checkpoint;
use support::entry::ENTRY_POINTS;
use support::pth::{members, state_dict, whole};
use support::{numbers, small_pack_bytes, small_safetensors, zip};

/// The largest request for memory so far, in bytes.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// More than any step on files of these sizes needs. The largest piece is a buffer of one MiB.
const JUSTIFIED: usize = 4 << 20;

struct Watched;

// SAFETY: all calls are passed on as they are to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the pointer comes from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: as above; the pointer comes from the system's allocator.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// A change to a file. Positions are fractions of its length.
#[derive(Debug, Clone)]
enum Damage {
    FlipBit(f64, u8),
    SetByte(f64, u8),
    SetWord(f64, u64, usize),
    Remove(f64, usize),
    Insert(f64, Vec<u8>),
    Copy(f64, f64, usize),
    Cut(f64),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = 0.0..1.0;
    // Numbers near the limits of their widths find more than random ones.
    let word = prop_oneof![
        any::<u64>(),
        (0..64u32).prop_map(|bit| 1 << bit),
        (0..64u32).prop_map(|bit| (1 << bit) - 1),
        (0..64u32).prop_map(|bit| !((1 << bit) - 1)),
    ];
    prop_oneof![
        4 => (at.clone(), 0..8u8).prop_map(|(at, bit)| Damage::FlipBit(at, bit)),
        4 => (at.clone(), any::<u8>()).prop_map(|(at, byte)| Damage::SetByte(at, byte)),
        3 => (at.clone(), word, 1..9usize).prop_map(|(at, word, width)| Damage::SetWord(at, word, width)),
        1 => (at.clone(), 1..64usize).prop_map(|(at, len)| Damage::Remove(at, len)),
        1 => (at.clone(), prop::collection::vec(any::<u8>(), 1..16)).prop_map(|(at, it)| Damage::Insert(at, it)),
        2 => (at.clone(), at.clone(), 1..200usize).prop_map(|(from, to, len)| Damage::Copy(from, to, len)),
        1 => at.prop_map(Damage::Cut),
    ]
}

impl Damage {
    /// Damages `bytes` in the range that the positions are fractions of.
    fn apply(&self, bytes: &mut Vec<u8>, reach: usize) {
        let place = |at: f64| ((at * reach as f64) as usize).min(bytes.len().saturating_sub(1));
        let clip = |at: usize, len: usize| at..(at + len).min(bytes.len());
        if bytes.is_empty() {
            return;
        }
        match self {
            Self::FlipBit(at, bit) => {
                let at = place(*at);
                bytes[at] ^= 1 << bit;
            }
            Self::SetByte(at, byte) => {
                let at = place(*at);
                bytes[at] = *byte;
            }
            Self::SetWord(at, word, width) => {
                let range = clip(place(*at), *width);
                let len = range.len();
                bytes[range].copy_from_slice(&word.to_le_bytes()[..len]);
            }
            Self::Remove(at, len) => drop(bytes.drain(clip(place(*at), *len))),
            Self::Insert(at, piece) => {
                let at = place(*at);
                bytes.splice(at..at, piece.iter().copied());
            }
            Self::Copy(from, to, len) => {
                let piece = bytes[clip(place(*from), *len)].to_vec();
                let range = clip(place(*to), piece.len());
                let len = range.len();
                bytes[range].copy_from_slice(&piece[..len]);
            }
            Self::Cut(at) => bytes.truncate(place(*at)),
        }
    }
}

/// A torch file without checksums, which would find most damage before the reader has to.
fn pth_without_checksums(protocol: u8) -> Vec<u8> {
    let mut transposed = whole("b", "FloatStorage", "1", &[2, 4]);
    transposed.strides = vec![1, 2];
    let tensors = [whole("a", "BFloat16Storage", "0", &[5, 3]), transposed];
    let mut members = members(state_dict(protocol, &tensors), &[("0", numbers(30)), ("1", numbers(32))]);
    for member in &mut members {
        member.crc = Some(0);
    }
    zip::zip(&members, protocol == 4)
}

/// Runs all entry points on the damaged file, and compares with the reference where it applies.
fn survive(mut bytes: Vec<u8>, damages: &[Damage], reach: usize) -> Result<(), TestCaseError> {
    for damage in damages {
        damage.apply(&mut bytes, reach);
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m");
    fs::write(&path, &bytes).unwrap();
    for (entry, enter) in ENTRY_POINTS {
        if let Err(error) = enter(&path) {
            let line = error.to_string();
            prop_assert!(line.chars().all(|c| !c.is_control()), "{entry}: {line:?}");
        }
    }
    prop_assert_eq!(support::names(directory.path()), ["m"]);
    let largest = LARGEST.load(Ordering::Relaxed);
    prop_assert!(largest <= JUSTIFIED, "{largest} bytes were asked for at once");
    if bytes.starts_with(b"PK") {
        return Ok(());
    }
    if let Ok(checkpoint) = Checkpoint::open(&path) {
        // What we take, the reference takes, and reads the same from it.
        let reference = safetensors::SafeTensors::deserialize(&bytes);
        let reference =
            reference.map_err(|error| TestCaseError::fail(format!("only we take it: {error}")))?;
        prop_assert_eq!(reference.len(), checkpoint.tensors().len());
        for tensor in checkpoint.iter() {
            let (info, bytes) = tensor.unwrap();
            let expected = reference.tensor(&info.name).unwrap();
            prop_assert_eq!(info.dtype.name(), format!("{}", expected.dtype()));
            prop_assert_eq!((info.shape.as_slice(), bytes.as_slice()), (expected.shape(), expected.data()));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn safetensors(damages in prop::collection::vec(damage(), 1..4)) {
        let file = small_safetensors();
        let reach = file.len();
        survive(file, &damages, reach)?;
    }

    #[test]
    fn pth(damages in prop::collection::vec(damage(), 1..4), protocol in 2..6u8) {
        let file = pth_without_checksums(protocol);
        let reach = file.len();
        survive(file, &damages, reach)?;
    }

    /// Three quarters of a small pack are padding; what stands in front is what can be wrong.
    #[test]
    fn pack(damages in prop::collection::vec(damage(), 1..4), head in any::<bool>()) {
        let file = PACK.with(Clone::clone);
        let reach = if head { 2600 } else { file.len() };
        survive(file, &damages, reach)?;
    }
}

thread_local! {
    /// Made once: a pack is synced to the disk.
    static PACK: Vec<u8> = small_pack_bytes();
}
