//! The demo model: what runs when no model is named.

#![cfg(feature = "demo")]

mod support;

use std::fs;
use std::path::PathBuf;

use safetensors::SafeTensors;
use support::{Ended, Lab, read_logits};

/// The likeliest token each time, from weights without loss.
const GREEDY: [&str; 9] =
    ["run", "--codec", "f32", "--greedy", "--max-tokens", "24", "--prompt", "The state of", "--stats"];
const GREEDY_TEXT: &str = " the Union, and the propriety of the propriety of";

fn greedy(more: &[&'static str]) -> Vec<&'static str> {
    [&GREEDY, more].concat()
}

fn packs(lab: &Lab) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(lab.path("cache/packs")) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

/// The number that stands before `what` in the statistics.
#[track_caller]
fn statistic(ended: &Ended, what: &str) -> u64 {
    let words: Vec<&str> = ended.stderr.split_whitespace().collect();
    let at =
        words.iter().position(|word| *word == what).unwrap_or_else(|| panic!("{what}: {}", ended.stderr));
    words[at - 1].parse().unwrap_or_else(|_| panic!("{what}: {}", ended.stderr))
}

#[test]
fn runs_when_no_model_is_named_and_is_packed_once() {
    let lab = Lab::empty();
    let first = lab.run_args(&GREEDY).ok();
    assert_eq!(first.text(), GREEDY_TEXT);
    assert!(first.stderr.contains("demo model") && first.stderr.contains("packing"), "{}", first.stderr);
    let [pack] = &*packs(&lab) else { panic!("one pack: {:?}", packs(&lab)) };
    let modified = || fs::metadata(pack).expect("the pack").modified().expect("a time");
    let time = modified();

    let again = lab.run_args(&GREEDY).ok();
    assert_eq!(again.text(), GREEDY_TEXT);
    assert!(again.stderr.contains("demo model") && !again.stderr.contains("packing"), "{}", again.stderr);
    assert_eq!(modified(), time);
    let quiet = lab.run_args(&greedy(&["--quiet"])).ok();
    assert_eq!((quiet.text(), &*quiet.stderr), (GREEDY_TEXT, ""));
}

#[test]
fn streams_unless_the_user_wants_otherwise() {
    let lab = Lab::empty();
    let streamed = lab.run_args(&GREEDY).ok();
    assert!(streamed.stderr.contains("streamed within"), "{}", streamed.stderr);
    // Every token has to read what does not stay.
    assert!(statistic(&streamed, "reads,") > 24 * 6, "{}", streamed.stderr);

    let resident = lab.run_args(&greedy(&["--residency", "resident"])).ok();
    assert!(resident.stderr.contains("in memory"), "{}", resident.stderr);
    let roomy = lab.run_args(&greedy(&["--ram", "64MiB"])).ok();
    assert!(roomy.stderr.contains("streamed within 64"), "{}", roomy.stderr);
    for other in [&resident, &roomy] {
        assert_eq!(other.text(), streamed.text());
    }
    assert_eq!(packs(&lab).len(), 1);
}

#[test]
fn talks_when_nothing_is_asked_for() {
    let lab = Lab::empty();
    let ended = lab.run("").ok();
    assert!(
        ended.text().starts_with("Fellow-Citizens of the Senate and House of Representatives:"),
        "{}",
        ended.text()
    );
    assert!(ended.text().len() > 400, "{}", ended.text());
    assert!(
        ended.stderr.contains("rwkv --help") && ended.stderr.contains("streamed within"),
        "{}",
        ended.stderr
    );
}

#[test]
fn can_be_named_and_refused() {
    let lab = Lab::new();
    lab.run("run --no-demo --prompt x").fails(2, "no model is named");
    lab.run("run --no-demo tiny.rwkv --prompt x").fails(2, "--no-demo");
    // A command that measures does not measure the demo model by mistake.
    lab.run("logits --tokens 1").fails(2, "<MODEL>");
    // A file of that name is still in reach.
    lab.run("run ./demo --prompt x").fails(1, "./demo");

    let facts = lab.run("inspect demo --json").ok().json();
    assert_eq!(facts["format"], "pack");
    assert_eq!(facts["tokenizer"], "rwkv_demo");
    assert_eq!(facts["model"]["config"]["vocab"], 2048);
    assert_eq!(lab.run_args(&greedy(&["demo"])).ok().text(), GREEDY_TEXT);
    // Another model has its own vocabulary.
    assert!(!lab.run("run tiny.rwkv --vocab tiny.vocab --prompt x -n 3").ok().stderr.contains("demo"));
}

#[test]
fn a_damaged_pack_is_made_again_and_an_old_one_removed() {
    let lab = Lab::empty();
    lab.run("plan demo --codec f32").ok();
    let [pack] = &*packs(&lab) else { panic!("one pack") };
    let bytes = fs::read(pack).expect("the pack");
    fs::write(pack, &bytes[..bytes.len() / 2]).expect("half a pack");
    lab.write("cache/packs/demo-0000000000000000.f32.rwkv", "what the demo model was before");
    lab.write("cache/packs/other-0000000000000000.f32.rwkv", "another model");
    assert_eq!(lab.run_args(&GREEDY).ok().text(), GREEDY_TEXT);
    assert!(fs::read(pack).expect("the pack") == bytes);
    assert_eq!(packs(&lab), [pack.clone(), lab.path("cache/packs/other-0000000000000000.f32.rwkv")]);
}

#[test]
fn chat_continues_what_is_written() {
    let lab = Lab::empty();
    let ended = lab.run_with("chat --codec f32 --greedy --max-tokens 8", b"The state of\nIn the next\n").ok();
    assert!(ended.stderr.contains("continues what you write"), "{}", ended.stderr);
    let answers: Vec<&str> = ended.text().lines().collect();
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert!(GREEDY_TEXT.trim_start().starts_with(answers[0]), "{answers:?}");
}

/// The reference is `training/reference.py` of the demo model: float64, token by token.
#[test]
fn logits_are_those_of_the_reference() {
    let golden = fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/demo.safetensors"))
        .expect("goldens");
    let golden = SafeTensors::deserialize(&golden).expect("a safetensors file");
    let integers = |name| {
        let data = golden.tensor(name).expect("integers").data();
        data.chunks_exact(8).map(|value| i64::from_le_bytes(value.try_into().expect("eight bytes"))).collect()
    };
    let (tokens, positions): (Vec<i64>, Vec<i64>) = (integers("tokens"), integers("positions"));
    let expected = golden.tensor("logits").expect("logits").data();
    let expected: Vec<f32> = expected
        .chunks_exact(4)
        .map(|value| f32::from_le_bytes(value.try_into().expect("four bytes")))
        .collect();
    let tokens: Vec<String> = tokens.iter().map(i64::to_string).collect();

    let lab = Lab::empty();
    for split in ["--chunk 64", "--step"] {
        let args = format!(
            "logits demo --codec f32 --kv f32 --all --output out.safetensors {split} --tokens {}",
            tokens.join(",")
        );
        lab.run(&args).ok();
        let (rows, found) = read_logits(&lab.path("out.safetensors"));
        assert_eq!(rows, tokens.len());
        let vocab = found.len() / rows;
        let mut worst = 0f32;
        for (position, expected) in positions.iter().zip(expected.chunks_exact(vocab)) {
            let found = &found[*position as usize * vocab..][..vocab];
            for (found, expected) in found.iter().zip(expected) {
                worst = worst.max((found - expected).abs());
            }
        }
        assert!(worst < 1e-4, "{split}: off by {worst}");
    }
}
