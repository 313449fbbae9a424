//! Requests and what came of them.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rwkv_model::{
    Finished, GenerateOptions, Model, ModelError, Request, Sampler, Scheduler, SchedulerOptions,
    SessionEvent, SubmitError, Ticket, is_uncounted_text,
};

/// What a test waits at most before it fails.
const WATCHDOG: Duration = Duration::from_secs(120);

/// Every token is two letters, but for a few that are digits.
pub fn letters(token: u32, out: &mut Vec<u8>) {
    match token {
        3..=5 => out.push(b'0' + token as u8),
        _ => out.extend([b'a' + (token / 26 % 26) as u8, b'a' + (token % 26) as u8]),
    }
}

/// Options with these letters.
pub fn options() -> SchedulerOptions {
    SchedulerOptions::new(Arc::new(letters))
}

/// A session under way.
pub struct Running {
    pub ticket: Ticket,
    pub events: Receiver<SessionEvent>,
}

/// What a session said.
#[derive(Debug, Default)]
pub struct Heard {
    pub reused: Option<usize>,
    /// Tokens fed, by event.
    pub prefill: Vec<usize>,
    pub tokens: Vec<u32>,
    pub text: Vec<u8>,
    pub logprobs: Vec<rwkv_model::TokenLogprobs>,
    pub finished: Option<Finished>,
    pub failed: Option<ModelError>,
}

impl Heard {
    /// Takes in an event; whether it was the last.
    pub fn push(&mut self, event: SessionEvent) -> bool {
        match event {
            SessionEvent::Started { reused, .. } => self.reused = Some(reused),
            SessionEvent::Prefill { done, .. } => self.prefill.push(done),
            SessionEvent::Token { id, bytes, logprobs } => {
                self.tokens.push(id);
                self.text.extend(bytes);
                self.logprobs.extend(logprobs);
            }
            SessionEvent::Rest { bytes } => self.text.extend(bytes),
            SessionEvent::Finished(finished) => self.finished = Some(*finished),
            SessionEvent::Failed(error) => self.failed = Some(error),
            other => panic!("an event that is not known: {other:?}"),
        }
        self.finished.is_some() || self.failed.is_some()
    }

    /// How it finished.
    pub fn end(&self) -> &Finished {
        self.finished.as_ref().unwrap_or_else(|| panic!("it failed: {:?}", self.failed))
    }
}

/// Submits a request.
pub fn submit(scheduler: &Scheduler, request: Request) -> Result<Running, SubmitError> {
    let (sender, events) = channel();
    let sink = move |event| match sender.send(event) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    };
    Ok(Running { ticket: scheduler.submit(request, Box::new(sink))?, events })
}

impl Running {
    /// The next event.
    pub fn next(&self) -> SessionEvent {
        self.events.recv_timeout(WATCHDOG).expect("the scheduler goes on")
    }

    /// Everything up to the end.
    pub fn wait(self) -> Heard {
        let mut heard = Heard::default();
        while !heard.push(self.next()) {}
        let more = self.events.recv_timeout(WATCHDOG);
        assert!(more.is_err(), "an event after the last: {more:?}");
        heard
    }
}

/// Runs a request to its end.
pub fn run(scheduler: &Scheduler, request: Request) -> Heard {
    submit(scheduler, request).expect("the request is good").wait()
}

/// What the same request generates without a scheduler: tokens and text.
pub fn alone(model: &mut Model, request: &Request) -> (Vec<u32>, Vec<u8>) {
    let sampler = Sampler::new(request.params.clone(), model.config().vocab).expect("good parameters");
    let mut sampler = sampler.uncounted(|token| {
        let mut bytes = Vec::new();
        letters(token, &mut bytes);
        is_uncounted_text(&bytes)
    });
    let mut state = request.state.clone().unwrap_or_else(|| model.new_state());
    let options = GenerateOptions {
        max_tokens: request.max_tokens,
        stop_tokens: request.stop_tokens.clone(),
        stop_strings: request.stop_strings.clone(),
        ..GenerateOptions::new(&letters)
    };
    let mut text = Vec::new();
    let mut on_event = |event: rwkv_model::Event<'_>| {
        if let rwkv_model::Event::Token { bytes, .. } | rwkv_model::Event::Rest { bytes } = event {
            text.extend_from_slice(bytes);
        }
        ControlFlow::Continue(())
    };
    let generated = model
        .generate(&mut state, &request.prompt, &mut sampler, &options, &mut on_event)
        .expect("it generates");
    (generated.tokens, text)
}
