use std::sync::Arc;

use rwkv_kernels::KvFormat;

use super::{Budget, bytes_of, peak_rows};
use crate::attention::Attention;
use crate::error::{Result, bail};
use crate::identity::Identity;
use crate::state::State;

/// What is known of the keys and values of a model before a step.
#[derive(Debug, Clone)]
pub(crate) struct KvLimits {
    pub identity: Arc<Identity>,
    /// Of new states.
    pub attention: Attention,
    pub format: KvFormat,
    pub budget: Arc<Budget>,
}

impl KvLimits {
    /// Whether a state could take in so many tokens, one after another, if all the memory were its own. `None` is a new state.
    ///
    /// # Errors
    /// It could not.
    pub fn check(&self, state: Option<&State>, tokens: usize) -> Result<()> {
        let limit = self.budget.limit();
        let bytes = match state {
            Some(state) => state.kv_peak_bytes(tokens, 1),
            None => {
                let rows = peak_rows(&self.attention, 0, tokens, 1);
                bytes_of(self.identity.config(), self.format, &self.attention, rows)
            }
        };
        if bytes > limit {
            bail!(
                Budget,
                "{tokens} tokens need {bytes} bytes of keys and values, of which there may be {limit}; expected fewer tokens, \
                 attention to a window, keys and values of f16, or a larger budget"
            );
        }
        Ok(())
    }
}
