use xxhash_rust::xxh3::Xxh3;

use crate::pack::manifest::{Checksum, Group, Parts};

/// The hashes of a group and of its parts, whose bytes come piece by piece.
#[derive(Default)]
pub(crate) struct GroupHash {
    whole: Box<Xxh3>,
    part: Box<Xxh3>,
    /// Bytes of the group so far, where it has parts.
    len: u64,
}

impl GroupHash {
    pub fn update(&mut self, parts: Option<&mut Parts>, bytes: &[u8]) {
        self.whole.update(bytes);
        let Some(parts) = parts else { return };
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = parts.len - self.len % parts.len;
            let (now, later) =
                rest.split_at(usize::try_from(room).map_or(rest.len(), |room| room.min(rest.len())));
            self.part.update(now);
            self.len += now.len() as u64;
            if self.len.is_multiple_of(parts.len) {
                self.end_part(parts);
            }
            rest = later;
        }
    }

    fn end_part(&mut self, parts: &mut Parts) {
        parts.checksums[((self.len - 1) / parts.len) as usize] = Checksum(self.part.digest());
        self.part.reset();
    }

    /// Writes the checksums down, and begins anew.
    pub fn end_group(&mut self, group: &mut Group) {
        group.checksum = Checksum(self.whole.digest());
        if let Some(parts) = &mut group.parts
            && !self.len.is_multiple_of(parts.len)
        {
            self.end_part(parts);
        }
        self.whole.reset();
        self.len = 0;
    }
}

impl std::fmt::Debug for GroupHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.whole.digest())
    }
}
