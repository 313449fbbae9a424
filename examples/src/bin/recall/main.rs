//! A model that is made here by hand, packed, and run: `recall [TEXT]`.
//!
//! It has no knowledge and one ability: it goes on as the text went on when the last token was read before. What
//! it says is what its recurrent state has learned from the prompt, so a right answer shows that the whole way
//! from tensors to text works. The pack stays in `target/recall.rwkv`, and is a model like any other.

mod weights;

use std::error::Error;
use std::ops::ControlFlow;

use rwkv_model::{ConvertOptions, GenerateOptions, Model, ModelOptions, Sampler, SamplerParams, convert};
use rwkv_tokenizer::Tokenizer;

const PACK: &str = "target/recall.rwkv";
const TEXT: &str = "A state remembers what it reads; weights do not. A state";

fn main() -> Result<(), Box<dyn Error>> {
    let text = std::env::args().nth(1).unwrap_or_else(|| TEXT.into());
    std::fs::create_dir_all("target")?;
    let options = ConvertOptions::default().tokenizer("rwkv_vocab_v20230424");
    let report = convert(&weights::Recall::new(), PACK, options)?;
    println!("{PACK}: {}, {} bytes", report.config, report.bytes);

    let world = Tokenizer::world();
    let mut model = Model::open(PACK, ModelOptions::default())?;
    let mut state = model.new_state();
    let mut sampler = Sampler::new(SamplerParams::greedy(), model.config().vocab)?;
    let bytes = |id: u32, out: &mut Vec<u8>| out.extend(world.token_bytes(id).unwrap_or_default());
    let options = GenerateOptions {
        max_tokens: Some(32),
        stop_strings: vec![b".".to_vec()],
        ..GenerateOptions::new(&bytes)
    };
    let prompt = world.encode(&text);
    let generated =
        model.generate(&mut state, &prompt, &mut sampler, &options, &mut |_| ControlFlow::Continue(()))?;
    println!("prompt: {text}");
    println!("answer: {}", world.decode_lossy(&generated.tokens));
    Ok(())
}
