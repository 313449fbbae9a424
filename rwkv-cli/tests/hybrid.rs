//! RWKV-X through the commands that run RWKV-7: from every spelling and format, streamed, with states and chats, within a budget.

mod support;

use std::fs;

use rwkv_model::kernels::Codec;
use rwkv_model::{Config, ConvertOptions, Synthetic, convert};
use support::{Ended, Lab, VOCAB, config, oracle, read_logits, safetensors};

const RUN: &str = "run x.rwkv --vocab tiny.vocab --greedy --ban-token 0 --json";

fn lab() -> Lab {
    let lab = Lab::new();
    lab.hybrid("x.rwkv");
    lab
}

fn synthetic(layers: usize, attention: usize) -> Synthetic {
    Synthetic::new(Config { layers, attention, ..config(VOCAB) }, 1)
}

fn tokens(ended: Ended) -> Vec<u64> {
    let json = ended.ok().json();
    json["tokens"].as_array().expect("tokens").iter().map(|id| id.as_u64().expect("an id")).collect()
}

/// A checkpoint whose tensors have other names of the same length or another one.
fn respelled(checkpoint: &[u8], name: impl Fn(&str) -> String) -> Vec<u8> {
    let begin = 8 + u64::from_le_bytes(checkpoint[..8].try_into().expect("eight bytes")) as usize;
    let header: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&checkpoint[8..begin]).expect("a header");
    let header: serde_json::Map<_, _> = header.into_iter().map(|(old, entry)| (name(&old), entry)).collect();
    let header = serde_json::to_vec(&header).expect("JSON");
    [&(header.len() as u64).to_le_bytes()[..], &header, &checkpoint[begin..]].concat()
}

#[test]
fn every_spelling_and_format_is_the_same_model() {
    let lab = Lab::new();
    let plain = safetensors(&synthetic(4, 2));
    let official = |name: &str| if name.starts_with("moba.") { name.into() } else { format!("rwkv.{name}") };
    let converted = |name: &str| match name.strip_prefix("moba.") {
        Some(rest) => format!("moba.blocks.{rest}"),
        None if name.starts_with("blocks.") => format!("rwkv.{name}"),
        None => name.into(),
    };
    lab.write("official.safetensors", respelled(&plain, official));
    lab.write("converted.safetensors", respelled(&plain, converted));
    lab.write("plain.safetensors", plain);
    let mut models =
        vec![["plain", "official", "converted"].map(|name| format!("{name}.safetensors")).to_vec()];
    for name in ["rwkvx-tiny", "rwkvx-single", "rwkvx-remainder"] {
        let files = ["pth", "safetensors"].map(|format| format!("{name}.{format}"));
        let found = files.iter().filter_map(|file| Some((file, oracle(&format!("models/{file}"))?)));
        found.for_each(|(file, path)| {
            fs::copy(path, lab.path(file)).expect("a copy");
        });
        if lab.path(&files[0]).exists() {
            models.push(files.to_vec());
        }
    }
    for files in models {
        let logits = files.iter().map(|file| {
            // Packs lie beside their checkpoints, by names that the formats share.
            let _ = fs::remove_file(lab.path(file).with_extension("u8.rwkv"));
            lab.run(&format!("logits {file} --tokens 5,6,7,80,31 --all -o logits")).ok();
            read_logits(&lab.path("logits"))
        });
        let logits: Vec<_> = logits.collect();
        assert!(logits.windows(2).all(|pair| pair[0] == pair[1]), "{files:?}");
    }
}

#[test]
fn streaming_threads_and_splits_change_nothing() {
    let lab = lab();
    lab.write("prompt", "User: all the things, and the others ".repeat(9));
    let run = format!("{RUN} --prompt-file prompt -n 12");
    for policy in ["full", "window:70", "top-k:16,2"] {
        let run = format!("{run} --attention {policy}");
        let expected = tokens(lab.run(&format!("{run} --residency resident")));
        assert_eq!(expected.len(), 12);
        let plan = lab.run(&format!("plan x.rwkv --no-probe --json --attention {policy}")).ok().json();
        let smallest = plan["smallest_budget"].as_u64().expect("bytes");
        for ram in [smallest + 200_000, smallest + 400_000, 2 * smallest] {
            for options in ["", "--read-ahead off", "--read-ahead next --io buffered", "--threads 3"] {
                let found = tokens(lab.run(&format!("{run} --ram {ram} {options}")));
                assert_eq!(found, expected, "{policy}, --ram {ram} {options}");
            }
        }
    }
}

#[test]
fn a_state_goes_on_with_the_policy_that_it_was_begun_with() {
    let lab = lab();
    let prompt = "-p User:abcdefghijklmnop";
    for policy in ["full", "window:9", "top-k:4,2"] {
        let whole = tokens(lab.run(&format!("{RUN} {prompt} -n 20 --attention {policy} --kv f32")));
        let first = lab.run(&format!("{RUN} {prompt} -n 8 --attention {policy} --kv f32 --save-state s"));
        let first = tokens(first);
        let second = tokens(lab.run(&format!("{RUN} --state s -n 12")));
        assert_eq!([first, second].concat(), whole, "{policy}");
    }
}

#[test]
fn a_conversation_goes_on_from_a_saved_state() {
    let lab = lab();
    let chat = "chat x.rwkv --vocab tiny.vocab --greedy --quiet -n 6 --ban-token 0 --attention window:20";
    let whole = lab.run_with(chat, b"hello\nthe things\n").ok();
    assert!(whole.stdout.len() > 6, "{:?}", whole.stdout);
    let first = lab.run_with(chat, b"hello\n/save s\n").ok();
    let second = lab.run_with(&format!("{chat} --state s"), b"the things\n").ok();
    assert_eq!([first.stdout, second.stdout].concat(), whole.stdout);
}

#[test]
fn inspect_and_a_warning_name_the_blocks_that_never_run() {
    let lab = Lab::new();
    convert(&synthetic(5, 2), lab.path("rest.rwkv"), ConvertOptions::new(Codec::U8)).expect("a pack");
    lab.hybrid("x.rwkv");
    let inspected = |file: &str| lab.run(&format!("inspect {file}")).ok().text().to_owned();
    let (whole, rest) = (inspected("x.rwkv"), inspected("rest.rwkv"));
    let order = "2 blocks, one after every 2 of the others";
    assert!(whole.contains("RWKV-X") && whole.contains(order) && !whole.contains("not run"), "{whole}");
    assert!(rest.contains(&format!("{order}; the last 1 of those not run")), "{rest}");
    let warning = "warning: rest.rwkv: has 5 blocks, of which 4 are run";
    for command in ["run", "chat", "logits"] {
        let said = |file: &str| lab.run_with(&format!("{command} {file} --vocab tiny.vocab"), b"a").stderr;
        assert!(said("rest.rwkv").contains(warning), "{command}: {}", said("rest.rwkv"));
        assert!(!said("x.rwkv").contains("warning"), "{command}: {}", said("x.rwkv"));
    }
}

#[test]
fn a_text_that_outgrows_the_room_is_an_error_that_says_so() {
    let lab = lab();
    lab.write("long", "abc ".repeat(100));
    // Two blocks, 64 channels, keys and values of two bytes: 512 bytes a token.
    let run = format!("{RUN} --prompt-file long -n 4");
    lab.run(&format!("{run} --kv-ram 512KiB")).ok();
    lab.run(&format!("{run} --kv-ram 150KiB")).fails(1, "bytes more for this step");
    lab.run(&format!("{run} --kv-ram 150KiB --attention window:64")).ok();
}

#[test]
#[cfg(target_os = "linux")]
fn memory_of_a_long_prompt_stays_within_the_budget() {
    const BUDGET_MIB: f64 = 96.0;
    const MARGIN_MIB: f64 = 64.0;
    let lab = lab();
    // 32 KiB of keys and values for a token, as f32: 67 MiB for the prompt.
    let sizes = Config { layers: 4, attention: 4, width: 1024, heads: 16, ffn: 1024, ..config(VOCAB) };
    convert(&Synthetic::new(sizes, 1), lab.path("long.rwkv"), ConvertOptions::new(Codec::U8))
        .expect("a pack");
    lab.write("prompt", "all happy families are alike; ".repeat(72));
    let run = "run long.rwkv --vocab tiny.vocab --prompt-file prompt -n 2 --seed 1 --stats --kv f32";
    let ended = lab.run(&format!("{run} --ram {BUDGET_MIB}MiB --kv-ram 70MiB")).ok();
    assert!(ended.stderr.contains("streamed within"), "{}", ended.stderr);
    let peak = ended.stderr.lines().find_map(|line| line.strip_prefix("peak RSS")).expect("the peak");
    let peak: f64 = peak.trim().strip_suffix(" MiB").expect("MiB").parse().expect("a number");
    assert!(peak > 66.0, "{peak} MiB are too few for this prompt");
    assert!(peak <= BUDGET_MIB + MARGIN_MIB, "{peak} MiB with a budget of {BUDGET_MIB} MiB");
}
