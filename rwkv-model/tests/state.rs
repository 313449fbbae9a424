//! States: values that are cloned, compared, saved and restored, and never mixed up.

mod support;

use std::fs;

use rwkv_kernels::Codec;
use rwkv_model::{ErrorKind, Feed, Logits, Model, ModelOptions, State};
use support::random::{Numbers, config};
use support::{Packed, random_pack};

fn setup() -> (Packed, Model, Vec<u32>) {
    let config = config(2, 2, 16);
    let (_, packed) = random_pack(&config, 31, Codec::U8);
    let model = Model::open(&packed.path, ModelOptions::default().threads(1)).unwrap();
    let tokens = Numbers::new(1).tokens(30, config.vocab);
    (packed, model, tokens)
}

fn feed(model: &mut Model, state: &mut State, tokens: &[u32]) -> Vec<u32> {
    let output = model.step(&mut [Feed::new(state, tokens, Logits::All)]).unwrap();
    output.logits(0).iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn a_restored_state_goes_on_with_the_same_bits() {
    let (packed, mut model, tokens) = setup();
    let path = packed.dir.path().join("Загрузки модель.state");
    let mut state = model.new_state();
    feed(&mut model, &mut state, &tokens[..20]);
    state.save(&path).unwrap();
    let mut restored = State::load(&path, model.identity()).unwrap();
    assert!(restored == state);
    assert_eq!(restored.tokens(), 20);
    assert_eq!(feed(&mut model, &mut restored, &tokens[20..]), feed(&mut model, &mut state, &tokens[20..]));
    assert!(restored == state);
    // Saving replaces what was there, whole.
    state.save(&path).unwrap();
    assert!(model.load_state(&path).unwrap() == state);
    let names: Vec<_> = fs::read_dir(packed.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "nothing temporary stays: {names:?}");
}

#[test]
fn a_state_of_a_prefix_goes_on_as_if_never_stopped() {
    let (_packed, mut model, tokens) = setup();
    let mut whole = model.new_state();
    let all = feed(&mut model, &mut whole, &tokens);
    let vocab = model.config().vocab;
    for prefix in [0, 10, 20, 29] {
        let mut state = model.new_state();
        feed(&mut model, &mut state, &tokens[..prefix]);
        let mut copy = state.clone();
        let rest = feed(&mut model, &mut copy, &tokens[prefix..]);
        assert_eq!(rest, all[prefix * vocab..], "resumed after {prefix}");
        assert!(copy == whole);
        assert_eq!(state.tokens(), prefix as u64, "the original is untouched");
    }
}

#[test]
fn sessions_do_not_leak_into_each_other() {
    let (_packed, mut model, tokens) = setup();
    let run = |model: &mut Model, tokens: &[u32]| {
        let mut state = model.new_state();
        feed(model, &mut state, tokens)
    };
    let first = run(&mut model, &tokens[..9]);
    run(&mut model, &tokens[9..]);
    assert_eq!(run(&mut model, &tokens[..9]), first);
    let mut state = model.new_state();
    feed(&mut model, &mut state, &tokens);
    state.reset();
    assert!(state == model.new_state());
    assert_eq!(feed(&mut model, &mut state, &tokens[..9]), first);
}

#[test]
fn accessors_give_value_before_key() {
    let (_packed, mut model, tokens) = setup();
    let mut state = model.new_state();
    feed(&mut model, &mut state, &tokens[..1]);
    // After one token the state is v k^T: its rows are multiples of each other.
    let n = model.config().head_size;
    let s = state.wkv(0, 1);
    let determinant =
        |a: usize, b: usize, c: usize, d: usize| s[a * n + c] * s[b * n + d] - s[a * n + d] * s[b * n + c];
    assert!(s.iter().any(|x| x.abs() > 1e-3));
    assert!(determinant(0, 1, 2, 3).abs() < 1e-6);
    let norm = s.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    assert!((f64::from(state.wkv_norm(0, 1)) - norm).abs() < 1e-6 * norm);
    assert_eq!(state.att_shift(1).len(), model.config().width);
    assert_eq!(state.bytes(), model.config().state_bytes());
}

#[test]
fn a_state_of_another_model_is_refused() {
    let (packed, mut model, tokens) = setup();
    let path = packed.dir.path().join("s");
    let mut state = model.new_state();
    feed(&mut model, &mut state, &tokens);
    state.save(&path).unwrap();
    for (seed, other) in [(32, config(2, 2, 16)), (31, config(3, 2, 16)), (31, config(2, 1, 32))] {
        let (_, other) = random_pack(&other, seed, Codec::U8);
        let mut other = Model::open(&other.path, ModelOptions::default().threads(1)).unwrap();
        let error = other.load_state(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::State, "{error}");
        let before = state.clone();
        let error = other.step(&mut [Feed::new(&mut state, &[1], Logits::Last)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::State, "{error}");
        assert!(state == before, "untouched");
    }
    // The same checkpoint in another codec is the same model.
    let (_, same) = random_pack(&config(2, 2, 16), 31, Codec::F16);
    let same = Model::open(&same.path, ModelOptions::default().threads(1)).unwrap();
    assert!(same.load_state(&path).unwrap() == state);
}

#[test]
fn damaged_files_are_refused() {
    let (packed, mut model, tokens) = setup();
    let path = packed.dir.path().join("s");
    let mut state = model.new_state();
    feed(&mut model, &mut state, &tokens);
    state.save(&path).unwrap();
    let good = fs::read(&path).unwrap();
    let header_len = u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(good[8..8 + header_len].to_vec()).unwrap();
    let with_header = |header: String| {
        let mut header = header.into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        [&(header.len() as u64).to_le_bytes()[..], &header, &good[8 + header_len..]].concat()
    };
    let replaced = |from: &str, to: &str| {
        assert!(header.contains(from), "{from} in {header}");
        with_header(header.replace(from, to))
    };
    let mut not_finite = good.clone();
    let end = not_finite.len();
    not_finite[end - 4..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let mut longer = good.clone();
    longer.extend([0; 64]);
    let mut huge = good.clone();
    huge.resize(good.len() + (1 << 17), 0);
    let mut cases = vec![
        ("empty", Vec::new(), "no state file"),
        ("HTML", b"<!DOCTYPE html><html></html>".to_vec(), "no state file"),
        ("trailing bytes", longer, "no state file"),
        ("too long", huge, "expected a state of this model, of at most"),
        ("infinity", not_finite, "is inf; expected a finite number"),
        ("other key", replaced("rwkv.state", "rwkv.stats"), "no rwkv.state"),
        (
            "newer version",
            replaced("\\\"version\\\":1", "\\\"version\\\":2"),
            "has state version 2; expected 1",
        ),
        (
            "no version",
            replaced("\\\"version\\\":1", "\\\"version\\\":-1"),
            "has state version none; expected 1",
        ),
        ("bad metadata", replaced("\\\"tokens\\\":30", "\\\"tokens\\\":-1"), "unreadable metadata"),
        (
            "too many tokens",
            replaced("\\\"tokens\\\":30", "\\\"tokens\\\":18446744073709551615"),
            "has seen 18446744073709551615 tokens",
        ),
        ("other model", replaced("\\\"layers\\\":2", "\\\"layers\\\":4"), "belongs to RWKV-7, 4 blocks"),
        ("other tensor", replaced("\"ffn_x\"", "\"ffn_y\""), "tensor ffn_x is missing"),
        ("other type", replaced("\"F32\"", "\"I32\""), "expected F32"),
        (
            "other shape",
            replaced("[2,2,16,16]", "[2,2,8,32]"),
            "tensor S is F32 [2, 2, 8, 32]; expected F32 [2, 2, 16, 16]",
        ),
    ];
    for sixteenth in 0..16 {
        cases.push(("truncated", good[..good.len() * sixteenth / 16].to_vec(), "no state file"));
    }
    let mut failures = Vec::new();
    for (name, bytes, expected) in cases {
        fs::write(&path, &bytes).unwrap();
        match model.load_state(&path) {
            Ok(_) => failures.push(format!("{name}: loaded")),
            Err(error) => {
                let line = error.to_string();
                if error.kind() != ErrorKind::State || !line.contains(expected) || !line.contains("/s: ") {
                    failures.push(format!("{name}: {line}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(model.load_state(packed.dir.path()).is_err(), "a directory");
    assert!(model.load_state(packed.dir.path().join("absent")).is_err());
    assert!(state.save(packed.dir.path().join("no/such/directory/s")).is_err());
}
