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
    /// The bytes that a state has when it takes in so many tokens, one after another. `None` is a new state.
    pub fn bytes(&self, state: Option<&State>, tokens: usize) -> u64 {
        match state {
            Some(state) => state.kv_peak_bytes(tokens, 1),
            None => {
                let rows = peak_rows(&self.attention, 0, tokens, 1);
                bytes_of(self.identity.config(), self.format, &self.attention, rows)
            }
        }
    }

    /// Whether all the memory would be enough for that.
    ///
    /// # Errors
    /// It would not.
    pub fn check(&self, state: Option<&State>, tokens: usize) -> Result<()> {
        let (bytes, limit) = (self.bytes(state, tokens), self.budget.limit());
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
