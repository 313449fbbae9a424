//! The oracle's RWKV-X cases: logits and states of the official implementations.
//!
//! Not followed, in whole or from some call on:
//!
//! - `*-chunkprefill.*`, `old-all.*`, `old-default.long8100`: beyond the short limit the reference feeds a prompt in pieces that do not
//!   see each other, nor the cache, so that logits depend on how a prompt is split. Calls before that are followed.
//! - `old-topk.*`, `repo-sparse.*`, `repo-manage.*`: the first call is beyond the short limit, and attends to all rows or to its own piece;
//!   here each token attends as it would if it came alone. `rwkvx-steps.json` has the same prompt token by token.
//! - `old-compress.*`: the reference compresses between calls, and votes with the layer norm's output when a call has many
//!   tokens; here it is done between tokens, by the rule for one.
//! - `mem-*`: a prompt's attention memory replaces the cache, and tokens do not see themselves: it cannot be split at all.

mod support;

use std::collections::HashMap;

use rwkv_kernels::{Codec, KvFormat};
use rwkv_model::{Attention, Compression, Feed, Logits, Model, ModelOptions, State, TopK};
use safetensors::SafeTensors;
use serde_json::Value;
use support::{Packed, oracle, oracle_json, pack};

const TOLERANCE: f32 = 1e-4;

/// How many of a case's calls are followed, and by which policy; all if `None`.
fn followed(name: &str) -> Option<(Attention, Option<usize>)> {
    let (_, case) = name.split_once('.')?;
    match case {
        "old-default.long8100" => None,
        "repo-default.long8800" => Some((Attention::TopK(TopK::default()), Some(2))),
        _ if case.starts_with("old-full.") => Some((Attention::Full, None)),
        _ => None,
    }
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Option<Vec<f32>> {
    let tensor = file.tensor(name).ok()?;
    Some(tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect())
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let off = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    off.fold(0.0, |worst, d| if d > worst || d.is_nan() { d } else { worst })
}

fn open(packed: &Packed, attention: Attention) -> Model {
    let options = ModelOptions::default().threads(2).attention(attention).kv_format(KvFormat::F32);
    Model::open(&packed.path, options).unwrap()
}

fn run_call(model: &mut Model, state: &mut State, call: &Value) -> Vec<f32> {
    let tokens: Vec<u32> = serde_json::from_value(call["tokens"].clone()).unwrap();
    let mut step = |tokens: &[u32], logits| {
        model.step(&mut [Feed::new(state, tokens, logits)]).unwrap().logits(0).to_vec()
    };
    match call["mode"].as_str().unwrap() {
        "full" => step(&tokens, Logits::All),
        "last" => step(&tokens, Logits::Last),
        _ => tokens.iter().flat_map(|token| step(std::slice::from_ref(token), Logits::Last)).collect(),
    }
}

/// Everything of a state that the oracle may have a dump of.
fn dump(state: &State) -> Vec<(String, Vec<f32>)> {
    let config = state.identity().config().clone();
    let blocks = 0..config.layers;
    let mut all = vec![
        ("att_x".to_owned(), blocks.clone().flat_map(|b| state.att_shift(b).to_vec()).collect()),
        ("ffn_x".to_owned(), blocks.clone().flat_map(|b| state.ffn_shift(b).to_vec()).collect()),
        ("S".to_owned(), blocks.flat_map(|b| (0..config.heads).flat_map(move |h| state.wkv(b, h))).collect()),
    ];
    for block in 0..config.attention {
        let [keys, values] = state.keys_and_values(block);
        all.push((format!("k_cache.{block}"), keys));
        all.push((format!("v_cache.{block}"), values));
        all.push((format!("attn_ffn_x.{block}"), state.attention_shift(block).to_vec()));
    }
    all
}

#[test]
fn logits_and_states_agree_with_the_official_implementations() {
    let Some(index) = oracle_json("index.json") else { return };
    let mut packs: HashMap<String, Packed> = HashMap::new();
    let (mut cases, mut dumps, mut failures) = (0, 0, Vec::new());
    for case in index["cases"].as_array().unwrap() {
        let (name, file) = (case["name"].as_str().unwrap(), case["model"].as_str().unwrap());
        let Some((attention, most)) = followed(name) else { continue };
        cases += 1;
        let packed = packs
            .entry(file.to_owned())
            .or_insert_with(|| pack(&oracle(file).expect("a model of the oracle"), Codec::F32));
        let mut model = open(packed, attention);
        let bytes = std::fs::read(oracle(case["golden_file"].as_str().unwrap()).unwrap()).unwrap();
        let golden = SafeTensors::deserialize(&bytes).unwrap();
        let mut state = model.new_state();
        let calls = case["calls"].as_array().unwrap();
        for (j, call) in calls.iter().enumerate().take(most.unwrap_or(calls.len())) {
            let logits = run_call(&mut model, &mut state, call);
            let expected = floats(&golden, &format!("{name}.{j}")).expect("golden logits");
            let worst = distance(&logits, &expected);
            if worst > TOLERANCE || worst.is_nan() {
                failures.push(format!("{name}.{j}: logits off by {worst:e}"));
            }
        }
        for (tensor, values) in dump(&state).into_iter().filter(|_| most.is_none()) {
            if let Some(expected) = floats(&golden, &format!("{name}.state.{tensor}")) {
                dumps += 1;
                let worst = distance(&values, &expected);
                if worst > TOLERANCE || worst.is_nan() {
                    failures.push(format!("{name}.state.{tensor}: off by {worst:e}"));
                }
            }
        }
    }
    assert!(cases >= 14 && dumps >= 9, "{cases} cases and {dumps} state dumps are too few to be all of them");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A prompt fed token by token to the f64 reference, whose rule for one token is ours.
#[test]
fn chosen_chunks_and_compression_agree_with_the_reference_token_by_token() {
    let Some(file) = oracle("models/rwkvx-tiny.safetensors") else { return };
    let packed = pack(&file, Codec::F32);
    let steps: Value = serde_json::from_str(include_str!("data/rwkvx-steps.json")).unwrap();
    let tokens: Vec<u32> = serde_json::from_value(steps["tokens"].clone()).unwrap();
    for case in steps["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let compression = (name == "compressed").then_some(Compression { above: 80, keep: 48, window: 16 });
        let mut model = open(&packed, Attention::TopK(TopK { compression, ..TopK::new(16, 2) }));
        let mut state = model.new_state();
        let vocab = model.config().vocab;
        let logits =
            model.step(&mut [Feed::new(&mut state, &tokens, Logits::All)]).unwrap().logits(0).to_vec();
        let at: Vec<usize> = serde_json::from_value(case["at"].clone()).unwrap();
        let expected: Vec<Vec<f32>> = serde_json::from_value(case["logits"].clone()).unwrap();
        for (at, expected) in at.into_iter().zip(expected) {
            let worst = distance(&logits[at * vocab..][..expected.len()], &expected);
            assert!(worst < TOLERANCE, "{name}: token {at} off by {worst:e}");
        }
        let rows = state.keys_and_values(0)[0].len() / model.config().width;
        assert_eq!(rows as u64, case["rows"].as_u64().unwrap(), "{name}");
    }
}
