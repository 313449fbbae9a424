//! The conversation: what was said, and what the model answers.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Result;
use rwkv_model::{
    ErrorKind, Event, FinishReason, GenerateOptions, Model, ModelError, Sampler, SamplerParams,
};

use super::ChatArgs;
use crate::console::Console;
use crate::demo;
use crate::interrupt::Interruptible;
use crate::output::Output;
use crate::progress::Progress;
use crate::session::{Session, Tail};
use crate::template::{self, BETWEEN, Think};
use crate::vocabulary::Vocabulary;

/// A model and what was said to it.
pub struct Conversation<'a> {
    args: &'a ChatArgs,
    model: Model,
    vocabulary: Vocabulary,
    session: Session,
    answers: u64,
    console: Console,
}

impl<'a> Conversation<'a> {
    /// A conversation in which nothing was said. Checks the arguments.
    pub fn new(
        args: &'a ChatArgs,
        model: Model,
        vocabulary: Vocabulary,
        console: Console,
    ) -> Result<Conversation<'a>> {
        let session = Session::new(model.new_state());
        let conversation = Conversation { args, model, vocabulary, session, answers: 0, console };
        conversation.sampler()?;
        Ok(conversation)
    }

    /// Forgets what was said.
    pub fn reset(&mut self) {
        self.session = Session::new(self.model.new_state());
    }

    /// Saves what was said.
    pub fn save(&self, path: &Path) -> Result<()> {
        self.session.save(path)
    }

    /// Goes on from what was said there.
    pub fn load(&mut self, path: &Path) -> Result<()> {
        self.session = Session::load(path, self.model.identity())?;
        Ok(())
    }

    /// Answers a message. If that fails, or is broken off before anything was said, the message was never sent.
    pub fn answer(&mut self, message: &str) -> Result<()> {
        let prompt = self.prompt(message)?;
        let before = self.session.clone();
        let result = self.generate(&prompt);
        match result {
            Ok(true) => self.answers += 1,
            _ => self.session = before,
        }
        result.map(drop)
    }

    /// The tokens of a message and of all that stands before it.
    fn prompt(&self, message: &str) -> Result<Vec<u32>> {
        let turn = template::turn(message, self.args.think);
        let text = if self.args.model.is_demo() {
            // It knows no turns: what it has said and what it is told are one text.
            format!("{}{message}", if self.session.is_new() { "" } else { " " })
        } else if self.session.is_new() {
            format!("{}{turn}", self.args.system.as_deref().map(template::system).unwrap_or_default())
        } else {
            self.session.tail.before(&turn)
        };
        let mut ids = self.session.tail.unfed.clone();
        let begin = ids.len();
        self.vocabulary.try_encode_into(text, &mut ids)?;
        self.vocabulary.check(&ids[begin..], self.model.config().vocab)?;
        Ok(ids)
    }

    /// Says the answer; whether there was one.
    fn generate(&mut self, prompt: &[u32]) -> Result<bool> {
        let section = Interruptible::begin();
        let mut sampler = self.sampler()?;
        let vocabulary = &self.vocabulary;
        let token_bytes = |id, text: &mut Vec<u8>| vocabulary.append(id, text);
        let options = GenerateOptions {
            max_tokens: self.args.max_tokens.or(self.args.model.is_demo().then_some(demo::ANSWER_TOKENS)),
            stop_strings: self.stops(),
            ..GenerateOptions::new(&token_bytes)
        };
        let mut speech = Speech::begin(self.args);
        let mut said = speech.opening();
        let mut progress = None;
        let mut released = 0;
        let console = self.console;
        let mut on_event = |event: Event<'_>| {
            match event {
                Event::Prefill { done, total } if done < total => {
                    let bar =
                        progress.get_or_insert_with(|| Progress::count(console, "reading", total as u64));
                    bar.set(done as u64);
                }
                Event::Token { bytes, .. } | Event::Rest { bytes } => {
                    progress = None;
                    released += bytes.len();
                    if said.is_ok() {
                        said = speech.say(bytes);
                    }
                }
                _ => {}
            }
            if said.is_err() || section.requested() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let generated =
            self.model.generate(&mut self.session.state, prompt, &mut sampler, &options, &mut on_event);
        // What was said so far is a line of its own.
        let said = said.and(speech.end());
        let generated = generated?;
        said?;
        if generated.finish == FinishReason::Memory {
            self.console.note(
                "(the memory for keys and values is full: /reset forgets the conversation, --kv-ram gives more)",
            );
        }
        if section.requested() {
            self.console.note("(stopped)");
        }
        if generated.tokens.is_empty() && section.requested() {
            return Ok(false);
        }
        self.session.tail = Tail::of_answer(&generated.tokens, generated.unfed, released, &self.vocabulary)?;
        Ok(true)
    }

    fn sampler(&self) -> Result<Sampler> {
        let params = self.args.model.sampler_params(SamplerParams::chat());
        self.args.sampling.sampler(params, &self.model, &self.vocabulary, self.answers)
    }

    fn stops(&self) -> Vec<Vec<u8>> {
        if self.args.stop.is_empty() {
            return vec![self.args.think.stop().into()];
        }
        self.args.stop.iter().map(|stop| stop.as_bytes().to_vec()).collect()
    }
}

/// Whether keys and values had no room.
pub fn is_out_of_memory(error: &anyhow::Error) -> bool {
    error.downcast_ref::<ModelError>().is_some_and(|error| error.kind() == ErrorKind::Budget)
}

/// An answer on its way to the user.
struct Speech {
    output: Output,
    think: Think,
    /// Whether it stands under a name.
    is_named: bool,
    /// Nothing but what is left out at the beginning was said so far.
    is_silent: bool,
}

impl Speech {
    fn begin(args: &ChatArgs) -> Speech {
        let is_named = !args.model.is_demo();
        Speech { output: Output::stdout(), think: args.think, is_named, is_silent: true }
    }

    fn opening(&mut self) -> std::io::Result<()> {
        if self.output.is_terminal() && self.is_named {
            self.output.bytes(b"Assistant: ")?;
        }
        if self.think.stop() != BETWEEN {
            self.output.bytes(self.think.opening().trim_start().as_bytes())?;
            self.is_silent = false;
        }
        self.output.flush()
    }

    /// Leaves out the blank at the beginning, and the bracket that closes thoughts that were skipped.
    fn say(&mut self, mut bytes: &[u8]) -> std::io::Result<()> {
        if self.is_silent {
            let is_left_out =
                |byte: &u8| byte.is_ascii_whitespace() || (self.think == Think::Skip && *byte == b'>');
            let begin = bytes.iter().position(|byte| !is_left_out(byte)).unwrap_or(bytes.len());
            bytes = &bytes[begin..];
            self.is_silent = bytes.is_empty();
        }
        self.output.text(bytes)
    }

    fn end(mut self) -> std::io::Result<()> {
        self.output.line("")?;
        if self.output.is_terminal() {
            self.output.line("")?;
        }
        self.output.finish()
    }
}
