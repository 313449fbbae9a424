//! The tokenizer of a run, and whether it fits the model.

use std::borrow::Cow;
use std::ops::Deref;
use std::path::Path;

use anyhow::Result;
use rwkv_tokenizer::{END_OF_TEXT, Tokenizer};

use crate::console::Console;
use crate::demo;
use crate::exit::Stop;

/// What an id without bytes looks like in a text.
const UNKNOWN: &[u8] = "\u{fffd}".as_bytes();

/// A tokenizer and its name.
#[derive(Debug)]
pub struct Vocabulary {
    tokenizer: Cow<'static, Tokenizer>,
    name: String,
}

impl Vocabulary {
    /// The embedded World vocabulary.
    pub fn world() -> Vocabulary {
        Vocabulary { tokenizer: Cow::Borrowed(Tokenizer::world()), name: "the World vocabulary".into() }
    }

    /// That of the demo model.
    pub fn demo() -> Result<Vocabulary> {
        Ok(Vocabulary {
            tokenizer: Cow::Owned(demo::tokenizer()?),
            name: "the demo model's vocabulary".into(),
        })
    }

    /// A vocabulary file.
    pub fn from_path(path: &Path) -> Result<Vocabulary> {
        let tokenizer = Tokenizer::from_path(path)?;
        Ok(Vocabulary { tokenizer: Cow::Owned(tokenizer), name: format!("vocabulary {}", path.display()) })
    }

    /// Appends the bytes of a token: nothing for the end of text, U+FFFD for an id that the vocabulary does not have.
    pub fn append(&self, id: u32, text: &mut Vec<u8>) {
        if id != END_OF_TEXT {
            text.extend_from_slice(self.token_bytes(id).unwrap_or(UNKNOWN));
        }
    }

    /// The bytes of tokens.
    pub fn text(&self, ids: &[u32]) -> Vec<u8> {
        let mut text = Vec::new();
        ids.iter().for_each(|&id| self.append(id, &mut text));
        text
    }

    /// Warns if the model cannot know all tokens.
    pub fn warn_unless_fit(&self, model_vocab: usize, console: Console) {
        if self.vocab_size() > model_vocab {
            console.warn(format_args!(
                "{} has ids up to {}, the model has {model_vocab} tokens: is this the model's vocabulary? (--vocab FILE)",
                self.name,
                self.vocab_size() - 1
            ));
        }
    }

    /// Checks that the model has the tokens of a text.
    pub fn check(&self, ids: &[u32], model_vocab: usize) -> Result<()> {
        match ids.iter().find(|&&id| id as usize >= model_vocab) {
            Some(id) => Err(Stop::usage(format!(
                "the text has token {id}, but the model has only {model_vocab} tokens: {} is not the model's; name its own with --vocab FILE",
                self.name
            ))),
            None => Ok(()),
        }
    }
}

impl Deref for Vocabulary {
    type Target = Tokenizer;

    fn deref(&self) -> &Tokenizer {
        &self.tokenizer
    }
}
