//! Lines from the user: edited at a terminal, read from stdin elsewhere.

use std::fs;
use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;

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
    Terminal { editor: Box<Editor<(), FileHistory>>, history: Option<PathBuf>, console: Console },
    /// Bare lines.
    Stream,
}

impl Input {
    /// The editor, if both ends are a terminal.
    pub fn new(console: Console) -> Input {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Input::Stream;
        }
        let config = Config::builder().auto_add_history(true).build();
        let Ok(mut editor) = Editor::with_config(config) else { return Input::Stream };
        let history =
            directories::data().filter(|dir| fs::create_dir_all(dir).is_ok()).map(|dir| dir.join(HISTORY));
        if let Some(path) = &history {
            // The first time, there is none.
            let _ = editor.load_history(path);
        }
        Input::Terminal { editor: Box::new(editor), history, console }
    }

    /// Whether somebody sits there.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal { .. })
    }

    /// The next line; `None` at the end.
    pub fn line(&mut self) -> Result<Option<String>> {
        match self {
            Input::Terminal { editor, history, console } => loop {
                match editor.readline(PROMPT) {
                    Ok(line) => {
                        if let Some(path) = history {
                            let _ = editor.append_history(path);
                        }
                        return Ok(Some(line));
                    }
                    Err(ReadlineError::Eof) => return Ok(None),
                    Err(ReadlineError::Interrupted) => console.note("(Ctrl-D ends)"),
                    Err(error) => return Err(error).context("the terminal cannot be read"),
                }
            },
            Input::Stream => {
                let mut line = Vec::new();
                let len = io::stdin().lock().read_until(b'\n', &mut line).context("stdin: cannot be read")?;
                Ok((len > 0).then(|| String::from_utf8_lossy(&line).into_owned()))
            }
        }
    }
}
