use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Cursor, IsTerminal, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use crate::console::Console;
use crate::exit::Stop;

/// A text to read.
#[derive(Debug, Args)]
pub struct PromptArgs {
    /// The text, exactly as it is given
    #[arg(long, short, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<OsString>,

    /// A file with the text, of any length; `-` is stdin, which is also read if no text is given
    #[arg(long, short = 'f', value_name = "FILE", conflicts_with = "prompt")]
    pub prompt_file: Option<PathBuf>,
}

/// A text on its way in.
pub struct PromptSource {
    reader: Box<dyn Read>,
    /// Its bytes, where they are known beforehand.
    pub len: Option<u64>,
    name: String,
}

impl PromptArgs {
    /// Whether a text is named, so that stdin is not asked for one.
    pub fn is_given(&self) -> bool {
        self.prompt.is_some() || self.prompt_file.is_some()
    }

    /// Opens the text. A terminal is read until Ctrl-D.
    pub fn open(&self, console: Console) -> Result<PromptSource> {
        if let Some(text) = &self.prompt {
            let bytes = text.as_encoded_bytes().to_vec();
            let len = Some(bytes.len() as u64);
            return Ok(PromptSource { reader: Box::new(Cursor::new(bytes)), len, name: "--prompt".into() });
        }
        PromptSource::open(self.prompt_file.as_deref().unwrap_or(Path::new("-")), console)
    }
}

impl PromptSource {
    /// Opens a file, or stdin for `-`. A terminal is read until Ctrl-D.
    pub fn open(path: &Path, console: Console) -> Result<PromptSource> {
        if path != Path::new("-") {
            return PromptSource::file(path);
        }
        if io::stdin().is_terminal() {
            console.note("Reading the text from the terminal: end it with Ctrl-D on an empty line.");
        }
        Ok(PromptSource { reader: Box::new(io::stdin().lock()), len: None, name: "stdin".into() })
    }

    /// Checks early that there is something to open.
    pub fn check(path: &Path) -> Result<()> {
        let name = path.display();
        let metadata = std::fs::metadata(path).with_context(|| format!("{name}: cannot be opened"))?;
        match metadata.is_dir() {
            true => Err(Stop::usage(format!("{name}: is a directory; expected a file with text"))),
            false => Ok(()),
        }
    }

    fn file(path: &Path) -> Result<PromptSource> {
        PromptSource::check(path)?;
        let name = path.display().to_string();
        let file = File::open(path).with_context(|| format!("{name}: cannot be opened"))?;
        let metadata = file.metadata().with_context(|| format!("{name}: cannot be read"))?;
        // Pipes and devices have no length.
        let len = metadata.is_file().then_some(metadata.len());
        Ok(PromptSource { reader: Box::new(file), len, name })
    }

    /// A text that the program has.
    pub fn text(text: &'static str) -> PromptSource {
        PromptSource { reader: Box::new(text.as_bytes()), len: Some(text.len() as u64), name: String::new() }
    }

    /// Reads some of the text; 0 bytes are its end.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            match self.reader.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.with_context(|| format!("{}: cannot be read", self.name)),
            }
        }
    }

    /// Reads the whole text.
    pub fn read_all(mut self) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        self.reader.read_to_end(&mut text).with_context(|| format!("{}: cannot be read", self.name))?;
        Ok(text)
    }
}
