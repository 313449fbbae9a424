//! Everything that goes to the standard error stream, bars excepted.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;

/// The variable that sets what is logged.
const LOG_VARIABLE: &str = "RWKV_LOG";

/// Tells the user what happens, or keeps quiet about it.
#[derive(Debug, Clone, Copy)]
pub struct Console {
    quiet: bool,
    terminal: bool,
}

impl Console {
    /// A console that says only what must be said, if `quiet`.
    pub fn new(quiet: bool) -> Console {
        Console { quiet, terminal: io::stderr().is_terminal() }
    }

    /// Whether bars may move.
    pub fn shows_progress(self) -> bool {
        self.terminal && !self.quiet
    }

    /// Says what happens.
    pub fn note(self, line: impl Display) {
        if !self.quiet {
            say(format_args!("{line}"));
        }
    }

    /// Says what is probably not meant.
    pub fn warn(self, line: impl Display) {
        if !self.quiet {
            say(format_args!("warning: {line}"));
        }
    }

    /// Writes the events of the libraries that `RWKV_LOG` asks for.
    pub fn start_log(self) {
        let Some(wanted) = std::env::var_os(LOG_VARIABLE).filter(|value| !value.is_empty()) else { return };
        let wanted = wanted.to_string_lossy();
        match EnvFilter::try_new(&wanted) {
            Ok(filter) => tracing_subscriber::fmt()
                .with_env_filter(filter)
                .with_writer(io::stderr)
                .with_ansi(self.terminal)
                .init(),
            Err(error) => {
                self.warn(format_args!("{LOG_VARIABLE} is {wanted:?}, which is no filter: {error}"))
            }
        }
    }
}

/// Reports why the program ends, with all causes, on one line.
pub fn error(error: &anyhow::Error) {
    let mut line = format!("{error:#}");
    line = line.replace(['\n', '\r'], " ");
    say(format_args!("error: {line}"));
}

/// There is nobody to tell that the standard error stream is closed.
fn say(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
