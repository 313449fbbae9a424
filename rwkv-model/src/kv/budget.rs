use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Result, bail};

/// Bytes that the key/value caches of all states of a model may take.
#[derive(Debug)]
pub(crate) struct Budget {
    used: AtomicU64,
    limit: u64,
}

impl Budget {
    pub fn new(limit: u64) -> Arc<Budget> {
        Arc::new(Budget { used: AtomicU64::new(0), limit })
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether so many more bytes may be taken.
    pub fn check(&self, more: u64) -> Result<()> {
        let (used, limit) = (self.used(), self.limit);
        let left = limit.saturating_sub(used);
        if more > left {
            bail!(
                Budget,
                "keys and values need {more} bytes more for this step, and {left} of {limit} are left; expected fewer tokens, \
                 attention to a window, keys and values of f16, or a larger budget"
            );
        }
        Ok(())
    }
}

/// The bytes of one state in the budget: given back when the state goes, taken again for a copy of it.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Charge {
    pub fn new(budget: Arc<Budget>, bytes: u64) -> Charge {
        budget.used.fetch_add(bytes, Ordering::Relaxed);
        Charge { budget, bytes }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the budget has room for a copy.
    pub fn fits_again(&self) -> bool {
        self.budget.check(self.bytes).is_ok()
    }

    pub fn is_of(&self, budget: &Arc<Budget>) -> bool {
        Arc::ptr_eq(&self.budget, budget)
    }

    pub fn set(&mut self, bytes: u64) {
        *self = Charge::new(Arc::clone(&self.budget), bytes);
    }
}

impl Clone for Charge {
    fn clone(&self) -> Charge {
        Charge::new(Arc::clone(&self.budget), self.bytes)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
