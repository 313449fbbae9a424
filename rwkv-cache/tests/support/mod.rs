//! What the tests share.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::io;
use std::sync::{Condvar, Mutex, mpsc};
use std::time::Duration;

use rwkv_cache::source::SourceInfo;
use rwkv_cache::{Extent, Group, GroupId, Source};

/// Runs a test that could hang, and fails it instead of hanging.
pub fn within_a_minute<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, finished) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let result = test();
        let _ = done.send(());
        result
    });
    match finished.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("hangs"),
        _ => match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        },
    }
}

/// Bytes of which no two neighbourhoods are alike.
pub fn bytes(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Swept groups of these lengths, one after another, each at the next multiple of `align`.
pub fn groups(lens: &[u64], align: u64) -> Vec<Group> {
    let mut offset = 0u64;
    let group = |(index, &len): (usize, &u64)| {
        let begin = offset.next_multiple_of(align);
        offset = begin + len;
        Group::swept(format!("group.{index}"), Extent { offset: begin, len })
    };
    lens.iter().enumerate().map(group).collect()
}

/// The ids of so many groups.
pub fn ids(count: usize) -> impl Iterator<Item = GroupId> {
    (0..count).map(GroupId::new)
}

/// The part of a file that a group is.
pub fn part<'a>(file: &'a [u8], group: &Group) -> &'a [u8] {
    &file[group.extent.offset as usize..][..group.extent.len as usize]
}

/// Bytes that are read only while the gate is open, and a count of who stands before it.
pub struct Gated {
    bytes: Vec<u8>,
    gate: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Default)]
struct Gate {
    /// How many more reads may pass.
    passes: u64,
    waiting: u64,
    passed: u64,
}

impl Gated {
    pub fn new(bytes: Vec<u8>) -> Self {
        Gated { bytes, gate: Mutex::default(), changed: Condvar::new() }
    }

    /// Lets so many reads more through.
    pub fn pass(&self, reads: u64) {
        let mut gate = self.gate.lock().unwrap();
        gate.passes = gate.passes.saturating_add(reads);
        self.changed.notify_all();
    }

    /// Waits until so many reads stand before the gate.
    pub fn wait_for_waiting(&self, reads: u64) {
        let gate = self.gate.lock().unwrap();
        drop(self.changed.wait_while(gate, |gate| gate.waiting < reads).unwrap());
    }

    /// How many reads went through.
    pub fn passed(&self) -> u64 {
        self.gate.lock().unwrap().passed
    }
}

impl Source for Gated {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut gate = self.gate.lock().unwrap();
        gate.waiting += 1;
        self.changed.notify_all();
        let mut gate = self.changed.wait_while(gate, |gate| gate.passes == 0).unwrap();
        gate.waiting -= 1;
        gate.passes -= 1;
        gate.passed += 1;
        self.changed.notify_all();
        self.bytes.read_at(offset, buf)
    }

    fn describe(&self) -> SourceInfo {
        self.bytes.describe()
    }
}
