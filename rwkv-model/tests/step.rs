//! Steps at their edges: nothing to do, wrong tokens, values that run away, weights that cannot be read.

mod support;

use std::fs;

use rwkv_kernels::Codec;
use rwkv_model::{ErrorKind, Feed, Logits, Model, ModelOptions};
use rwkv_pack::Pack;
use support::random::{Numbers, config, weights};
use support::{pack, random_pack};

#[test]
fn nothing_to_do_is_no_error() {
    let config = config(2, 2, 16);
    let (_, packed) = random_pack(&config, 51, Codec::U8);
    let mut model = Model::open(&packed.path, ModelOptions::default().threads(2)).unwrap();
    model.step(&mut []).unwrap();
    let mut empty = model.new_state();
    let mut other = model.new_state();
    for logits in [Logits::None, Logits::Last, Logits::All] {
        let output = model.step(&mut [Feed::new(&mut empty, &[], logits)]).unwrap();
        assert!(output.logits(0).is_empty(), "{logits:?}");
    }
    assert_eq!(model.counters().sweeps, 0);
    let mut feeds = [Feed::new(&mut empty, &[], Logits::All), Feed::new(&mut other, &[3, 4], Logits::Last)];
    let output = model.step(&mut feeds).unwrap();
    assert_eq!((output.logits(0).len(), output.logits(1).len()), (0, config.vocab));
    assert!(empty == model.new_state());
    assert_eq!(other.tokens(), 2);
    assert!(model.prefill(&mut empty, &[], &mut |_| panic!("no progress")).unwrap().is_none());
}

#[test]
fn tokens_outside_the_vocabulary_touch_nothing() {
    // 17, 69 and 65529 tokens: more ids than rows is what a tokenizer of another model has.
    for vocab in [17, 69, 65529] {
        let config = rwkv_model::Config { vocab, ..config(1, 1, 16) };
        let (_, packed) = random_pack(&config, 52, Codec::U8);
        let mut model = Model::open(&packed.path, ModelOptions::default().threads(1)).unwrap();
        let mut good = model.new_state();
        let mut bad = model.new_state();
        for token in [vocab as u32, 65535, 70000, u32::MAX] {
            let tokens = [0, token];
            let mut feeds =
                [Feed::new(&mut good, &[1], Logits::Last), Feed::new(&mut bad, &tokens, Logits::Last)];
            let error = model.step(&mut feeds).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Token);
            assert_eq!(
                error.to_string(),
                format!("token {token} is not in the model's vocabulary of {vocab}")
            );
            assert!(good == model.new_state() && bad == model.new_state(), "untouched");
        }
        let last = [vocab as u32 - 1];
        let output = model.step(&mut [Feed::new(&mut good, &last, Logits::Last)]).unwrap();
        assert_eq!(output.logits(0).len(), vocab);
    }
}

#[test]
fn values_that_are_not_finite_name_the_block() {
    let config = config(3, 2, 16);
    for (tensor, value, expected) in [
        ("blocks.1.att.output.weight", 3e38, "the time mix of block 1"),
        ("blocks.2.ffn.value.weight", 3e38, "the channel mix of block 2"),
        ("blocks.0.att.ln_x.bias", 3.4e38, "the time mix of block 0"),
    ] {
        let mut weights = weights(&config, 53);
        weights.get_mut(tensor).fill(value);
        let dir = tempfile::tempdir().unwrap();
        let packed = pack(&weights.save(dir.path()), Codec::F32);
        let mut model = Model::open(&packed.path, ModelOptions::default().threads(2).chunk_rows(4)).unwrap();
        let mut states = [model.new_state(), model.new_state()];
        let [first, second] = &mut states;
        let tokens = Numbers::new(1).tokens(9, config.vocab);
        let mut feeds = [Feed::new(first, &[], Logits::Last), Feed::new(second, &tokens, Logits::Last)];
        let error = model.step(&mut feeds).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NonFinite);
        assert!(error.to_string().starts_with(expected), "{error}");
        assert!(error.to_string().contains("of feed 1"), "{error}");
        assert!(!states[0].is_poisoned(), "it was fed nothing");
        assert!(states[1].is_poisoned());
        let state = &mut states[1];
        let error = model.step(&mut [Feed::new(state, &[1], Logits::Last)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::State);
        assert!(state.save(dir.path().join("s")).is_err(), "a poisoned state is not saved");
        state.reset();
        assert!(*state == model.new_state());
    }
}

#[test]
fn extreme_decays_stay_finite() {
    let config = config(2, 2, 64);
    for w0 in [-1e4f32, -60.0, 60.0, 1e4] {
        let mut weights = weights(&config, 54);
        for block in 0..2 {
            weights.get_mut(&format!("blocks.{block}.att.w0")).fill(w0);
        }
        let dir = tempfile::tempdir().unwrap();
        let packed = pack(&weights.save(dir.path()), Codec::U8);
        let mut model = Model::open(&packed.path, ModelOptions::default().threads(2)).unwrap();
        let mut state = model.new_state();
        let tokens = Numbers::new(1).tokens(300, config.vocab);
        let output = model.step(&mut [Feed::new(&mut state, &tokens, Logits::All)]).unwrap();
        assert!(output.logits(0).iter().all(|logit| logit.is_finite()), "w0 {w0}");
    }
}

#[test]
fn activations_beyond_f16_are_no_problem() {
    let config = config(2, 2, 16);
    let mut weights = weights(&config, 55);
    weights.get_mut("blocks.0.ffn.value.weight").iter_mut().for_each(|w| *w *= 1e6);
    let dir = tempfile::tempdir().unwrap();
    for codec in [Codec::F32, Codec::Bf16] {
        let packed = pack(&weights.save(dir.path()), codec);
        let mut model = Model::open(&packed.path, ModelOptions::default().threads(1)).unwrap();
        let mut state = model.new_state();
        let output = model.step(&mut [Feed::new(&mut state, &[1, 2, 3], Logits::All)]).unwrap();
        assert!(output.logits(0).iter().all(|logit| logit.is_finite()), "{codec}");
    }
}

#[test]
fn a_transposed_square_matrix_shows_in_the_logits() {
    let config = config(2, 2, 16);
    let (weights, packed) = random_pack(&config, 56, Codec::F32);
    let logits = |path: &std::path::Path| {
        let mut model = Model::open(path, ModelOptions::default().threads(1)).unwrap();
        let mut state = model.new_state();
        model.step(&mut [Feed::new(&mut state, &[1, 2, 3, 4], Logits::Last)]).unwrap().logits(0).to_vec()
    };
    let right = logits(&packed.path);
    for matrix in ["receptance", "key", "value", "output"] {
        let mut wrong = weights.clone();
        let values = wrong.get_mut(&format!("blocks.1.att.{matrix}.weight"));
        let copy = values.to_vec();
        let n = config.width;
        (0..n * n).for_each(|i| values[i] = copy[i % n * n + i / n]);
        let dir = tempfile::tempdir().unwrap();
        let found = logits(&pack(&wrong.save(dir.path()), Codec::F32).path);
        let worst = right.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst > 1e-2, "{matrix}: {worst}");
    }
}

#[test]
fn a_damaged_pack_is_refused_with_its_group() {
    let config = config(2, 2, 16);
    let (_, packed) = random_pack(&config, 57, Codec::U8);
    let groups = Pack::open(&packed.path).unwrap().manifest().groups.clone();
    let good = fs::read(&packed.path).unwrap();
    for group in groups {
        let mut bad = good.clone();
        bad[group.offset as usize + 1] ^= 1;
        fs::write(&packed.path, bad).unwrap();
        let error = Model::open(&packed.path, ModelOptions::default().threads(1)).unwrap_err();
        let mut chain = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            chain += &format!(": {cause}");
            source = cause.source();
        }
        assert!(chain.contains(&group.name), "{}: {chain}", group.name);
    }
}

#[test]
fn packs_whose_manifest_contradicts_the_model_are_refused() {
    let config = config(2, 2, 16);
    let (_, packed) = random_pack(&config, 58, Codec::U8);
    let good = fs::read(&packed.path).unwrap();
    let text = String::from_utf8_lossy(&good).into_owned();
    // Values of the same length, so that nothing moves.
    for (from, to) in [
        ("\\\"layers\\\":2", "\\\"layers\\\":3"),
        ("\\\"layers\\\":2", "\\\"layers\\\":0"),
        ("\\\"heads\\\":2", "\\\"heads\\\":4"),
        ("\\\"width\\\":32", "\\\"width\\\":64"),
        ("\\\"vocab\\\":69", "\\\"vocab\\\":99"),
        ("\\\"vocab\\\":69", "\\\"vocab\\\":16"),
        ("\\\"rank_g\\\":19", "\\\"rank_g\\\":20"),
        ("\\\"ffn\\\":104", "\\\"ffn\\\":999"),
        ("rwkv7", "rwkv9"),
        ("\\\"codec\\\":\\\"u8\\\"", "\\\"codec\\\":\\\"u4\\\""),
        ("\\\"codec\\\":\\\"u8\\\"", "\\\"codec\\\":\\\"zz\\\""),
        ("\\\"layout\\\":\\\"columns\\\"", "\\\"layout\\\":\\\"rolumns\\\""),
        ("\\\"layout\\\":\\\"vector\\\"", "\\\"layout\\\":\\\"victor\\\""),
    ] {
        assert!(text.contains(from), "{from} in {}", &text[..2000]);
        let at = good.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        let mut bad = good.clone();
        bad[at..at + to.len()].copy_from_slice(to.as_bytes());
        fs::write(&packed.path, bad).unwrap();
        let error = Model::open(&packed.path, ModelOptions::default().threads(1)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Pack | ErrorKind::Unsupported), "{to}: {error}");
    }
}
