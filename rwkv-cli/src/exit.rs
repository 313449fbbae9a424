//! Exit codes: what a script learns from the end of the program.

use std::error::Error as _;
use std::io::{self, ErrorKind as IoErrorKind};
use std::process::ExitCode;

use rwkv_model::cache::{CacheError, ErrorKind as CacheErrorKind};
use rwkv_model::pack::{PackError, PackErrorKind};
use rwkv_model::{ErrorKind, ModelError};

use crate::console;

/// Something failed.
const FAILED: u8 = 1;
/// The command line asks for something that makes no sense. The parser of the arguments uses it, too.
const USAGE: u8 = 2;
/// The model file is no model, is damaged, or is of a kind that this program does not run.
const BAD_MODEL: u8 = 3;
/// Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// An end that is no failure of anything.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// Ctrl-C was pressed.
    #[error("interrupted")]
    Interrupted,
    /// The arguments, each fine by itself, do not go together.
    #[error("{0}")]
    Usage(String),
    /// A model file that cannot be used for what was asked.
    #[error("{0}")]
    BadModel(String),
}

impl Stop {
    /// A wrong command line.
    pub fn usage(line: impl Into<String>) -> anyhow::Error {
        Stop::Usage(line.into()).into()
    }
}

/// Reports an error and turns it into an exit code.
pub fn of(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if is_closed_pipe(&error) {
        // Whoever reads the output has read enough.
        return ExitCode::SUCCESS;
    }
    let code = code_of(&error);
    if code != INTERRUPTED {
        console::error(&error);
    }
    ExitCode::from(code)
}

fn code_of(error: &anyhow::Error) -> u8 {
    error.chain().find_map(code_of_cause).unwrap_or(FAILED)
}

fn code_of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if let Some(stop) = cause.downcast_ref::<Stop>() {
        return Some(match stop {
            Stop::Interrupted => INTERRUPTED,
            Stop::Usage(_) => USAGE,
            Stop::BadModel(_) => BAD_MODEL,
        });
    }
    if let Some(error) = cause.downcast_ref::<ModelError>() {
        return match error.kind() {
            ErrorKind::Cancelled => Some(INTERRUPTED),
            ErrorKind::Parameter | ErrorKind::Token => Some(USAGE),
            ErrorKind::Unsupported | ErrorKind::Checkpoint => Some(BAD_MODEL),
            ErrorKind::Pack if error.source().is_none() => Some(BAD_MODEL),
            _ => None,
        };
    }
    if let Some(error) = cause.downcast_ref::<PackError>() {
        return match error.kind() {
            PackErrorKind::Io | PackErrorKind::Spec => None,
            _ => Some(BAD_MODEL),
        };
    }
    if let Some(error) = cause.downcast_ref::<CacheError>() {
        return match error.kind() {
            CacheErrorKind::Verify | CacheErrorKind::UnexpectedEnd | CacheErrorKind::Changed => {
                Some(BAD_MODEL)
            }
            _ => None,
        };
    }
    None
}

/// Whether the reader of an output went away.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == IoErrorKind::BrokenPipe)
    })
}
