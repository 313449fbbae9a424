//! What a file is, by its content: the extension is never asked.

use std::path::Path;

use crate::error::{PackError, PackErrorKind, shown};
use crate::header::{Header, MAX_HEADER_LEN};
use crate::input::InputFile;
use crate::pack::MANIFEST_KEY;

/// The formats that this crate reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileFormat {
    /// A checkpoint in the safetensors format. Read it with [`Checkpoint`](crate::Checkpoint).
    Safetensors,
    /// A checkpoint saved by PyTorch 1.6 or later (`.pth`, `.pt`). Read it with [`Checkpoint`](crate::Checkpoint).
    Torch,
    /// A pack of this project. Read it with [`Pack`](crate::Pack).
    Pack,
}

impl FileFormat {
    /// Tells what the file at `path` is. Reads its head, and the header where that decides.
    ///
    /// # Errors
    ///
    /// A file that is none of the formats is an error that says what the file seems to be instead. A file that is
    /// recognised may still be damaged: only opening it checks that.
    pub fn detect(path: impl AsRef<Path>) -> Result<Self, PackError> {
        let input = InputFile::open(path.as_ref())?;
        match Container::sniff(&input)? {
            Container::Zip => Ok(Self::Torch),
            Container::Safetensors => {
                let header = Header::read(&input)?;
                let pack = header.metadata.contains_key(MANIFEST_KEY);
                Ok(if pack { Self::Pack } else { Self::Safetensors })
            }
        }
    }
}

/// What the first bytes say, before any parsing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Container {
    Safetensors,
    Zip,
}

/// Bytes looked at: enough for a tar header's magic and for a page's first lines.
const HEAD: usize = 512;

/// Foreign files by their first bytes, and what to say about them.
const MAGICS: [(&[u8], &str); 14] = [
    (b"GGUF", "is a GGUF file (llama.cpp), expected a .safetensors or .pth checkpoint or a pack"),
    (
        b"fmgg",
        "is an rwkv.cpp model (ggml), expected the .pth or .safetensors checkpoint that it was made from",
    ),
    (b"lmgg", "is a ggml model, expected a .safetensors or .pth checkpoint or a pack"),
    (b"tjgg", "is a ggjt model, expected a .safetensors or .pth checkpoint or a pack"),
    (
        b"version https://git-lfs",
        "is a Git LFS pointer, not the model itself: fetch the content with `git lfs pull`",
    ),
    (b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", OLD_TORCH),
    (b"PK\x05\x06", "is an empty zip archive, expected a model"),
    (b"\x1f\x8b", "is gzip-compressed, expected a model: decompress it first"),
    (b"\x28\xb5\x2f\xfd", "is zstd-compressed, expected a model: decompress it first"),
    (b"\xfd7zXZ\0", "is xz-compressed, expected a model: decompress it first"),
    (b"7z\xbc\xaf\x27\x1c", "is a 7z archive, expected a model: unpack it first"),
    (b"Rar!\x1a\x07", "is a RAR archive, expected a model: unpack it first"),
    (b"\x93NUMPY", "is a NumPy array, expected a model"),
    (b"\x89HDF\r\n\x1a\n", "is an HDF5 file, expected a .safetensors or .pth checkpoint or a pack"),
];

const OLD_TORCH: &str =
    "is a torch file in the format before 1.6 (not a zip): load it and save it again with a current torch";
const PREFAB: &str = "is a web-rwkv prefab (CBOR, as made by ai00): its weights are already quantised, use the checkpoint that it was made from";

impl Container {
    /// Looks at the head of the file. What is certainly no model is an error that names it.
    pub fn sniff(input: &InputFile) -> Result<Self, PackError> {
        let head = input.head(HEAD)?;
        let file_len = input.len();
        match Self::of(&head, file_len) {
            Ok(container) => Ok(container),
            Err(line) => Err(PackError::new(PackErrorKind::WrongFormat, line).in_file(input.path())),
        }
    }

    fn of(head: &[u8], file_len: u64) -> Result<Self, String> {
        if head.starts_with(b"PK\x03\x04") {
            return Ok(Self::Zip);
        }
        if let Some((_, line)) = MAGICS.iter().find(|(magic, _)| head.starts_with(magic)) {
            return Err((*line).to_owned());
        }
        // A safetensors file: eight bytes of header length, then JSON. Asked before the looser guesses below.
        if head.get(8) == Some(&b'{') && header_len(head).is_some_and(|len| len <= MAX_HEADER_LEN) {
            return Ok(Self::Safetensors);
        }
        if head.get(257..262) == Some(b"ustar") {
            return Err("is a tar archive, expected a model: unpack it first".into());
        }
        if is_cbor_map(head) {
            return Err(PREFAB.into());
        }
        if matches!(head, [0x80, 2..=5, ..]) {
            return Err("is a bare pickle, expected a zip as torch writes since 1.6: save the state dict again with torch.save".into());
        }
        if let Some(line) = as_text(head) {
            return Err(line);
        }
        match (head.get(8), header_len(head)) {
            (Some(byte), Some(len)) if len <= MAX_HEADER_LEN => Err(format!(
                "is no model of a known format: byte 8 is {byte:#04x}, a safetensors header begins with {{"
            )),
            (Some(_), Some(len)) => Err(format!(
                "is no model of a known format: as safetensors its header would have {len} bytes, at most {MAX_HEADER_LEN} are allowed"
            )),
            _ => Err(format!("has only {file_len} bytes, too few for any model: download it again")),
        }
    }
}

fn header_len(head: &[u8]) -> Option<u64> {
    head.first_chunk().map(|&bytes| u64::from_le_bytes(bytes))
}

/// A CBOR map whose first key is a short word, as the prefabs of web-rwkv begin.
fn is_cbor_map(head: &[u8]) -> bool {
    let [0xa1..=0xb7 | 0xbf, key @ 0x61..=0x77, rest @ ..] = head else { return false };
    let key = rest.get(..usize::from(key & 0x1f));
    key.is_some_and(|key| key.iter().all(|byte| byte.is_ascii_lowercase() || *byte == b'_'))
}

/// Names a text file, in which a failed download often ends.
fn as_text(head: &[u8]) -> Option<String> {
    // The head may end inside a character.
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&head[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    let text = text.trim_start_matches('\u{feff}').trim_start();
    if text.is_empty() || text.chars().any(|c| c.is_control() && !c.is_whitespace()) {
        return None;
    }
    let start = text.get(..9).unwrap_or(text).to_ascii_lowercase();
    if start.starts_with("<!doctype") || start.starts_with("<html") || start.starts_with("<?xml") {
        return Some("is a web page (HTML), not a model: the download link needs a login or is wrong".into());
    }
    let line: String = text.lines().next().unwrap_or_default().chars().take(40).collect();
    Some(format!("is a text file that begins with \"{}\", expected a model", shown(&line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_name_the_file() {
        let cases: [(&[u8], &str); 12] = [
            (b"GGUF\x03\0\0\0\0\0\0\0", "GGUF"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS"),
            (b"\xef\xbb\xbf \n<!DOCTYPE html><html>", "web page"),
            (b"<html lang=\"en\">", "web page"),
            (b"Entry not found", "text file that begins with \"Entry not found\""),
            (b"{\"error\":\"Invalid credentials\"}", "text file"),
            (b"\xa4dinfo\xa7gversion", "web-rwkv prefab"),
            (b"\xbfdinfo\xbf", "web-rwkv prefab"),
            (b"\x80\x02}q\x00.", "bare pickle"),
            (b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", "before 1.6"),
            (b"\x01\x02\x03", "only 3 bytes"),
            (b"\xff\xff\xff\xff\xff\xff\xff\x7f\xff", "header would have"),
        ];
        for (head, expected) in cases {
            let line = Container::of(head, head.len() as u64).expect_err(expected);
            assert!(line.contains(expected), "{expected}: {line}");
        }
    }

    #[test]
    fn models_are_told_apart_even_where_they_begin_like_something_else() {
        assert_eq!(Container::of(b"PK\x03\x04rest", 100), Ok(Container::Zip));
        // A header of 0x0280 bytes begins like a pickle.
        assert_eq!(Container::of(b"\x80\x02\0\0\0\0\0\0{\"a\":", 1000), Ok(Container::Safetensors));
        assert_eq!(Container::of(b"\xa4d\0\0\0\0\0\0{\"a\":", 1000), Ok(Container::Safetensors));
    }
}
