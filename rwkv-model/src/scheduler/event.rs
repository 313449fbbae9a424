use std::time::Duration;

use super::logprobs::TokenLogprobs;
use crate::error::ModelError;
use crate::generate::FinishReason;
use crate::state::State;

/// What happens to a session. The last event is [`Finished`](SessionEvent::Finished) or [`Failed`](SessionEvent::Failed),
/// unless the sink broke off.
#[derive(Debug)]
#[non_exhaustive]
pub enum SessionEvent {
    /// The session has left the queue.
    Started {
        /// Tokens of the prompt whose state is known, and which are not fed. Others may follow, see [`Finished::reused_tokens`].
        reused: usize,
        /// How long it waited.
        queued: Duration,
    },
    /// Some of the prompt was fed.
    Prefill {
        /// Tokens fed so far, reused ones included. They are counted from the beginning again where a session had to give its
        /// memory for keys and values to others.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token was generated.
    Token {
        /// The token.
        id: u32,
        /// The bytes of text that it sets free: not always its own, as what may become a stop string is held back.
        bytes: Vec<u8>,
        /// If they were asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// The text has ended without a stop string, and this was still held back. Only sent if there is something.
    Rest {
        /// The last bytes of the text.
        bytes: Vec<u8>,
    },
    /// The session has ended.
    Finished(Box<Finished>),
    /// The session has ended by an error.
    Failed(ModelError),
}

/// How a session ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct Finished {
    /// Why.
    pub reason: FinishReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were not fed, because the state after them was known, or another session has read them.
    pub reused_tokens: usize,
    /// Generated tokens: the stop token is none of them, those of a stop string are.
    pub completion_tokens: usize,
    /// The mean of the hidden states over the prompt's tokens, `[C]`, if it was asked for and the prompt was read to its end.
    pub embedding: Option<Vec<f32>>,
    /// Of the prompt's tokens from the second on, if they were asked for.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// What the session remembers, if it was asked for and the session had begun.
    pub state: Option<State>,
    /// The last token, if the state has not seen it: feed it before anything else to go on from the state.
    pub unfed: Option<u32>,
    /// The seed of the random numbers.
    pub seed: u64,
    /// How long everything took.
    pub timings: Timings,
}

/// The times of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timings {
    /// From the submission to the beginning.
    pub queued: Duration,
    /// From the beginning to the first token, or to the end if there was none.
    pub prefill: Duration,
    /// From the first token to the end.
    pub decode: Duration,
}
