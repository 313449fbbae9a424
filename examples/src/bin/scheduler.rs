//! Several sessions on one scheduler: one sweep over the weights is a token for each of them. Every text is that of the
//! same request alone.

use std::error::Error;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::channel;

use rwkv_model::{
    Model, ModelOptions, Request, SamplerParams, Scheduler, SchedulerOptions, SessionEvent, Sink,
};
use rwkv_tokenizer::Tokenizer;

const PROMPTS: [&str; 3] = [
    "A state remembers what it reads; weights do not. A state",
    "Open the door, then close the door, then open the",
    "One sweep serves all sessions, and each session has its own text. One",
];

fn main() -> Result<(), Box<dyn Error>> {
    let world = Tokenizer::world();
    let model = Model::open("target/recall.rwkv", ModelOptions::default().sessions(PROMPTS.len()))?;
    let bytes = |id, out: &mut Vec<u8>| out.extend(Tokenizer::world().token_bytes(id).unwrap_or_default());
    // The model goes to a thread of its own.
    let scheduler = Scheduler::start(model, SchedulerOptions::new(Arc::new(bytes)))?;

    let (sender, events) = channel();
    let mut requests = Vec::new();
    for (index, prompt) in PROMPTS.into_iter().enumerate() {
        let request = Request {
            params: SamplerParams::greedy(),
            max_tokens: Some(8),
            ..Request::new(world.encode(prompt))
        };
        // The scheduler calls it on the model's thread, so it only passes on what it is told.
        let sender = sender.clone();
        let sink: Sink = Box::new(move |event| match sender.send((index, event)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_closed) => ControlFlow::Break(()),
        });
        requests.push((request, sink));
    }
    drop(sender);
    scheduler.submit_all(requests)?;

    let mut texts = PROMPTS.map(|_| Vec::new());
    // Each sink goes with its session, and the last one closes the channel.
    for (index, event) in events {
        match event {
            SessionEvent::Token { bytes, .. } | SessionEvent::Rest { bytes } => texts[index].extend(bytes),
            SessionEvent::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    for text in texts {
        println!("{}", String::from_utf8_lossy(&text).trim());
    }
    println!("{} sessions: {} tokens", PROMPTS.len(), scheduler.stats().completion_tokens);
    Ok(())
}
