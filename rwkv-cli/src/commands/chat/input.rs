//! Lines from the user: edited at a terminal, read from stdin elsewhere.

use std::fs;
use std::io::{self, BufRead, IsTerminal};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};

use crate::console::Console;
use crate::directories;

const PROMPT: &str = "User: ";
const HISTORY: &str = "chat-history.txt";

/// Where lines come from.
pub enum Input {
    /// An editor with a history.
    Terminal {
        /// The file of the history.
        history: Option<PathBuf>,
        /// What was typed, if there is no such file.
        typed: Vec<String>,
        console: Console,
    },
    /// Bare lines.
    Stream,
}

impl Input {
    /// The editor, if both ends are a terminal.
    pub fn new(console: Console) -> Input {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Input::Stream;
        }
        let history =
            directories::data().filter(|dir| fs::create_dir_all(dir).is_ok()).map(|dir| dir.join(HISTORY));
        Input::Terminal { history, typed: Vec::new(), console }
    }

    /// Whether somebody sits there.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal { .. })
    }

    /// The next line; `None` at the end.
    pub fn line(&mut self) -> Result<Option<String>> {
        match self {
            Input::Terminal { history, typed, console } => edit(history.as_deref(), typed, *console),
            Input::Stream => {
                let mut line = Vec::new();
                let len = io::stdin().lock().read_until(b'\n', &mut line).context("stdin: cannot be read")?;
                Ok((len > 0).then(|| String::from_utf8_lossy(&line).into_owned()))
            }
        }
    }
}

/// Lets the user type a line.
///
/// Each line has an editor of its own, because an editor takes Ctrl-C for itself as long as it lives, and answers need it.
fn edit(history: Option<&Path>, typed: &mut Vec<String>, console: Console) -> Result<Option<String>> {
    let unusable = "the terminal cannot be used";
    let config = Config::builder().auto_add_history(true).build();
    let mut editor: Editor<(), FileHistory> = Editor::with_config(config).context(unusable)?;
    match history {
        // The first time, there is none.
        Some(path) => drop(editor.load_history(path)),
        None => typed.iter().for_each(|line| drop(editor.add_history_entry(line))),
    }
    loop {
        match editor.readline(PROMPT) {
            Ok(line) => {
                match history {
                    Some(path) => drop(editor.append_history(path)),
                    None => typed.push(line.clone()),
                }
                return Ok(Some(line));
            }
            Err(ReadlineError::Eof) => return Ok(None),
            Err(ReadlineError::Interrupted) => console.note("(Ctrl-D ends)"),
            Err(error) => return Err(error).context(unusable),
        }
    }
}
