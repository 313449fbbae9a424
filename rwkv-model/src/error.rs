use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// What went wrong, and where.
///
/// Displays as one lower-case line that says what was found and what was expected; the cause, where there
/// is one, is the error's [`source`](Error::source).
#[derive(Debug, Clone)]
pub struct ModelError {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// The result type of this crate.
pub type Result<T, E = ModelError> = std::result::Result<T, E>;

/// The kinds of [`ModelError`], for callers that react differently to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file is a model of a family, or in a spelling, that this crate does not run.
    Unsupported,
    /// The checkpoint's tensors are missing, superfluous, wrongly shaped, or hold values that cannot be used.
    Checkpoint,
    /// The pack's manifest or tensors do not describe a model that this crate can run.
    Pack,
    /// A token that the model's vocabulary does not have.
    Token,
    /// A state that does not belong to the model, is damaged, or was left behind by a failed step.
    State,
    /// An argument outside its documented range.
    Parameter,
    /// A step or a sampler met a value that is not a finite number.
    NonFinite,
    /// The weights could not be read or kept.
    Residency,
    /// The memory for key/value caches would be exceeded.
    Budget,
    /// A file could not be read or written.
    Io,
    /// A callback asked to stop.
    Cancelled,
    /// The engine of a scheduler was lost to a panic, which is a bug.
    Engine,
}

impl ModelError {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> ModelError {
        ModelError { kind, message: message.into(), source: None }
    }

    pub(crate) fn caused_by(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> ModelError {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// What kind of error this is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for ModelError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// `return Err(..)` of one kind with a formatted message.
macro_rules! bail {
    ($kind:ident, $($message:tt)+) => {
        return Err($crate::ModelError::new($crate::ErrorKind::$kind, format!($($message)+)))
    };
}
pub(crate) use bail;
