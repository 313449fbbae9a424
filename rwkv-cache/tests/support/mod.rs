//! What the tests share.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::sync::mpsc;
use std::time::Duration;

use rwkv_cache::{Extent, Group, GroupId};

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
