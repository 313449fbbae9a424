//! States and steps: several sessions in one sweep over the weights, each with the bits that it has alone.

use std::error::Error;

use rwkv_model::{Config, ConvertOptions, Feed, Logits, Model, ModelOptions, Synthetic, convert};

const PACK: &str = "target/sessions.rwkv";
const STATE: &str = "target/sessions.state";

fn main() -> Result<(), Box<dyn Error>> {
    let config = Config {
        layers: 2,
        width: 128,
        heads: 2,
        head_size: 64,
        ffn: 512,
        vocab: 1000,
        rank_w: 16,
        rank_a: 16,
        rank_v: 16,
        rank_g: 32,
        attention: 0,
    };
    std::fs::create_dir_all("target")?;
    convert(&Synthetic::new(config, 7), PACK, ConvertOptions::default())?;
    let mut model = Model::open(PACK, ModelOptions::default())?;
    println!("{}", model.config());

    // A prompt of many tokens and a session that goes on by one token share a step.
    let prompt: Vec<u32> = (1..=70).collect();
    let (mut long, mut short) = (model.new_state(), model.new_state());
    let mut feeds = [Feed::new(&mut long, &prompt, Logits::Last), Feed::new(&mut short, &[5], Logits::Last)];
    let together = model.step(&mut feeds)?.logits(0).to_vec();

    // The same prompt alone, token by token.
    let mut alone = model.new_state();
    let mut logits = Vec::new();
    for &token in &prompt {
        logits = model.step(&mut [Feed::new(&mut alone, &[token], Logits::Last)])?.logits(0).to_vec();
    }
    assert!(alone == long && logits == together);
    println!("{} tokens: in company and at once, or alone and one by one, the same bits", alone.tokens());

    // A state is a value: keep a copy, go on in two ways, restore one from a file.
    let mut branch = long.clone();
    model.step(&mut [Feed::new(&mut branch, &[900], Logits::None)])?;
    assert!(branch != long);
    long.save(STATE)?;
    let restored = model.load_state(STATE)?;
    assert!(restored == alone);
    println!("a state of {} bytes: cloned, saved and restored", restored.bytes());
    Ok(())
}
