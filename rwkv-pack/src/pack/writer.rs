//! Writes a pack: beside its name first, and under it when all is well.

use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::{PackError, PackErrorKind, shown};
use crate::new_file::NewFile;
use crate::pack::PAGE;
use crate::pack::hash::GroupHash;
use crate::pack::layout::Layout;
use crate::pack::manifest::Manifest;
use crate::pack::spec::PackSpec;

/// Writes a pack from front to back.
///
/// The pack is a [`NewFile`]: [`finish`](Self::finish) gives it its name when it is whole. A writer that is dropped before, or fails,
/// leaves the target as it was. (A process that is killed leaves a file named `.rwkv-pack-*.tmp` behind, which nothing ever reads.)
#[derive(Debug)]
pub struct Writer {
    target: PathBuf,
    body: Body<BufWriter<NewFile>>,
}

impl Writer {
    /// Starts a pack that will be called `path`.
    ///
    /// # Errors
    ///
    /// When `spec` cannot be a pack, `path` is there and no regular file, or the temporary file cannot be made.
    pub fn create(path: impl AsRef<Path>, spec: PackSpec) -> Result<Self, PackError> {
        let path = path.as_ref();
        Self::start(path, spec).map_err(|error| error.in_file(path))
    }

    fn start(path: &Path, spec: PackSpec) -> Result<Self, PackError> {
        let layout = Layout::of(spec)?;
        let file = NewFile::create(path, "pack").map_err(|error| match error.kind() {
            // It is there, and no file.
            io::ErrorKind::InvalidInput => PackError::new(PackErrorKind::Io, error.to_string()),
            _ => cannot_write(error),
        })?;
        let target = file.target().to_owned();
        let body = Body::start(BufWriter::with_capacity(1 << 20, file), layout)?;
        Ok(Self { target, body })
    }

    /// What will be in the pack. The checksums are zero until the pack is finished.
    pub fn manifest(&self) -> &Manifest {
        &self.body.layout.manifest
    }

    /// Length in bytes that the file will have.
    pub fn file_len(&self) -> u64 {
        self.body.layout.file_len()
    }

    /// Appends `bytes` to the tensor `name`.
    ///
    /// Tensors come in the order of the spec; one tensor may come in several consecutive pieces.
    ///
    /// # Errors
    ///
    /// When it is another tensor's turn, when there are more bytes than the spec says (nothing is written then), or
    /// when writing fails, after which this writer cannot go on.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), PackError> {
        self.body.write(name, bytes).map_err(|error| error.in_file(&self.target))
    }

    /// Completes the pack: checksums into the header, everything to the disk, the temporary name to the target's name.
    ///
    /// # Errors
    ///
    /// When a tensor is not complete, or the operating system fails. The target is then as it was before.
    pub fn finish(self) -> Result<Manifest, PackError> {
        self.publish(true)
    }

    /// The same, if nothing has the target's name.
    ///
    /// # Errors
    ///
    /// Those of [`finish`](Self::finish); and something has the name by now.
    pub fn finish_new(self) -> Result<Manifest, PackError> {
        self.publish(false)
    }

    fn publish(self, replace: bool) -> Result<Manifest, PackError> {
        let Self { target, body } = self;
        Self::name(body, replace).map_err(|error| error.in_file(&target))
    }

    fn name(body: Body<BufWriter<NewFile>>, replace: bool) -> Result<Manifest, PackError> {
        let (sink, manifest) = body.finish()?;
        let file =
            sink.into_inner().map_err(|error| PackError::io("cannot be written", error.into_error()))?;
        let named = if replace { file.commit() } else { file.commit_new() };
        named.map_err(|error| PackError::io("the finished file cannot be given its name", error))?;
        Ok(manifest)
    }
}

/// The bytes of a pack on their way into any sink.
#[derive(Debug)]
struct Body<W> {
    sink: W,
    layout: Layout,
    /// The piece that is being written.
    piece: usize,
    /// Its bytes so far.
    written: u64,
    hash: GroupHash,
    failed: bool,
}

impl<W: Write + Seek> Body<W> {
    fn start(mut sink: W, layout: Layout) -> Result<Self, PackError> {
        let header = layout.header()?;
        sink.write_all(&header).map_err(cannot_write)?;
        Ok(Self { sink, layout, piece: 0, written: 0, hash: GroupHash::default(), failed: false })
    }

    fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), PackError> {
        if self.failed {
            return Err(PackError::spec("cannot go on after a write that failed").in_tensor(name));
        }
        let Some(piece) = self.layout.pieces.get(self.piece) else {
            return Err(PackError::spec("comes after the last tensor of the pack").in_tensor(name));
        };
        if piece.name != name {
            let line = format!(
                "is out of turn, expected {} ({} of {} bytes so far)",
                shown(&piece.name),
                self.written,
                piece.len
            );
            return Err(PackError::spec(line).in_tensor(name));
        }
        if bytes.len() as u64 > piece.len - self.written {
            let line = format!("{} bytes after {}, expected {} in all", bytes.len(), self.written, piece.len);
            return Err(PackError::spec(line).in_tensor(name));
        }
        self.append(bytes).map_err(|error| error.in_tensor(name))?;
        self.pad().map_err(|error| error.in_tensor(name))
    }

    /// Writes bytes of the current piece and steps on when it is full.
    fn append(&mut self, bytes: &[u8]) -> Result<(), PackError> {
        if let Err(error) = self.sink.write_all(bytes) {
            self.failed = true;
            return Err(cannot_write(error));
        }
        let piece = &self.layout.pieces[self.piece];
        self.hash.update(self.layout.manifest.groups[piece.group].parts.as_mut(), bytes);
        self.written += bytes.len() as u64;
        if self.written == piece.len {
            let group = piece.group;
            self.piece += 1;
            self.written = 0;
            if self.layout.pieces.get(self.piece).is_none_or(|next| next.group != group) {
                self.hash.end_group(&mut self.layout.manifest.groups[group]);
            }
        }
        Ok(())
    }

    /// Writes the padding that is due.
    fn pad(&mut self) -> Result<(), PackError> {
        const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
        while let Some(piece) = self.layout.pieces.get(self.piece)
            && piece.is_pad
        {
            let len = piece.len as usize;
            self.append(&ZEROS[..len])?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(W, Manifest), PackError> {
        if self.failed {
            return Err(PackError::spec("cannot be finished after a write that failed"));
        }
        if let Some(piece) = self.layout.pieces.get(self.piece) {
            let line = format!("has {} of {} bytes, the pack is not complete", self.written, piece.len);
            return Err(PackError::spec(line).in_tensor(&piece.name));
        }
        let header = self.layout.header()?;
        let write = self.sink.seek(SeekFrom::Start(0)).and_then(|_| self.sink.write_all(&header));
        write.and_then(|()| self.sink.flush()).map_err(cannot_write)?;
        Ok((self.sink, self.layout.manifest))
    }
}

fn cannot_write(error: io::Error) -> PackError {
    PackError::io("cannot be written", error)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::dtype::DType;
    use crate::pack::manifest::SourceInfo;
    use crate::pack::spec::{GroupSpec, TensorSpec};

    /// A disk with room for `room` bytes.
    #[derive(Debug)]
    struct Disk {
        bytes: Cursor<Vec<u8>>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let len = bytes.len().min(self.room - self.bytes.position() as usize);
            if len == 0 && !bytes.is_empty() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.bytes.write(&bytes[..len])
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Seek for Disk {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.bytes.seek(to)
        }
    }

    fn write_all(room: usize) -> Result<Vec<u8>, PackError> {
        let tensor = |name: &str| TensorSpec {
            name: name.into(),
            codec: "u8".into(),
            layout: "rows".into(),
            shape: vec![5000],
            stored_dtype: DType::U8,
            stored_shape: vec![5000],
        };
        let group = |name: &str| GroupSpec {
            name: name.into(),
            swept: true,
            part_len: None,
            tensors: vec![tensor(name)],
        };
        let groups = vec![group("a"), group("b")];
        let spec = PackSpec { model: "m".into(), tokenizer: None, source: SourceInfo::default(), groups };
        let disk = Disk { bytes: Cursor::default(), room };
        let mut body = Body::start(disk, Layout::of(spec)?)?;
        for name in ["a", "b"] {
            for slab in [[1; 3000].as_slice(), &[2; 2000]] {
                if let Err(error) = body.write(name, slab) {
                    assert_eq!((error.kind(), error.tensor()), (PackErrorKind::Io, Some(name)));
                    assert_eq!(body.write(name, slab).unwrap_err().kind(), PackErrorKind::Spec, "no way on");
                    assert_eq!(body.finish().unwrap_err().kind(), PackErrorKind::Spec, "no way to finish");
                    return Err(error);
                }
            }
        }
        body.finish().map(|(disk, _)| disk.bytes.into_inner())
    }

    #[test]
    fn a_full_disk_is_an_error_wherever_it_is_met() {
        let whole = write_all(usize::MAX).unwrap();
        assert_eq!(whole.len(), 5 * PAGE as usize);
        for room in (0..whole.len()).step_by(509) {
            assert_eq!(write_all(room).unwrap_err().kind(), PackErrorKind::Io, "room for {room} bytes");
        }
        assert_eq!(write_all(whole.len()).unwrap(), whole);
    }
}
