//! Text from a pack, in ten lines: `generate PACK PROMPT [TOKENS]`.

use std::error::Error;
use std::io::Write;
use std::ops::ControlFlow;

use rwkv_model::{Event, GenerateOptions, Model, ModelOptions, Sampler, SamplerParams};
use rwkv_tokenizer::Tokenizer;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [pack, prompt, rest @ ..] = &args[..] else {
        return Err("usage: generate PACK PROMPT [TOKENS]".into());
    };
    let limit = rest.first().map_or(Ok(100), |tokens| tokens.parse())?;

    let world = Tokenizer::world();
    let mut model = Model::open(pack, ModelOptions::default())?;
    let mut state = model.new_state();
    let mut sampler = Sampler::new(SamplerParams::default(), model.config().vocab)?;
    let bytes = |id: u32, out: &mut Vec<u8>| out.extend(world.token_bytes(id).unwrap_or_default());
    let options = GenerateOptions { max_tokens: Some(limit), ..GenerateOptions::new(&bytes) };
    let mut on_event = |event: Event<'_>| match event {
        Event::Token { bytes, .. } | Event::Rest { bytes } => match std::io::stdout().write_all(bytes) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_closed) => ControlFlow::Break(()),
        },
        _ => ControlFlow::Continue(()),
    };
    model.generate(&mut state, &world.encode(prompt), &mut sampler, &options, &mut on_event)?;
    println!();
    Ok(())
}
