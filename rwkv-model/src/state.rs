mod file;

use std::fmt;
use std::sync::Arc;

use crate::config::Config;
use crate::error::{Result, bail};
use crate::floats::Floats;
use crate::identity::Identity;

/// Everything a session remembers: a value that can be cloned, compared, saved, restored and reset.
///
/// Per block it holds the last token's `ln1` and `ln2` outputs (for the two token shifts, `[C]` each) and
/// the state of the time mix, `[H, N, N]`. A new state is all zeros. It belongs to the model that made it and is of no use
/// to another.
///
/// Equality compares bits: two states are equal if the model would go on from them in the same way to the last bit.
#[derive(Clone)]
pub struct State {
    identity: Arc<Identity>,
    att_shift: Vec<f32>,
    ffn_shift: Vec<f32>,
    /// `[layers, heads, key, value]`.
    wkv: Floats,
    tokens: u64,
    poisoned: bool,
}

impl State {
    pub(crate) fn new(identity: Arc<Identity>) -> State {
        let Config { layers, width, heads, head_size, .. } = *identity.config();
        State {
            identity,
            att_shift: vec![0.0; layers * width],
            ffn_shift: vec![0.0; layers * width],
            wkv: Floats::zeroed(layers * heads * head_size * head_size),
            tokens: 0,
            poisoned: false,
        }
    }

    /// The model that this state belongs to.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// How many tokens the state has seen since it was new or reset.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Bytes of memory that the state takes.
    pub fn bytes(&self) -> u64 {
        self.identity.config().state_bytes()
    }

    /// Makes the state new: all zeros, no tokens seen, usable.
    pub fn reset(&mut self) {
        self.att_shift.fill(0.0);
        self.ffn_shift.fill(0.0);
        self.wkv.fill(0.0);
        self.tokens = 0;
        self.poisoned = false;
    }

    /// Whether a step failed halfway and left the state unusable, until it is [reset](State::reset) or replaced.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    /// The `ln1` output of the last token in a block: `[C]`.
    ///
    /// # Panics
    /// The model has no such block.
    pub fn att_shift(&self, block: usize) -> &[f32] {
        row(&self.att_shift, block, self.identity.config().width)
    }

    /// The `ln2` output of the last token in a block: `[C]`.
    ///
    /// # Panics
    /// The model has no such block.
    pub fn ffn_shift(&self, block: usize) -> &[f32] {
        row(&self.ffn_shift, block, self.identity.config().width)
    }

    /// The time mix state of a head as `[N, N]` row-major, row = value channel, column = key channel.
    ///
    /// # Panics
    /// The model has no such block or head.
    pub fn wkv(&self, block: usize, head: usize) -> Vec<f32> {
        let config = self.identity.config();
        assert!(head < config.heads, "head {head} of {}", config.heads);
        let n = config.head_size;
        transposed(row(&self.wkv, block * config.heads + head, n * n), n)
    }

    pub(crate) fn belongs_to(&self, identity: &Arc<Identity>) -> bool {
        Arc::ptr_eq(&self.identity, identity) || self.identity == *identity
    }

    pub(crate) fn check_usable(&self) -> Result<()> {
        if self.poisoned {
            bail!(
                State,
                "the state is from a step that failed halfway; expected one that is reset or restored"
            );
        }
        Ok(())
    }

    /// Unusable from here on, unless [`State::commit`] follows.
    pub(crate) fn poison(&mut self) {
        self.poisoned = true;
    }

    pub(crate) fn commit(&mut self, tokens: usize) {
        self.tokens += tokens as u64;
        self.poisoned = false;
    }

    pub(crate) fn att_shift_mut(&mut self, block: usize) -> &mut [f32] {
        row_mut(&mut self.att_shift, block, self.identity.config().width)
    }

    pub(crate) fn ffn_shift_mut(&mut self, block: usize) -> &mut [f32] {
        row_mut(&mut self.ffn_shift, block, self.identity.config().width)
    }

    /// The heads' states of a block, each `[key, value]`.
    pub(crate) fn heads_mut(&mut self, block: usize) -> std::slice::ChunksExactMut<'_, f32> {
        let Config { width, head_size, .. } = *self.identity.config();
        row_mut(&mut self.wkv, block, width * head_size).chunks_exact_mut(head_size * head_size)
    }
}

impl PartialEq for State {
    fn eq(&self, other: &State) -> bool {
        let same = |a: &[f32], b: &[f32]| a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits()));
        self.identity == other.identity
            && (self.tokens, self.poisoned) == (other.tokens, other.poisoned)
            && same(&self.att_shift, &other.att_shift)
            && same(&self.ffn_shift, &other.ffn_shift)
            && same(&self.wkv, &other.wkv)
    }
}

impl Eq for State {}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("tokens", &self.tokens)
            .field("bytes", &self.bytes())
            .field("poisoned", &self.poisoned)
            .finish_non_exhaustive()
    }
}

fn row(rows: &[f32], index: usize, len: usize) -> &[f32] {
    &rows[index * len..(index + 1) * len]
}

fn row_mut(rows: &mut [f32], index: usize, len: usize) -> &mut [f32] {
    &mut rows[index * len..(index + 1) * len]
}

/// `[n, n]` with rows and columns swapped.
fn transposed(square: &[f32], n: usize) -> Vec<f32> {
    (0..n * n).map(|i| square[i % n * n + i / n]).collect()
}
