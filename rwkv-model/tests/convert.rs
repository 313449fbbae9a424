//! Conversion: what is in a pack, what is refused, and that nothing half-written is left.

mod support;

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use rwkv_kernels::Codec;
use rwkv_model::{
    Config, ConvertOptions, ConvertProgress, ErrorKind, Feed, Logits, Model, ModelOptions, Synthetic,
    WeightSource, convert,
};
use rwkv_pack::{Checkpoint, Pack};
use support::random::{Weights, config, weights};
use support::{oracle, pack, random_pack};

fn entries(dir: &Path) -> Vec<String> {
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = fs::read_dir(dir).unwrap().map(|entry| name(entry.unwrap())).collect();
    names.sort();
    names
}

#[test]
fn a_pack_has_its_groups_in_execution_order() {
    let config = config(2, 2, 16);
    let (_, packed) = random_pack(&config, 1, Codec::U8);
    let pack = Pack::open(&packed.path).unwrap();
    let manifest = pack.manifest();
    let groups: Vec<(&str, bool)> = manifest.groups.iter().map(|g| (g.name.as_str(), g.swept)).collect();
    assert_eq!(
        groups,
        [
            ("vectors", false),
            ("emb", false),
            ("blocks.0.att", true),
            ("blocks.0.key", true),
            ("blocks.0.value", true),
            ("blocks.1.att", true),
            ("blocks.1.key", true),
            ("blocks.1.value", true),
            ("head.0", true),
        ]
    );
    assert_eq!(manifest.model["family"], "rwkv7");
    assert_eq!(manifest.model["config"]["rank_g"], config.rank_g);
    pack.verify(|_, _| {}).unwrap();
    let listed: Vec<String> =
        manifest.groups.iter().flat_map(|group| group.tensors.iter().map(|t| t.name.clone())).collect();
    let reported: Vec<String> = packed.report.tensors.iter().map(|tensor| tensor.name.clone()).collect();
    assert_eq!(listed, reported);
    assert_eq!(packed.report.bytes, fs::metadata(&packed.path).unwrap().len());
}

#[test]
fn a_large_head_is_split_into_parts_of_whole_tiles() {
    let mut config = config(1, 1, 16);
    for (vocab, rows) in [(64, vec![64]), (65, vec![48, 17]), (130, vec![48, 48, 34]), (17, vec![17])] {
        config.vocab = vocab;
        let (_, packed) = random_pack(&config, 1, Codec::U8);
        let pack = Pack::open(&packed.path).unwrap();
        let heads = pack.manifest().groups.iter().filter(|group| group.name.starts_with("head."));
        let found: Vec<usize> = heads.map(|group| group.tensors[0].shape[0]).collect();
        assert_eq!(found, rows, "vocabulary {vocab}");
        let mut model = Model::open(&packed.path, ModelOptions::default().threads(2)).unwrap();
        let mut state = model.new_state();
        let logits = model.step(&mut [Feed::new(&mut state, &[1, 2], Logits::All)]).unwrap();
        assert_eq!(logits.logits(0).len(), 2 * vocab);
    }
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let config = config(2, 1, 32);
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(weights(&config, 3).save(dir.path())).unwrap();
    let files = [("a", 1), ("b", 3)].map(|(name, threads)| {
        let path = dir.path().join(name);
        convert(&checkpoint, &path, ConvertOptions::default().threads(threads)).unwrap();
        fs::read(path).unwrap()
    });
    assert!(files[0] == files[1]);
}

#[test]
fn formats_and_types_of_a_checkpoint_give_the_same_weights() {
    for name in ["rwkv7-tiny", "rwkv7-odd"] {
        let Some(safetensors) = oracle(&format!("models/{name}.safetensors")) else { return };
        let pth = oracle(&format!("models/{name}.pth")).unwrap();
        let [a, b] = [safetensors, pth].map(|path| {
            let packed = pack(&path, Codec::U8);
            let pack = Pack::open(&packed.path).unwrap();
            pack.manifest().groups.iter().map(|group| group.checksum).collect::<Vec<_>>()
        });
        assert_eq!(a, b, "{name}");
    }
}

fn refused(weights: &Weights, options: ConvertOptions<'_>) -> (ErrorKind, String) {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(weights.save(dir.path())).unwrap();
    let before = entries(dir.path());
    let error = convert(&checkpoint, dir.path().join("out.rwkv"), options).expect_err("it is refused");
    assert_eq!(entries(dir.path()), before, "nothing is left behind");
    (error.kind(), error.to_string())
}

#[test]
fn values_that_cannot_be_used_are_named() {
    let good = weights(&config(2, 1, 32), 1);
    let with = |name: &str, at: usize, value: f32| {
        let mut weights = good.clone();
        weights.get_mut(name)[at] = value;
        weights
    };
    let cases = [
        (with("blocks.1.att.w0", 3, f32::NAN), "tensor blocks.1.att.w0: element 3 is NaN"),
        (with("blocks.0.ln0.bias", 0, f32::INFINITY), "tensor blocks.0.ln0.bias: element 0 is inf"),
        (with("emb.weight", 5, f32::NEG_INFINITY), "tensor emb.weight: element 5 is -inf"),
        (
            with("emb.weight", 5, 1e38),
            "tensor emb.weight: element 5 is 100000000000000000000000000000000000000; expected a number that ln0 can norm",
        ),
        (
            with("blocks.1.att.key.weight", 33, f32::NAN),
            "tensor blocks.1.att.key.weight: element [1, 1] is NaN",
        ),
        (
            with("blocks.1.ffn.value.weight", 7, f32::NAN),
            "tensor blocks.1.ffn.value.weight: element [0, 7] is NaN",
        ),
        (with("blocks.1.att.g1", 20, f32::NAN), "tensor blocks.1.att.g1: element [1, 1] is NaN"),
        (with("head.weight", 32 * 68 + 1, f32::INFINITY), "tensor head.weight: element [68, 1] is inf"),
        (
            with("blocks.0.ffn.key.weight", 0, 1e38),
            "tensor blocks.0.ffn.key.weight: element [0, 0] is 100000000000000000000000000000000000000, too large for codec u8; use bf16 or f32 for it",
        ),
    ];
    for (weights, expected) in cases {
        let (kind, line) = refused(&weights, ConvertOptions::new(Codec::U8));
        assert!(kind == ErrorKind::Checkpoint && line.contains(expected), "{line}; expected {expected}");
    }
    let (_, line) = refused(&with("blocks.0.att.key.weight", 0, 70000.0), ConvertOptions::new(Codec::F16));
    assert!(line.contains("element [0, 0] is 70000, too large for codec f16"), "{line}");
}

#[test]
fn sixteen_bits_fall_back_where_f16_is_too_small() {
    let mut weights = weights(&config(2, 1, 32), 1);
    weights.get_mut("blocks.1.att.g2")[0] = 70000.0;
    weights.get_mut("blocks.0.ln0.weight")[0] = 20000.0;
    let dir = tempfile::tempdir().unwrap();
    let packed = pack(&weights.save(dir.path()), Codec::U8);
    let codec = |name: &str| packed.report.tensors.iter().find(|tensor| tensor.name == name).unwrap().codec;
    assert_eq!((codec("blocks.1.att.g2"), codec("blocks.1.att.g1")), (Codec::F32, Codec::F16));
    assert_eq!(codec("emb.weight"), Codec::F32);
    assert_eq!(packed.report.notes.len(), 2, "{:?}", packed.report.notes);
}

#[test]
fn progress_ends_at_the_total_and_can_cancel() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(weights(&config(2, 1, 32), 1).save(dir.path())).unwrap();
    let mut seen = Vec::new();
    let mut watch = |p: ConvertProgress<'_>| {
        seen.push((p.tensor.to_owned(), p.done_bytes, p.total_bytes));
        ControlFlow::Continue(())
    };
    let out = dir.path().join("out.rwkv");
    convert(&checkpoint, &out, ConvertOptions::default().progress(&mut watch)).unwrap();
    assert!(seen.windows(2).all(|pair| pair[0].1 <= pair[1].1), "never backwards");
    let (tensor, done, total) = seen.last().unwrap();
    assert_eq!(tensor, "head.0.weight");
    // The embedding's own norm is read on the way, not written.
    assert!(*done <= *total && *total - *done <= 2 * 4 * 32, "{done} of {total}");
    fs::remove_file(&out).unwrap();
    let before = entries(dir.path());
    for stop_at in 0..seen.len() {
        let mut left = stop_at;
        let mut cancel = |_: ConvertProgress<'_>| {
            if left == 0 {
                return ControlFlow::Break(());
            }
            left -= 1;
            ControlFlow::Continue(())
        };
        let error = convert(&checkpoint, &out, ConvertOptions::default().progress(&mut cancel)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert_eq!(entries(dir.path()), before, "nothing is left behind");
    }
}

#[test]
fn elements_that_are_no_floats_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = weights(&config(1, 1, 16), 1).save(dir.path());
    let bytes = fs::read(&path).unwrap();
    let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = std::str::from_utf8(&bytes[8..8 + header_len]).unwrap();
    let at = header.find("\"blocks.0.att.w0\":{\"dtype\":\"F32\"").expect("the tensor is listed");
    let mut changed = bytes.clone();
    let dtype = 8 + at + header[at..].find("F32").unwrap();
    changed[dtype..dtype + 3].copy_from_slice(b"I32");
    fs::write(&path, changed).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let error = convert(&checkpoint, dir.path().join("out"), ConvertOptions::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor blocks.0.att.w0 has elements of type I32; expected F32, F16 or BF16"
    );
}

#[test]
fn synthetic_models_run_and_skip_what_was_asked_for() {
    let config = Config { vocab: 500, ..config(3, 2, 64) };
    for share in [0.5, 0.85] {
        let source = Synthetic::new(config.clone(), 9).relu_zeros(share).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("synthetic.rwkv");
        convert(&source, &path, ConvertOptions::default()).unwrap();
        let mut model = Model::open(&path, ModelOptions::default().threads(2)).unwrap();
        let mut state = model.new_state();
        let tokens: Vec<u32> = (0..200).map(|i| i * 37 % 500).collect();
        let output = model.step(&mut [Feed::new(&mut state, &tokens, Logits::All)]).unwrap();
        let largest = output.logits(0).iter().fold(0.0f32, |largest, logit| largest.max(logit.abs()));
        assert!((1.0..30.0).contains(&largest), "logits of ordinary size: {largest}");
        let skipped = model.counters().skipped_share();
        assert!((skipped - share).abs() < 0.05, "{skipped} skipped of {share}");
        assert_eq!(model.manifest().source.len, source.byte_len());
    }
    for share in [0.0, 1.0, f64::NAN, -1.0] {
        assert!(Synthetic::new(config.clone(), 9).relu_zeros(share).is_err());
    }
}
