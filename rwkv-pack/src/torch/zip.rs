//! The zip archive around a torch file: where its members are.
//!
//! torch stores its members uncompressed, so that a member is an extent of the file. This reads the central directory,
//! with the 64-bit fields that archives over 4 GiB have, and holds every local header against it. Nothing is ever
//! unpacked, and member names never become paths.
//!
//! Format: PKWARE APPNOTE.TXT, sections 4.3 and 4.5.3.

use std::collections::BTreeMap;

use crate::error::{PackError, PackErrorKind};
use crate::input::InputFile;

/// The members of an archive by their names.
#[derive(Debug)]
pub(crate) struct Archive {
    members: BTreeMap<String, Member>,
}

/// A member of an archive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    /// Where its bytes begin in the file.
    pub offset: u64,
    /// How many bytes it has in the file.
    pub len: u64,
    /// The CRC-32 of the content, as recorded.
    pub crc: u32,
    header_offset: u64,
    method: u16,
    encrypted: bool,
}

const END: &[u8] = b"PK\x05\x06";
const END_LEN: usize = 22;
const END64_LOCATOR: &[u8] = b"PK\x06\x07";
const END64_LOCATOR_LEN: u64 = 20;
const END64: &[u8] = b"PK\x06\x06";
const END64_LEN: u64 = 56;
const ENTRY: &[u8] = b"PK\x01\x02";
const ENTRY_LEN: usize = 46;
const LOCAL: &[u8] = b"PK\x03\x04";
const LOCAL_LEN: u64 = 30;
/// The longest comment that may follow the end record.
const LONGEST_COMMENT: usize = 0xffff;
/// The longest central directory that is read. That of a large model has some 200 KiB.
const LONGEST_DIRECTORY: u64 = 64 << 20;

/// Where the central directory is.
struct Directory {
    offset: u64,
    len: u64,
    entries: u64,
}

impl Archive {
    /// Reads the directory of the archive. Reads no member.
    pub fn read(input: &InputFile) -> Result<Self, PackError> {
        let (directory, end) = find_directory(input)?;
        let fits = directory.offset.checked_add(directory.len).is_some_and(|it| it <= end);
        if !fits || directory.len > LONGEST_DIRECTORY {
            let line = format!(
                "its zip directory would have {} bytes at {:#x}, expected at most {LONGEST_DIRECTORY} before {end:#x}",
                directory.len, directory.offset
            );
            return Err(PackError::malformed(line));
        }
        let mut bytes = Vec::new();
        input.read_extent(directory.offset, directory.len, &mut bytes)?;
        let mut members = BTreeMap::new();
        let mut rest = Fields::new(&bytes, directory.offset);
        while !rest.is_empty() {
            let (name, member) = read_entry(&mut rest)?;
            let member =
                locate(input, &name, member, directory.offset).map_err(|error| error.in_member(&name))?;
            if members.insert(name.clone(), member).is_some() {
                return Err(PackError::malformed("occurs twice in the archive").in_member(&name));
            }
        }
        if members.len() as u64 != directory.entries {
            let line = format!(
                "its zip directory lists {} members, {} were promised",
                members.len(),
                directory.entries
            );
            return Err(PackError::malformed(line));
        }
        refuse_overlaps(&members)?;
        Ok(Self { members })
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// The member of that name, which must be stored as it is.
    pub fn get(&self, name: &str) -> Result<Option<Member>, PackError> {
        let Some(member) = self.members.get(name) else { return Ok(None) };
        let refuse = |line: String| Err(PackError::new(PackErrorKind::Unsupported, line).in_member(name));
        if member.encrypted {
            return refuse("is encrypted, torch stores its members as they are".into());
        }
        if member.method != 0 {
            let line = format!(
                "is compressed (method {}), torch stores its members as they are: save the state dict again",
                member.method
            );
            return refuse(line);
        }
        Ok(Some(*member))
    }
}

/// Finds the central directory, and where it must have ended.
fn find_directory(input: &InputFile) -> Result<(Directory, u64), PackError> {
    let file_len = input.len();
    let tail_len = file_len.min((END_LEN + LONGEST_COMMENT) as u64);
    let tail_offset = file_len - tail_len;
    let mut tail = Vec::new();
    input.read_extent(tail_offset, tail_len, &mut tail)?;
    // The record's comment must end the file: what looks like a record inside a comment does not.
    let is_end = |at: &usize| {
        tail[*at..].starts_with(END)
            && tail.get(at + 20..at + 22).is_some_and(|len| {
                at + END_LEN + usize::from(u16::from_le_bytes([len[0], len[1]])) == tail.len()
            })
    };
    let Some(at) = (0..=tail.len().saturating_sub(END_LEN)).rev().find(is_end) else {
        let line = "has no zip end record, the file is cut off: download it again";
        return Err(PackError::new(PackErrorKind::Truncated, line).at(file_len));
    };
    let end_offset = tail_offset + at as u64;
    let mut end = Fields::new(&tail[at..], end_offset);
    end.skip(4)?;
    let disks = (end.u16()?, end.u16()?);
    let (here, entries) = (end.u16()?, end.u16()?);
    let (len, offset) = (end.u32()?, end.u32()?);
    if let Some(found) = find_directory64(input, end_offset)? {
        return Ok(found);
    }
    if disks != (0, 0) || here != entries {
        return Err(
            PackError::new(PackErrorKind::Unsupported, "is one part of a split zip archive").at(end_offset)
        );
    }
    Ok((Directory { offset: offset.into(), len: len.into(), entries: entries.into() }, end_offset))
}

/// Looks for the 64-bit end record, to which a locator before the end record points.
fn find_directory64(input: &InputFile, end_offset: u64) -> Result<Option<(Directory, u64)>, PackError> {
    let Some(locator_offset) = end_offset.checked_sub(END64_LOCATOR_LEN) else { return Ok(None) };
    let mut bytes = Vec::new();
    input.read_extent(locator_offset, END64_LOCATOR_LEN, &mut bytes)?;
    if !bytes.starts_with(END64_LOCATOR) {
        return Ok(None);
    }
    let mut locator = Fields::new(&bytes, locator_offset);
    locator.skip(8)?;
    let offset = locator.u64()?;
    if offset.checked_add(END64_LEN).is_none_or(|end| end > locator_offset) {
        let line =
            format!("its zip64 end record would be at {offset:#x}, expected before {locator_offset:#x}");
        return Err(PackError::malformed(line).at(locator_offset));
    }
    let mut bytes = Vec::new();
    input.read_extent(offset, END64_LEN, &mut bytes)?;
    if !bytes.starts_with(END64) {
        return Err(PackError::malformed("has no zip64 end record where the locator says").at(offset));
    }
    let mut end = Fields::new(&bytes, offset);
    end.skip(32)?;
    let (entries, len, directory) = (end.u64()?, end.u64()?, end.u64()?);
    Ok(Some((Directory { offset: directory, len, entries }, offset)))
}

/// Reads one entry of the central directory. `offset` of the member is not known yet.
fn read_entry(rest: &mut Fields<'_>) -> Result<(String, Member), PackError> {
    let start = rest.offset;
    if !rest.bytes.starts_with(ENTRY) || rest.bytes.len() < ENTRY_LEN {
        return Err(PackError::malformed("its zip directory has no entry here").at(start));
    }
    rest.skip(8)?;
    let (flags, method) = (rest.u16()?, rest.u16()?);
    rest.skip(4)?;
    let crc = rest.u32()?;
    let (stored_len, len) = (rest.u32()?, rest.u32()?);
    let (name_len, extra_len, comment_len) = (rest.u16()?, rest.u16()?, rest.u16()?);
    rest.skip(8)?;
    let header_offset = rest.u32()?;
    let name = rest.take(name_len.into())?;
    let mut extra = Fields::new(rest.take(extra_len.into())?, rest.offset - u64::from(extra_len));
    rest.skip(comment_len.into())?;
    let name = std::str::from_utf8(name)
        .map_err(|error| PackError::malformed("a member's name is not UTF-8").at(start).caused_by(error))?;
    // No name is ever used as a path here; such a one is still no work of torch's.
    let stray = name.is_empty()
        || name.starts_with('/')
        || name.contains(['\\', '\0'])
        || name.split('/').any(|part| part == "..");
    if stray {
        let line = "has a name that leads out of the archive, the file may be malicious";
        return Err(PackError::new(PackErrorKind::Refused, line).in_member(name).at(start));
    }
    let mut wide = [u64::from(len), stored_len.into(), header_offset.into()];
    widen(&mut wide, &mut extra).map_err(|error| error.in_member(name))?;
    let [len, stored_len, header_offset] = wide;
    if method == 0 && stored_len != len {
        let line = format!("is stored as it is, yet takes {stored_len} bytes for {len}");
        return Err(PackError::malformed(line).in_member(name).at(start));
    }
    let encrypted = flags & 1 != 0;
    Ok((name.to_owned(), Member { offset: 0, len: stored_len, crc, header_offset, method, encrypted }))
}

/// Replaces the fields that are too small for their values by the 64-bit ones of the entry's extra data.
fn widen(fields: &mut [u64; 3], extra: &mut Fields<'_>) -> Result<(), PackError> {
    const TOO_SMALL: u64 = 0xffff_ffff;
    const ZIP64: u16 = 1;
    // Less than a header of an extra field can only be padding.
    while extra.bytes.len() >= 4 {
        let (id, len) = (extra.u16()?, extra.u16()?);
        let mut field = Fields::new(extra.take(len.into())?, extra.offset - u64::from(len));
        if id == ZIP64 {
            for value in fields.iter_mut().filter(|value| **value == TOO_SMALL) {
                *value = field.u64()?;
            }
            return Ok(());
        }
    }
    Ok(())
}

/// Finds the bytes of a member behind its local header, whose length only that header knows.
fn locate(input: &InputFile, name: &str, member: Member, directory: u64) -> Result<Member, PackError> {
    let at = member.header_offset;
    let name_end = at.checked_add(LOCAL_LEN + name.len() as u64).filter(|&end| end <= directory);
    if name_end.is_none() {
        let line =
            format!("its local header would be at {at:#x}, expected before the directory at {directory:#x}");
        return Err(PackError::malformed(line));
    }
    let mut bytes = Vec::new();
    input.read_extent(at, LOCAL_LEN + name.len() as u64, &mut bytes)?;
    let mut header = Fields::new(&bytes, at);
    if !bytes.starts_with(LOCAL) {
        return Err(PackError::malformed("has no local header where the directory says").at(at));
    }
    header.skip(26)?;
    let (name_len, extra_len) = (header.u16()?, header.u16()?);
    if usize::from(name_len) != name.len() || header.take(name.len())? != name.as_bytes() {
        return Err(PackError::malformed("has another name in its local header").at(at));
    }
    // Neither sum can overflow: the name's end lies in the file.
    let offset = at + LOCAL_LEN + u64::from(name_len) + u64::from(extra_len);
    if offset.checked_add(member.len).is_none_or(|end| end > directory) {
        let line = format!("{} bytes at {offset:#x} run into the directory at {directory:#x}", member.len);
        return Err(PackError::malformed(line));
    }
    Ok(Member { offset, ..member })
}

/// Refuses members that share bytes: such an archive is small and reads as a huge one.
fn refuse_overlaps(members: &BTreeMap<String, Member>) -> Result<(), PackError> {
    let mut order: Vec<_> = members.iter().collect();
    order.sort_by_key(|(_, member)| member.header_offset);
    let mut free = 0;
    for (name, member) in order {
        if member.header_offset < free {
            let line =
                format!("begins at {:#x}, the member before it ends at {free:#x}", member.header_offset);
            return Err(PackError::malformed(line).in_member(name));
        }
        free = member.offset + member.len;
    }
    Ok(())
}

/// Little-endian fields that are taken one after the other.
struct Fields<'a> {
    bytes: &'a [u8],
    /// Where `bytes` begin in the file.
    offset: u64,
}

impl<'a> Fields<'a> {
    fn new(bytes: &'a [u8], offset: u64) -> Self {
        Self { bytes, offset }
    }

    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], PackError> {
        let Some((taken, rest)) = self.bytes.split_at_checked(len) else {
            let line =
                format!("its zip directory is cut off: {len} bytes expected, {} left", self.bytes.len());
            return Err(PackError::malformed(line).at(self.offset));
        };
        self.bytes = rest;
        self.offset += len as u64;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PackError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn skip(&mut self, len: usize) -> Result<(), PackError> {
        self.take(len).map(drop)
    }

    fn u16(&mut self) -> Result<u16, PackError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, PackError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, PackError> {
        self.array().map(u64::from_le_bytes)
    }
}
