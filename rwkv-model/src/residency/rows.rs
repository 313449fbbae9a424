use std::error::Error;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rwkv_cache::{Cache, GroupId, VerifyReads};
use rwkv_pack::Pack;

/// A group that is read row by row.
///
/// The first read of a row reads the whole parts of the group that it lies in, and checks them; later ones read the row alone.
/// A group without parts, as packs had them before there were any, is read without a check.
pub(super) struct Rows {
    pack: Arc<Pack>,
    group: usize,
    /// Bytes of a part.
    part_len: usize,
    /// By part. None where there are no parts.
    checked: Vec<AtomicBool>,
    reads: VerifyReads,
}

impl Rows {
    pub fn new(pack: Arc<Pack>, group: GroupId, reads: VerifyReads) -> Rows {
        let group = group.index();
        let parts = pack.manifest().groups[group].parts.as_ref();
        let (part_len, count) = parts.map_or((0, 0), |parts| (parts.len as usize, parts.checksums.len()));
        let checked = (0..count).map(|_| AtomicBool::new(false)).collect();
        Rows { pack, group, part_len, checked, reads }
    }

    /// Reads a row, which is some bytes of the group, and says where in the buffer it is.
    pub fn read(
        &self,
        cache: &Cache,
        row: Range<usize>,
        buffer: &mut Vec<u8>,
    ) -> Result<Range<usize>, Box<dyn Error + Send + Sync>> {
        let group = &self.pack.manifest().groups[self.group];
        let parts = self.to_check(&row);
        let span = match parts.is_empty() {
            true => row.clone(),
            false => parts.start * self.part_len..(parts.end * self.part_len).min(group.len as usize),
        };
        buffer.resize(span.len(), 0);
        cache.read_at(group.offset + span.start as u64, buffer)?;
        for (part, bytes) in parts.zip(buffer.chunks(self.part_len.max(1))) {
            self.pack.check_part(self.group, part, bytes)?;
            self.checked[part].store(true, Ordering::Relaxed);
        }
        Ok(row.start - span.start..row.end - span.start)
    }

    /// The parts that a row lies in, if they have to be checked.
    fn to_check(&self, row: &Range<usize>) -> Range<usize> {
        if self.checked.is_empty() {
            return 0..0;
        }
        let parts = row.start / self.part_len..row.end.div_ceil(self.part_len);
        let known = self.checked[parts.clone()].iter().all(|checked| checked.load(Ordering::Relaxed));
        if known && self.reads == VerifyReads::First { 0..0 } else { parts }
    }
}
