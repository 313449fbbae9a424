//! The one error type of this crate.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

/// What sort of thing went wrong, for programs that decide on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PackErrorKind {
    /// The operating system refused or failed: no such file, no permission, disk full, read error.
    Io,
    /// The file is something else than what was asked for: a web page, a GGUF file, a directory, a pack in place of a checkpoint.
    WrongFormat,
    /// The file ends before what its own header promises.
    Truncated,
    /// The file is of the right format and contradicts itself or its format.
    Malformed,
    /// The file is well formed and uses something that this crate does not read.
    Unsupported,
    /// A pickle asks for something that no tensor file needs, such as calling a function.
    Refused,
    /// Bytes do not have the checksum that was recorded for them.
    Checksum,
    /// The caller of [`Writer`](crate::Writer) described or wrote something that cannot be a pack.
    Spec,
}

/// Why a checkpoint or a pack could not be read or written.
///
/// [`Display`](fmt::Display) gives one lower-case line that names the file, the tensor, group or archive member, what
/// was found and what was expected. The operating system's reason, where there is one, is the
/// [`source`](Error::source) and is not repeated in that line: print the whole chain.
pub struct PackError {
    // Boxed: a Result that carries this stays two words wide.
    inner: Box<Inner>,
}

struct Inner {
    kind: PackErrorKind,
    message: String,
    file: Option<PathBuf>,
    place: Place,
    offset: Option<u64>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

enum Place {
    Whole,
    Tensor(String),
    Group(String),
    Member(String),
}

impl PackError {
    pub(crate) fn new(kind: PackErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        let inner = Inner { kind, message, file: None, place: Place::Whole, offset: None, source: None };
        Self { inner: Box::new(inner) }
    }

    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self::new(PackErrorKind::Malformed, message)
    }

    pub(crate) fn spec(message: impl Into<String>) -> Self {
        Self::new(PackErrorKind::Spec, message)
    }

    pub(crate) fn io(message: impl Into<String>, source: std::io::Error) -> Self {
        let mut error = Self::new(PackErrorKind::Io, message);
        error.inner.source = Some(Box::new(source));
        error
    }

    pub(crate) fn caused_by(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.inner.source = Some(source.into());
        self
    }

    pub(crate) fn in_file(mut self, path: &Path) -> Self {
        self.inner.file.get_or_insert_with(|| path.to_path_buf());
        self
    }

    pub(crate) fn in_tensor(mut self, name: &str) -> Self {
        if matches!(self.inner.place, Place::Whole) {
            self.inner.place = Place::Tensor(name.to_owned());
        }
        self
    }

    pub(crate) fn in_group(mut self, name: &str) -> Self {
        if matches!(self.inner.place, Place::Whole) {
            self.inner.place = Place::Group(name.to_owned());
        }
        self
    }

    pub(crate) fn in_member(mut self, name: &str) -> Self {
        if matches!(self.inner.place, Place::Whole) {
            self.inner.place = Place::Member(name.to_owned());
        }
        self
    }

    pub(crate) fn at(mut self, offset: u64) -> Self {
        self.inner.offset.get_or_insert(offset);
        self
    }

    /// The sort of failure.
    pub fn kind(&self) -> PackErrorKind {
        self.inner.kind
    }

    /// The file in question.
    pub fn file(&self) -> Option<&Path> {
        self.inner.file.as_deref()
    }

    /// The tensor in question, where the failure concerns one.
    pub fn tensor(&self) -> Option<&str> {
        match &self.inner.place {
            Place::Tensor(name) => Some(name),
            _ => None,
        }
    }

    /// The group of a pack in question, where the failure concerns one.
    pub fn group(&self) -> Option<&str> {
        match &self.inner.place {
            Place::Group(name) => Some(name),
            _ => None,
        }
    }

    /// The member of a `.pth` archive in question, where the failure concerns one.
    pub fn member(&self) -> Option<&str> {
        match &self.inner.place {
            Place::Member(name) => Some(name),
            _ => None,
        }
    }

    /// The byte offset in question: in the archive member where one is named, in the file otherwise.
    pub fn offset(&self) -> Option<u64> {
        self.inner.offset
    }
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.inner.file {
            write!(f, "{}: ", file.display())?;
        }
        match &self.inner.place {
            Place::Whole => {}
            Place::Tensor(name) => write!(f, "tensor {}: ", shown(name))?,
            Place::Group(name) => write!(f, "group {}: ", shown(name))?,
            Place::Member(name) => write!(f, "archive member {}: ", shown(name))?,
        }
        f.write_str(&self.inner.message)?;
        match self.inner.offset {
            Some(offset) => write!(f, " (at offset {offset:#x})"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackError")
            .field("kind", &self.inner.kind)
            .field("line", &self.to_string())
            .field("source", &self.inner.source)
            .finish()
    }
}

impl Error for PackError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.inner.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

/// A name from a file as it may appear in an error's line: escaped and not longer than a terminal can bear.
pub(crate) fn shown(name: &str) -> String {
    const LONGEST: usize = 120;
    let mut line: String = name.chars().take(LONGEST).flat_map(escaped).collect();
    if name.is_empty() {
        line.push_str("(empty name)");
    } else if name.chars().nth(LONGEST).is_some() {
        line.push_str("...");
    }
    line
}

fn escaped(c: char) -> impl Iterator<Item = char> {
    // Letters of all scripts stay as they are; what would break or hide the line does not.
    let plain = c == '"' || c == '\'';
    plain.then_some(c).into_iter().chain((!plain).then(|| c.escape_debug()).into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_file_place_and_offset_and_stays_one_line() {
        let error = PackError::malformed("extent 0x10..0x5 is inverted")
            .at(16)
            .in_tensor("a\nb")
            .in_group("an outer place does not replace the inner one")
            .in_file(Path::new("Загрузки/модель 1.st"));
        assert_eq!(
            error.to_string(),
            "Загрузки/модель 1.st: tensor a\\nb: extent 0x10..0x5 is inverted (at offset 0x10)"
        );
        assert_eq!((error.tensor(), error.group(), error.offset()), (Some("a\nb"), None, Some(16)));
    }

    #[test]
    fn long_and_empty_names_are_shortened_and_said() {
        assert_eq!(shown(""), "(empty name)");
        assert_eq!(shown(&"x".repeat(1000)).len(), 123);
        assert_eq!(shown("it's \"so\""), "it's \"so\"");
    }
}
