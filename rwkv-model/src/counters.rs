/// What a model's steps have done, since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepCounters {
    /// Tokens fed.
    pub tokens: u64,
    /// Sweeps over the weights.
    pub sweeps: u64,
    /// Bytes of weights that the sweeps went over, skipped columns included.
    pub dense_bytes: u64,
    /// Inputs of the channel mixes' value matrices, over all blocks and tokens.
    pub value_inputs: u64,
    /// Those of them that were zero, so that their column was skipped.
    pub value_inputs_skipped: u64,
    /// Bytes of columns that no row of a sweep needed; exact for sweeps of one row, and counted for those alone.
    pub skipped_bytes: u64,
}

impl StepCounters {
    /// The share of the value matrices' inputs that was skipped, from 0 to 1.
    pub fn skipped_share(&self) -> f64 {
        if self.value_inputs == 0 { 0.0 } else { self.value_inputs_skipped as f64 / self.value_inputs as f64 }
    }
}
