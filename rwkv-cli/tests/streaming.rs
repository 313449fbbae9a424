//! A budget of memory: the same numbers, a bound that holds, and errors that say what would work.

mod support;

use std::path::Path;

use rwkv_model::kernels::Codec;
use rwkv_model::{Config, ConvertOptions, Synthetic, convert};
use support::{Lab, read_logits};

/// The smallest budget that `rwkv plan` names.
fn smallest(lab: &Lab) -> u64 {
    let plan = lab.run("plan tiny.rwkv --json --no-probe").ok().json();
    assert_eq!(plan["residency"], "resident", "a tiny model fits");
    assert_eq!(plan["read_bytes_per_token"], 0);
    plan["smallest_budget"].as_u64().expect("bytes")
}

#[test]
fn streamed_logits_are_the_resident_ones() {
    let lab = Lab::new();
    // Logits of every row take memory, too: more than is said by `rwkv plan`, which has those of the last one.
    let refused =
        lab.run("logits tiny.rwkv --tokens 1 --all -o out.safetensors --ram 0").fails(1, "smallest");
    let named =
        refused.stderr.split("the smallest that can is ").nth(1).and_then(|rest| rest.split(' ').next());
    let least: u64 = named.expect("a number").parse().expect("bytes");
    assert!(least > smallest(&lab), "{least} bytes");
    let logits = |options: &str| {
        let tokens: Vec<String> = (0..40).map(|i| (1 + i * 37 % 270).to_string()).collect();
        let tokens = tokens.join(",");
        lab.run(&format!("logits tiny.rwkv --tokens {tokens} --all -o out.safetensors {options}")).ok();
        read_logits(&lab.path("out.safetensors"))
    };
    let resident = logits("--residency resident");
    assert!(logits("") == resident && logits("--residency mmap") == resident);
    for ram in [least, least + 20_000, least + 100_000, least * 4] {
        for options in
            ["", "--read-ahead off", "--read-ahead next --step", "--io buffered", "--io mmap --threads 2"]
        {
            assert!(logits(&format!("--ram {ram} {options}")) == resident, "--ram {ram} {options}");
        }
    }
}

#[test]
fn a_refused_budget_names_the_smallest_that_works() {
    let lab = Lab::new();
    let smallest = smallest(&lab);
    let refusal = format!("the smallest that can is {smallest} bytes");
    for command in ["plan tiny.rwkv --no-probe", "logits tiny.rwkv --tokens 1", "bench tiny.rwkv"] {
        for ram in [0, smallest / 2, smallest - 1] {
            lab.run(&format!("{command} --ram {ram}")).fails(1, &refusal);
        }
    }
    lab.run(&format!("logits tiny.rwkv --tokens 1 --ram {smallest}")).ok();
    let plan = lab.run(&format!("plan tiny.rwkv --no-probe --json --ram {smallest}")).ok().json();
    assert_eq!((&plan["residency"], &plan["budget"]), (&"stream".into(), &smallest.into()));
    assert!(plan["memory"].as_u64() <= Some(smallest) && plan["read_bytes_per_token"].as_u64() > Some(0));
    assert!(lab.run("plan tiny.rwkv --no-probe --ram 1GiB").ok().text().contains("read per token"));
    for wrong in ["--ram 12Q", "--ram -5", "--ram 1MiB --residency resident", "--io floppy", "--read-ahead 2"]
    {
        let ended = lab.run(&format!("logits tiny.rwkv --tokens 1 {wrong}"));
        assert_eq!(ended.code, Some(2), "{wrong}: {}", ended.stderr);
    }
}

#[test]
fn statistics_say_what_was_read() {
    let lab = Lab::new();
    let ram = smallest(&lab);
    let run = format!("run tiny.rwkv --vocab tiny.vocab --prompt hello -n 3 --stats --seed 1 --ram {ram}");
    let ended = lab.run(&run).ok();
    for part in ["streamed within", "read ahead", "waited", "pinned", "peak RSS"] {
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
}

#[test]
fn bench_holds_reading_against_the_disk() {
    let lab = Lab::new();
    let ram = smallest(&lab);
    let bench =
        format!("bench tiny.rwkv --json --repeat 1 --threads 1 --prompt-tokens 16 --quiet --ram {ram}");
    let report = lab.run(&bench).ok().json();
    let plan = lab.run(&format!("plan tiny.rwkv --no-probe --json --ram {ram}")).ok().json();
    for key in ["read_bytes_per_token", "read_gb_per_s", "disk_gb_per_s", "pinned_bytes", "peak_rss_bytes"] {
        assert!(report[key].as_f64().is_some_and(|number| number > 0.0), "{key} in {report}");
    }
    let found = report["read_ahead_ready"].as_u64().zip(report["read_ahead_late"].as_u64());
    assert!(found.is_some_and(|(ready, late)| ready + late > 0), "{report}");
    assert!(report["wait_share"].as_f64().is_some_and(|share| (0.0..=1.0).contains(&share)), "{report}");
    let (read, planned) = (report["read_bytes_per_token"].as_f64(), plan["read_bytes_per_token"].as_f64());
    let ratio = read.expect("a number") / planned.expect("a number");
    assert!((0.9..1.1).contains(&ratio), "{read:?} bytes for each token, planned are {planned:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn memory_stays_within_the_budget() {
    const MARGIN_MIB: f64 = 64.0;
    let lab = Lab::empty();
    pack_of_official_size(&lab.path("m.rwkv"));
    lab.write("prompt", "All happy families are alike; ".repeat(60));
    for (ram, io) in [(32, "direct"), (32, "buffered"), (96, "auto")] {
        let io = if io == "direct" && !reads_directly(&lab) { "auto" } else { io };
        let run = format!("run m.rwkv --prompt-file prompt -n 3 --seed 1 --stats --ram {ram}MiB --io {io}");
        let ended = lab.run(&run).ok();
        let peak = ended.stderr.lines().find_map(|line| line.strip_prefix("peak RSS")).expect("the peak");
        let peak: f64 = peak.trim().strip_suffix(" MiB").expect("MiB").parse().expect("a number");
        assert!(peak <= f64::from(ram) + MARGIN_MIB, "{peak} MiB with a budget of {ram} MiB, {io}");
    }
}

fn pack_of_official_size(path: &Path) {
    let config = Config::official("0.1b").expect("an official size");
    convert(&Synthetic::new(config, 1), path, ConvertOptions::new(Codec::U8)).expect("a pack");
}

/// Whether the file system allows it.
fn reads_directly(lab: &Lab) -> bool {
    rwkv_model::cache::source::DirectFile::open(lab.path("m.rwkv")).is_ok()
}
