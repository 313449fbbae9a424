use std::fmt;

use serde::{Deserialize, Serialize};

use crate::config::Config;

/// Which model a state belongs to: its sizes, and the hash of the checkpoint that it was packed from.
///
/// Packs of one checkpoint with different codecs have one identity: a state may move between them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    config: Config,
    source: String,
}

impl Identity {
    pub(crate) fn new(config: Config, source: String) -> Identity {
        Identity { config, source }
    }

    /// The sizes of the model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The XXH3-64 hash of the checkpoint file, as 16 hexadecimal digits.
    pub fn source(&self) -> &str {
        &self.source
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from checkpoint {}", self.config, self.source)
    }
}
