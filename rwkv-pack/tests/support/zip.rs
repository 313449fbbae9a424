//! Writes zip archives as torch does, and wrong ones.

/// A member of an archive.
#[derive(Clone)]
pub struct Member {
    pub name: String,
    pub bytes: Vec<u8>,
    pub method: u16,
    pub flags: u16,
    /// `None`: the right one.
    pub crc: Option<u32>,
    /// The name in the local header, where it is another one.
    pub local_name: Option<String>,
}

pub fn member(name: &str, bytes: Vec<u8>) -> Member {
    Member { name: name.into(), bytes, method: 0, flags: 0, crc: None, local_name: None }
}

/// An archive. With `zip64`, all lengths and offsets are in the 64-bit fields.
pub fn zip(members: &[Member], zip64: bool) -> Vec<u8> {
    let mut file = Vec::new();
    let mut directory = Vec::new();
    for member in members {
        let crc = member.crc.unwrap_or_else(|| crc32fast::hash(&member.bytes));
        let header_offset = file.len() as u64;
        let local_name = member.local_name.as_ref().unwrap_or(&member.name);
        // torch pads the extra field so that data begins at a multiple of 64.
        let unpadded = file.len() + 30 + local_name.len() + 4;
        let padding = unpadded.next_multiple_of(64) - unpadded;
        file.extend_from_slice(b"PK\x03\x04\0\0");
        common(&mut file, member, crc, zip64);
        file.extend_from_slice(&(local_name.len() as u16).to_le_bytes());
        file.extend_from_slice(&(padding as u16 + 4).to_le_bytes());
        file.extend_from_slice(local_name.as_bytes());
        file.extend_from_slice(b"FB");
        file.extend_from_slice(&(padding as u16).to_le_bytes());
        file.resize(file.len() + padding, b'Z');
        file.extend_from_slice(&member.bytes);
        let wide = directory_entry(member, crc, header_offset, zip64);
        directory.extend_from_slice(&wide);
    }
    finish(&mut file, &directory, members.len() as u64, zip64);
    file
}

/// An entry of the central directory.
pub fn directory_entry(member: &Member, crc: u32, header_offset: u64, zip64: bool) -> Vec<u8> {
    entry_of_len(member, crc, header_offset, member.bytes.len() as u64, zip64)
}

/// The same for a member whose bytes are not at hand.
pub fn entry_of_len(member: &Member, crc: u32, header_offset: u64, len: u64, zip64: bool) -> Vec<u8> {
    let mut extra = Vec::new();
    if zip64 {
        // Another field comes first, to be skipped.
        extra.extend_from_slice(b"XX\x03\0abc");
        extra.extend_from_slice(&[1, 0, 24, 0]);
        for value in [len, len, header_offset] {
            extra.extend_from_slice(&value.to_le_bytes());
        }
    }
    let mut entry = b"PK\x01\x02\0\0\0\0".to_vec();
    common(&mut entry, member, crc, zip64);
    entry.extend_from_slice(&(member.name.len() as u16).to_le_bytes());
    entry.extend_from_slice(&(extra.len() as u16).to_le_bytes());
    entry.extend_from_slice(&[0; 10]);
    let offset = if zip64 { u32::MAX } else { header_offset as u32 };
    entry.extend_from_slice(&offset.to_le_bytes());
    entry.extend_from_slice(member.name.as_bytes());
    entry.extend_from_slice(&extra);
    entry
}

/// Flags, method, time, date, CRC and both lengths.
fn common(out: &mut Vec<u8>, member: &Member, crc: u32, zip64: bool) {
    out.extend_from_slice(&member.flags.to_le_bytes());
    out.extend_from_slice(&member.method.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&crc.to_le_bytes());
    let len = if zip64 { u32::MAX } else { member.bytes.len() as u32 };
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
}

/// Appends the directory and the end records.
pub fn finish(file: &mut Vec<u8>, directory: &[u8], count: u64, zip64: bool) {
    let offset = file.len() as u64;
    file.extend_from_slice(directory);
    end_records(file, offset, directory.len() as u64, count, zip64);
}

/// Appends the end records for a directory at `offset`; `out` ends where the directory does.
pub fn end_records(out: &mut Vec<u8>, offset: u64, len: u64, count: u64, zip64: bool) {
    if zip64 {
        out.extend_from_slice(b"PK\x06\x06");
        out.extend_from_slice(&44u64.to_le_bytes());
        out.extend_from_slice(&[0; 12]);
        for value in [count, count, len, offset] {
            out.extend_from_slice(&value.to_le_bytes());
        }
        out.extend_from_slice(b"PK\x06\x07\0\0\0\0");
        out.extend_from_slice(&(offset + len).to_le_bytes());
        out.extend_from_slice(&1u32.to_le_bytes());
    }
    out.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    let short = if zip64 { u16::MAX } else { count as u16 };
    out.extend_from_slice(&short.to_le_bytes());
    out.extend_from_slice(&short.to_le_bytes());
    let (len, offset) = if zip64 { (u32::MAX, u32::MAX) } else { (len as u32, offset as u32) };
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&offset.to_le_bytes());
    out.extend_from_slice(&[0; 2]);
}
