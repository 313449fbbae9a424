use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::ModelArgs;
use crate::vocabulary::Vocabulary;

/// Which tokenizer.
#[derive(Debug, Args)]
pub struct VocabularyArgs {
    /// A vocabulary file in the format of the World vocabulary [default: the World vocabulary; the demo model has its own]
    #[arg(long, value_name = "FILE")]
    pub vocab: Option<PathBuf>,
}

impl VocabularyArgs {
    /// Reads the vocabulary of a model.
    pub fn load_for(&self, model: &ModelArgs) -> Result<Vocabulary> {
        match &self.vocab {
            None if model.is_demo() => Vocabulary::demo(),
            _ => self.load(),
        }
    }

    /// Reads the vocabulary.
    pub fn load(&self) -> Result<Vocabulary> {
        match &self.vocab {
            Some(path) => Vocabulary::from_path(path),
            None => Ok(Vocabulary::world()),
        }
    }
}
