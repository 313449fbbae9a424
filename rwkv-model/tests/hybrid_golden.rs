//! The oracle's RWKV-X cases: logits and states of the official implementations.
//!
//! The reference has one rule for a call of many tokens, and another for a call of one. Here there is one, for each token, so a case is
//! followed as far as its calls are what some policy does token by token, and the state is given that policy before the call.
//!
//! | case | calls followed | why no more |
//! |---|---|---|
//! | `old-full.*` | all | |
//! | `old-topk.overflow` | all: prompts attend to all rows, steps choose chunks | |
//! | `old-compress.overflow` | 3 of 5, with two compressions | then a prompt compresses the cache, with votes by the layer norm's output instead of queries |
//! | `repo-default.long8800` | 2 of 4 | then a prompt is beyond the short limit: its pieces see neither each other nor the cache |
//! | `old-chunkprefill.overflow`, `old-all.overflow`, `repo-sparse.overflow`, `repo-manage.overflow` | the first 16 tokens | the first prompt is beyond the short limit: that is its first piece |
//! | `old-default.long8100` | none | the same, and only the last token has logits |
//! | `mem-*.chat` | the first | then the prompt's memory has replaced the cache, and tokens do not see themselves: it cannot be split |
//! | `mem-default.one` | none | a single token sees nothing, not itself |
//!
//! `rwkvx-steps.json` has the prompt of the `overflow` cases token by token, with chosen chunks and with compression.

mod support;

use std::collections::HashMap;

use rwkv_kernels::{Codec, KvFormat};
use rwkv_model::{Attention, Compression, Feed, Logits, Model, ModelOptions, State, TopK};
use safetensors::SafeTensors;
use serde_json::Value;
use support::{Packed, oracle, oracle_json, pack};

const TOLERANCE: f32 = 1e-4;

/// The policies of those calls of a case that are followed, which come before those that are not.
fn followed(name: &str, calls: usize) -> Vec<Attention> {
    let full = Attention::Full;
    let compression = Some(Compression { above: 80, keep: 48, window: 16 });
    let compressing = Attention::TopK(TopK { short_rows: 1000, compression, ..TopK::new(16, 2) });
    let choosing = Attention::TopK(TopK { short_rows: 48, ..TopK::new(16, 2) });
    match name.split_once('.').map_or("", |(_, case)| case) {
        "old-topk.overflow" => vec![full, choosing, full, full, choosing],
        "old-compress.overflow" => vec![full, compressing, full],
        "repo-default.long8800" => vec![Attention::TopK(TopK::default()); 2],
        case if case.starts_with("old-full.") => vec![full; calls],
        "old-default.long8100" | "mem-default.one" => Vec::new(),
        _ => vec![full],
    }
}

/// How many tokens of a case's first call are followed, if not all.
fn piece(name: &str) -> Option<usize> {
    let cases = ["old-chunkprefill.", "old-all.", "repo-sparse.", "repo-manage."];
    cases.iter().any(|case| name.contains(case)).then_some(16)
}

/// The same state with another policy, which a caller of the reference chooses for each call. Here it is written in the state.
fn attending(state: &State, attention: Attention) -> State {
    let file = tempfile::NamedTempFile::new().unwrap();
    state.save(file.path()).unwrap();
    let bytes = std::fs::read(file.path()).unwrap();
    let begin = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..begin]).unwrap();
    let metadata = &mut header["__metadata__"]["rwkv.state"];
    let mut told: Value = serde_json::from_str(metadata.as_str().unwrap()).unwrap();
    told["cache"]["attention"] = serde_json::to_value(attention).unwrap();
    *metadata = told.to_string().into();
    let mut header = header.to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &bytes[begin..]].concat();
    std::fs::write(file.path(), bytes).unwrap();
    let changed = State::load(file.path(), state.identity()).unwrap();
    assert_eq!((changed.attention(), changed.tokens()), (attention, state.tokens()));
    changed
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
    let (mut cases, mut calls_followed, mut dumps, mut failures) = (0, 0, 0, Vec::new());
    for case in index["cases"].as_array().unwrap() {
        let (name, file) = (case["name"].as_str().unwrap(), case["model"].as_str().unwrap());
        let calls = case["calls"].as_array().unwrap();
        if !name.starts_with("rwkvx-") {
            continue;
        }
        let policies = followed(name, calls.len());
        let Some(&first) = policies.first() else { continue };
        cases += 1;
        calls_followed += policies.len();
        let packed = packs
            .entry(file.to_owned())
            .or_insert_with(|| pack(&oracle(file).expect("a model of the oracle"), Codec::F32));
        let mut model = open(packed, first);
        let bytes = std::fs::read(oracle(case["golden_file"].as_str().unwrap()).unwrap()).unwrap();
        let golden = SafeTensors::deserialize(&bytes).unwrap();
        let mut state = model.new_state();
        for (j, (call, &attention)) in calls.iter().zip(&policies).enumerate() {
            if state.attention() != attention {
                state = attending(&state, attention);
            }
            let mut logits = run_call(&mut model, &mut state, call);
            let mut expected = floats(&golden, &format!("{name}.{j}")).expect("golden logits");
            if let Some(tokens) = piece(name) {
                let values = tokens * model.config().vocab;
                assert!(logits.len() > values && expected.len() == logits.len(), "{name}");
                logits.truncate(values);
                expected.truncate(values);
            }
            let worst = distance(&logits, &expected);
            if worst > TOLERANCE || worst.is_nan() {
                failures.push(format!("{name}.{j}: logits off by {worst:e}"));
            }
        }
        for (tensor, values) in dump(&state).into_iter().filter(|_| policies.len() == calls.len()) {
            if let Some(expected) = floats(&golden, &format!("{name}.state.{tensor}")) {
                dumps += 1;
                let worst = distance(&values, &expected);
                if worst > TOLERANCE || worst.is_nan() {
                    failures.push(format!("{name}.state.{tensor}: off by {worst:e}"));
                }
            }
        }
    }
    assert!(cases >= 23 && calls_followed >= 41, "{calls_followed} calls of {cases} cases are not all");
    assert!(dumps >= 18, "{dumps} tensors of states are not all");
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
