//! The engine against the f64 reference of these tests, and against logits that are written down: on any machine.

mod support;

use rwkv_kernels::Codec;
use rwkv_model::{Feed, Logits, Model, ModelOptions};
use support::random::{Numbers, config};
use support::random_pack;
use support::reference::Reference;

fn worst(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let off = |(&a, &b): (&f32, &f64)| (f64::from(a) - b).abs();
    found.iter().zip(expected).map(off).fold(0.0, |worst, d| if d > worst || d.is_nan() { d } else { worst })
}

#[test]
fn logits_and_states_agree_with_the_formulas() {
    // Blocks, heads, head size.
    for (layers, heads, head_size) in
        [(1, 1, 16), (2, 3, 16), (3, 2, 32), (2, 1, 48), (2, 2, 64), (1, 1, 128)]
    {
        let name = format!("{layers} blocks, {heads} heads of {head_size}");
        let config = config(layers, heads, head_size);
        let (weights, packed) = random_pack(&config, 11, Codec::F32);
        let mut model = Model::open(&packed.path, ModelOptions::default().threads(2)).unwrap();
        let tokens = Numbers::new(3).tokens(24, config.vocab);
        let reference = Reference::new(&weights);
        let mut memory = reference.memory();
        let expected: Vec<f64> =
            tokens.iter().flat_map(|&token| reference.step(&mut memory, token)).collect();
        let mut state = model.new_state();
        let logits =
            model.step(&mut [Feed::new(&mut state, &tokens, Logits::All)]).unwrap().logits(0).to_vec();
        let off = worst(&logits, &expected);
        assert!(off < 1e-4, "{name}: logits off by {off:e}");
        assert_eq!(state.tokens(), tokens.len() as u64);
        for block in 0..layers {
            let off = worst(state.att_shift(block), &memory.att_x[block]);
            assert!(off < 1e-4, "{name}: att shift {block} off by {off:e}");
            let off = worst(state.ffn_shift(block), &memory.ffn_x[block]);
            assert!(off < 1e-4, "{name}: ffn shift {block} off by {off:e}");
            for head in 0..heads {
                let off = worst(&state.wkv(block, head), &memory.s[block][head].concat());
                assert!(off < 1e-4, "{name}: state {block}.{head} off by {off:e}");
            }
        }
    }
}

/// Logits of the reference, written down so that engine and reference cannot drift together.
#[test]
fn logits_are_those_written_down() {
    let text = include_str!("data/tiny-logits.json");
    let golden: serde_json::Value = serde_json::from_str(text).unwrap();
    let tokens: Vec<u32> = serde_json::from_value(golden["tokens"].clone()).unwrap();
    let expected: Vec<f64> = serde_json::from_value(golden["logits"].clone()).unwrap();
    let config = config(2, 3, 16);
    let (weights, packed) = random_pack(&config, 2024, Codec::F32);
    let reference = Reference::new(&weights);
    let mut memory = reference.memory();
    let computed: Vec<f64> = tokens.iter().flat_map(|&token| reference.step(&mut memory, token)).collect();
    if std::env::var_os("RWKV_WRITE_GOLDEN").is_some() {
        let round = |v: &f64| (v * 1e7).round() / 1e7;
        let rounded: Vec<f64> = computed.iter().map(round).collect();
        let json = serde_json::json!({ "tokens": tokens, "logits": rounded });
        std::fs::write("tests/data/tiny-logits.json", json.to_string()).unwrap();
        return;
    }
    assert_eq!(computed.len(), expected.len());
    let drift = computed.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(drift < 1e-6, "the reference is off by {drift:e}");
    let mut model = Model::open(&packed.path, ModelOptions::default().threads(1)).unwrap();
    let mut state = model.new_state();
    let logits = model.step(&mut [Feed::new(&mut state, &tokens, Logits::All)]).unwrap().logits(0).to_vec();
    let off = worst(&logits, &expected);
    assert!(off < 1e-4, "logits are off by {off:e}");
}
