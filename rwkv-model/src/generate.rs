use std::fmt;
use std::ops::ControlFlow;

use crate::error::{ErrorKind, Result, bail};
use crate::model::Model;
use crate::sampler::Sampler;
use crate::state::State;
use crate::step::{Feed, Logits};
use crate::text::Text;

/// When generation ends, and what tokens are as text.
#[derive(Clone)]
pub struct GenerateOptions<'a> {
    /// The most tokens to generate. `None` is no limit; 0 only feeds the prompt. Nothing is allocated for it.
    pub max_tokens: Option<usize>,
    /// Tokens that end the text and are no part of it. By default 0, the end of text.
    pub stop_tokens: Vec<u32>,
    /// Strings that end the text and are no part of it. They may begin and end within tokens.
    pub stop_strings: Vec<Vec<u8>>,
    /// Appends a token's bytes. Tokens need not be whole characters.
    pub token_bytes: &'a dyn Fn(u32, &mut Vec<u8>),
}

impl<'a> GenerateOptions<'a> {
    /// No limit, no stop strings, and the stop token 0.
    pub fn new(token_bytes: &'a dyn Fn(u32, &mut Vec<u8>)) -> GenerateOptions<'a> {
        GenerateOptions { max_tokens: None, stop_tokens: vec![0], stop_strings: Vec::new(), token_bytes }
    }
}

impl fmt::Debug for GenerateOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GenerateOptions")
            .field("max_tokens", &self.max_tokens)
            .field("stop_tokens", &self.stop_tokens)
            .field("stop_strings", &self.stop_strings)
            .finish_non_exhaustive()
    }
}

/// What happens while text is generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Some of the prompt was fed.
    Prefill {
        /// Tokens fed so far.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token was generated.
    Token {
        /// The token.
        id: u32,
        /// The bytes of text that it sets free: not always its own, as what may become a stop string is held back.
        bytes: &'a [u8],
    },
    /// The text has ended without a stop string, and this was still held back. Only sent if there is something.
    Rest {
        /// The last bytes of the text.
        bytes: &'a [u8],
    },
}

/// Why generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// This stop token was drawn.
    StopToken(u32),
    /// The stop string of this index was complete.
    StopString(usize),
    /// The limit was reached.
    Length,
    /// The keys and values of another token have no room within [their limit](crate::ModelOptions::kv_bytes).
    Memory,
    /// The callback broke off.
    Cancelled,
    /// A scheduled request did not begin within its time.
    QueueLimit,
    /// A scheduled request did not end within its time.
    TimeLimit,
}

impl FinishReason {
    /// Whether what was held back for a stop string belongs to the text.
    pub(crate) fn has_rest(self) -> bool {
        !matches!(self, FinishReason::StopString(_) | FinishReason::Cancelled)
    }
}

/// What was generated.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Generated {
    /// The tokens, stop token excluded; those of a stop string are included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: FinishReason,
    /// The last token, if the state has not seen it: feed it before anything else to go on from the state.
    pub unfed: Option<u32>,
}

impl Model {
    /// Feeds a prompt, sweep by sweep, and returns the logits after its last token.
    ///
    /// `progress` takes the number of tokens fed so far; when it breaks, or there are no tokens, there are no logits. The
    /// state has then seen what was fed.
    ///
    /// # Errors
    /// As [`Model::step`].
    pub fn prefill(
        &mut self,
        state: &mut State,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Option<&[f32]>> {
        tokens.iter().try_for_each(|&token| self.check_token(token))?;
        let mut done = 0;
        while done < tokens.len() {
            let end = tokens.len().min(done + self.chunk_rows());
            let logits = if end == tokens.len() { Logits::Last } else { Logits::None };
            self.step(&mut [Feed::new(state, &tokens[done..end], logits)])?;
            done = end;
            if progress(done).is_break() {
                return Ok(None);
            }
        }
        Ok(if tokens.is_empty() { None } else { Some(&self.logits) })
    }

    /// Feeds a prompt and generates text after it.
    ///
    /// The callback hears of every event, and ends the generation with `Break`; text that is held back then is dropped.
    /// Afterwards the state has seen the prompt and all tokens but [`Generated::unfed`]; a prompt that
    /// begins with that token goes on from there. If the prompt was not fed to its end, there are no tokens.
    ///
    /// # Errors
    /// As [`Model::step`] and [`Sampler::sample`]. The prompt is empty, unless nothing is to be generated. The sampler is of
    /// another vocabulary. A stop string is empty.
    pub fn generate(
        &mut self,
        state: &mut State,
        prompt: &[u32],
        sampler: &mut Sampler,
        options: &GenerateOptions<'_>,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Generated> {
        let mut text = Text::new(&options.stop_strings)?;
        let vocab = self.config().vocab;
        if sampler.vocab() != vocab {
            bail!(Parameter, "a sampler for {} tokens; expected {vocab}", sampler.vocab());
        }
        let ended = |finish| Ok(Generated { tokens: Vec::new(), finish, unfed: None });
        let total = prompt.len();
        if options.max_tokens == Some(0) {
            return ended(self.prefill_only(state, prompt, on_event)?);
        }
        if prompt.is_empty() {
            bail!(Parameter, "the prompt is empty; expected at least one token to go on from");
        }
        let mut report = |done| on_event(Event::Prefill { done, total });
        let Some(mut logits) = self.prefill(state, prompt, &mut report)? else {
            return ended(FinishReason::Cancelled);
        };
        let mut tokens = Vec::new();
        let (finish, unfed) = loop {
            let token = sampler.sample(logits)?;
            if options.stop_tokens.contains(&token) {
                break (FinishReason::StopToken(token), None);
            }
            sampler.accept(token);
            tokens.push(token);
            let found = text.push(token, options.token_bytes);
            let flow = on_event(Event::Token { id: token, bytes: text.released() });
            let finish = match (found, flow) {
                (Some(index), _) => Some(FinishReason::StopString(index)),
                (None, ControlFlow::Break(())) => Some(FinishReason::Cancelled),
                _ => (Some(tokens.len()) == options.max_tokens).then_some(FinishReason::Length),
            };
            if let Some(finish) = finish {
                break (finish, Some(token));
            }
            logits = match self.step(&mut [Feed::new(state, &[token], Logits::Last)]) {
                Ok(output) => output.logits(0),
                Err(error) if error.kind() == ErrorKind::Budget => break (FinishReason::Memory, Some(token)),
                Err(error) => return Err(error),
            };
        };
        if finish.has_rest() && text.finish() {
            // The text has ended already: there is nothing left to break off.
            let _ = on_event(Event::Rest { bytes: text.released() });
        }
        Ok(Generated { tokens, finish, unfed })
    }

    /// Feeds a prompt without its logits: the head is not read.
    fn prefill_only(
        &mut self,
        state: &mut State,
        prompt: &[u32],
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<FinishReason> {
        prompt.iter().try_for_each(|&token| self.check_token(token))?;
        let mut done = 0;
        for chunk in prompt.chunks(self.chunk_rows()) {
            self.step(&mut [Feed::new(state, chunk, Logits::None)])?;
            done += chunk.len();
            if on_event(Event::Prefill { done, total: prompt.len() }).is_break() {
                return Ok(FinishReason::Cancelled);
            }
        }
        Ok(FinishReason::Length)
    }
}
