//! All RWKV-7 cases of the oracle: logits and states of the official implementations.

mod support;

use std::collections::HashMap;
use std::ops::ControlFlow;

use rwkv_kernels::Codec;
use rwkv_model::{
    Event, Feed, FinishReason, GenerateOptions, Logits, Model, ModelOptions, Sampler, SamplerParams, State,
    is_uncounted_text,
};
use safetensors::SafeTensors;
use serde_json::Value;
use support::{Packed, oracle, oracle_json, pack};

/// What the official f32 implementations differ from f64 by, five times.
const TOLERANCE: f32 = 1e-4;
const MODELS: [&str; 3] = ["rwkv7-tiny", "rwkv7-odd", "rwkvcpp-tiny-7v0-834K"];

fn floats(file: &SafeTensors<'_>, name: &str) -> Option<(Vec<usize>, Vec<f32>)> {
    let tensor = file.tensor(name).ok()?;
    let values = tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    Some((tensor.shape().to_vec(), values))
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |worst, d| if d > worst || d.is_nan() { d } else { worst })
}

/// The logits of a call, by its mode.
fn run_call(model: &mut Model, state: &mut State, call: &Value) -> Vec<f32> {
    let tokens: Vec<u32> = serde_json::from_value(call["tokens"].clone()).unwrap();
    let logits = match call["mode"].as_str().unwrap() {
        "full" => Logits::All,
        "last" => Logits::Last,
        "step" => {
            let step = |token| {
                let mut feeds = [Feed::new(state, std::slice::from_ref(token), Logits::Last)];
                model.step(&mut feeds).unwrap().logits(0).to_vec()
            };
            return tokens.iter().flat_map(step).collect();
        }
        mode => panic!("unknown mode {mode}"),
    };
    model.step(&mut [Feed::new(state, &tokens, logits)]).unwrap().logits(0).to_vec()
}

fn state_distances(state: &State, golden: &SafeTensors<'_>, case: &str) -> Vec<(String, f32)> {
    let config = state.identity().config().clone();
    let blocks = 0..config.layers;
    let ours: [(&str, Vec<f32>); 3] = [
        ("att_x", blocks.clone().flat_map(|b| state.att_shift(b).to_vec()).collect()),
        ("ffn_x", blocks.clone().flat_map(|b| state.ffn_shift(b).to_vec()).collect()),
        ("S", blocks.flat_map(|b| (0..config.heads).flat_map(move |h| state.wkv(b, h))).collect()),
    ];
    let compare = |(name, ours): (&str, Vec<f32>)| {
        let name = format!("{case}.state.{name}");
        floats(golden, &name).map(|(_, values)| (name, distance(&ours, &values)))
    };
    ours.into_iter().filter_map(compare).collect()
}

#[test]
fn logits_and_states_agree_with_the_official_implementations() {
    let Some(index) = oracle_json("index.json") else { return };
    let mut packs: HashMap<String, Packed> = HashMap::new();
    let (mut cases, mut dumps, mut failures) = (0, 0, Vec::new());
    for case in index["cases"].as_array().unwrap() {
        let (name, file) = (case["name"].as_str().unwrap(), case["model"].as_str().unwrap());
        let is_ours = MODELS.iter().any(|model| file == format!("models/{model}.safetensors"));
        if !is_ours {
            continue;
        }
        cases += 1;
        let packed = packs
            .entry(file.to_owned())
            .or_insert_with(|| pack(&oracle(file).expect("a model of the oracle"), Codec::F32));
        let mut model = Model::open(&packed.path, ModelOptions::default().threads(2)).unwrap();
        let bytes = std::fs::read(oracle(case["golden_file"].as_str().unwrap()).unwrap()).unwrap();
        let golden = SafeTensors::deserialize(&bytes).unwrap();
        let mut state = model.new_state();
        for (j, call) in case["calls"].as_array().unwrap().iter().enumerate() {
            let logits = run_call(&mut model, &mut state, call);
            let (_, expected) = floats(&golden, &format!("{name}.{j}")).expect("golden logits");
            let worst = distance(&logits, &expected);
            if worst > TOLERANCE || worst.is_nan() {
                failures.push(format!("{name}.{j}: logits off by {worst:e}"));
            }
        }
        for (tensor, worst) in state_distances(&state, &golden, name) {
            dumps += 1;
            if worst > TOLERANCE || worst.is_nan() {
                failures.push(format!("{tensor}: off by {worst:e}"));
            }
        }
    }
    assert!(cases >= 16 && dumps >= 3, "{cases} cases and {dumps} state dumps are too few to be all of them");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Tokens 1 to 256 of the World vocabulary are the single bytes; of the other tokens that this model has, the penalty
/// spares none.
fn is_uncounted(token: u32) -> bool {
    (1..=256).contains(&token) && is_uncounted_text(&[(token - 1) as u8])
}

#[test]
fn greedy_generation_agrees_with_the_official_pipeline() {
    let Some(vectors) = oracle_json("sampler/vectors.json") else { return };
    let packed = pack(&oracle("models/rwkv7-tiny.safetensors").unwrap(), Codec::F32);
    let mut model = Model::open(&packed.path, ModelOptions::default().threads(2)).unwrap();
    let cases = vectors["generate_greedy"].as_array().unwrap();
    assert_eq!(cases.len(), 4);
    for (index, case) in cases.iter().enumerate() {
        let list = |name: &str| serde_json::from_value::<Vec<u32>>(case[name].clone()).unwrap();
        let arg = |name: &str, default: f32| case["args"][name].as_f64().map_or(default, |v| v as f32);
        let params = SamplerParams {
            top_p: 0.0,
            presence: arg("alpha_presence", 0.2),
            frequency: arg("alpha_frequency", 0.2),
            decay: arg("alpha_decay", 0.996),
            banned: serde_json::from_value(case["args"]["token_ban"].clone()).unwrap_or_default(),
            ..SamplerParams::default()
        };
        let mut sampler = Sampler::new(params, model.config().vocab).unwrap().uncounted(is_uncounted);
        let options = GenerateOptions {
            max_tokens: Some(case["token_count"].as_u64().unwrap() as usize),
            stop_tokens: Vec::new(),
            ..GenerateOptions::new(&|_, _| {})
        };
        let mut state = model.new_state();
        let mut go_on = |_: Event<'_>| ControlFlow::Continue(());
        let generated =
            model.generate(&mut state, &list("prompt_ids"), &mut sampler, &options, &mut go_on).unwrap();
        assert_eq!(generated.tokens, list("tokens"), "sequence {index}");
        assert_eq!(generated.finish, FinishReason::Length);
    }
}
