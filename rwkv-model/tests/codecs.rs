//! Every codec runs, and stays as near to f32 as its number of bits allows.

mod support;

use rwkv_kernels::Codec;
use rwkv_model::{ConvertOptions, Feed, Logits, Model, ModelOptions, convert};
use rwkv_pack::Checkpoint;
use support::random::{Numbers, config, weights};
use support::{pack, random_pack};

fn logits(path: &std::path::Path, tokens: &[u32]) -> Vec<f32> {
    let mut model = Model::open(path, ModelOptions::default().threads(2)).unwrap();
    let mut state = model.new_state();
    model.step(&mut [Feed::new(&mut state, tokens, Logits::All)]).unwrap().logits(0).to_vec()
}

/// The root mean square of the difference, as a share of that of the expected values.
fn relative_error(found: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let off: f64 = found.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    (off / expected.iter().map(|&b| square(b)).sum::<f64>()).sqrt()
}

#[test]
fn codecs_stay_near_f32() {
    let config = config(3, 2, 64);
    let (weights, packed) = random_pack(&config, 21, Codec::F32);
    let tokens = Numbers::new(2).tokens(30, config.vocab);
    let exact = logits(&packed.path, &tokens);
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = weights.save(dir.path());
    for (codec, low, high) in [
        (Codec::F32, 0.0, 0.0),
        (Codec::F16, 1e-6, 2e-3),
        (Codec::Bf16, 1e-4, 2e-2),
        (Codec::U8, 1e-4, 4e-2),
        (Codec::I8, 1e-4, 8e-2),
        (Codec::U4, 1e-3, 0.4),
    ] {
        let found = logits(&pack(&checkpoint, codec).path, &tokens);
        let error = relative_error(&found, &exact);
        assert!(
            (low..=high).contains(&error),
            "{codec}: relative error {error:e}, expected {low:e} to {high:e}"
        );
    }
}

/// The recipe: which matrices take another codec than the one that was asked for.
#[test]
fn what_is_sensitive_has_eight_bits_where_the_rest_has_four() {
    let config = config(1, 1, 64);
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(weights(&config, 1).save(dir.path())).unwrap();
    let out = dir.path().join("recipe.rwkv");
    let codecs = |options: ConvertOptions<'_>| {
        let report = convert(&checkpoint, &out, options).unwrap();
        ["blocks.0.att.key.weight", "blocks.0.ffn.value.weight", "blocks.0.ffn.key.weight", "head.0.weight"]
            .map(|name| report.tensors.iter().find(|tensor| tensor.name == name).unwrap().codec)
    };
    for (codec, expected) in [
        (Codec::F16, [Codec::F16; 4]),
        (Codec::U8, [Codec::U8; 4]),
        (Codec::I8, [Codec::I8, Codec::U8, Codec::I8, Codec::I8]),
        (Codec::U4, [Codec::U4, Codec::U4, Codec::U8, Codec::U8]),
    ] {
        assert_eq!(codecs(ConvertOptions::new(codec)), expected, "{codec}");
    }
    let all = ConvertOptions::new(Codec::U4).override_codec("*", Codec::U4);
    assert_eq!(codecs(all), [Codec::U4; 4]);
}

#[test]
fn overrides_take_the_last_pattern_that_matches() {
    let config = config(2, 1, 64);
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(weights(&config, 1).save(dir.path())).unwrap();
    let out = dir.path().join("mixed.rwkv");
    let options = ConvertOptions::new(Codec::I8)
        .override_codec("blocks.*", Codec::U4)
        .override_codec("blocks.1.att.key.weight", Codec::F32)
        .override_codec("*.w1", Codec::F32)
        .override_codec("emb.*", Codec::Bf16);
    let report = convert(&checkpoint, &out, options).unwrap();
    let codec = |name: &str| report.tensors.iter().find(|tensor| tensor.name == name).unwrap().codec;
    for (name, expected) in [
        ("blocks.0.att.key.weight", Codec::U4),
        ("blocks.1.att.key.weight", Codec::F32),
        ("blocks.1.att.w1", Codec::F32),
        ("blocks.1.att.w2", Codec::U4),
        ("blocks.1.ffn.value.weight", Codec::U4),
        ("head.0.weight", Codec::I8),
        ("emb.weight", Codec::Bf16),
        ("blocks.0.ln1.weight", Codec::F32),
    ] {
        assert_eq!(codec(name), expected, "{name}");
    }
    assert_eq!(logits(&out, &[1, 2, 3]).len(), 3 * config.vocab);
    for (pattern, codec) in [("blocks.9.*", Codec::U8), ("emb.weight", Codec::U8), ("*.ln1.*", Codec::F32)] {
        let error = convert(&checkpoint, &out, ConvertOptions::new(Codec::U8).override_codec(pattern, codec));
        assert_eq!(
            error.unwrap_err().to_string(),
            format!("pattern {pattern:?} matches no matrix that can take its codec")
        );
    }
}

#[test]
fn i8_gives_the_value_matrices_u8_and_says_so() {
    let config = config(2, 1, 64);
    let (_, packed) = random_pack(&config, 1, Codec::I8);
    let of = |name: &str| packed.report.tensors.iter().find(|tensor| tensor.name == name).unwrap().codec;
    assert_eq!((of("blocks.1.ffn.key.weight"), of("blocks.1.ffn.value.weight")), (Codec::I8, Codec::U8));
    assert_eq!(packed.report.notes, ["ffn.value matrices: u8, as i8 has no columns"]);
}
