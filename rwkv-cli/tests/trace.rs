//! `rwkv run --trace` and `--trace-file`: what happened, layer by layer, and the same text as ever.

mod support;

use serde_json::Value;
use support::Lab;

const RUN: &str = "run tiny.rwkv --vocab tiny.vocab --prompt hello -n 3 --seed 1";

fn events(lab: &Lab, file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(lab.path(file)).expect("the trace");
    let trace: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
    trace["traceEvents"].as_array().expect("events").clone()
}

fn named<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["name"] == name).collect()
}

fn smallest_budget(lab: &Lab) -> u64 {
    let plan = lab.run("plan tiny.rwkv --json --no-probe").ok().json();
    plan["smallest_budget"].as_u64().expect("bytes")
}

#[test]
fn a_trace_file_has_every_stage_of_every_block() {
    let lab = Lab::new();
    let plain = lab.run(RUN).ok();
    let ram = smallest_budget(&lab);
    let ended = lab.run(&format!("{RUN} --ram {ram} --trace-file trace.json")).ok();
    assert_eq!(ended.stdout, plain.stdout);
    let events = events(&lab, "trace.json");
    // The prompt is one sweep, which gives the first token; the third token is not fed.
    assert_eq!((named(&events, "sweep").len(), named(&events, "token").len()), (3, 3));
    for block in ["block 0", "block 1"] {
        assert_eq!(named(&events, block).len(), 3, "{block}");
    }
    for (stage, least) in
        [("time mix", 6), ("channel mix", 6), ("find", 18), ("bind", 18), ("save state", 6), ("head", 3)]
    {
        assert!(named(&events, stage).len() >= least, "{stage}: {}", named(&events, stage).len());
    }
    let read = named(&events, "read blocks.1.key");
    assert!(read.len() >= 3 && read.iter().all(|read| read["args"]["bytes"].as_u64() > Some(0)), "{read:?}");
    // Slices of a thread follow one another or lie within each other, as the viewers want them.
    for thread in 0..8 {
        let slices = events.iter().filter(|event| event["ph"] == "X" && event["tid"] == thread);
        let number = |event: &Value, key: &str| event[key].as_f64().expect("a number");
        let mut spans: Vec<(f64, f64)> =
            slices.map(|event| (number(event, "ts"), number(event, "ts") + number(event, "dur"))).collect();
        spans.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
        let mut open: Vec<f64> = Vec::new();
        for (begin, end) in spans {
            while open.last().is_some_and(|&outer| outer <= begin + 1e-3) {
                open.pop();
            }
            assert!(open.last().is_none_or(|&outer| end <= outer + 1e-3), "thread {thread}: {begin}..{end}");
            open.push(end);
        }
    }
}

#[test]
fn a_live_trace_shows_each_block_of_each_sweep() {
    let lab = Lab::new();
    let plain = lab.run(RUN).ok();
    let ram = smallest_budget(&lab);
    let ended = lab.run(&format!("{RUN} --ram {ram} --trace")).ok();
    assert_eq!(ended.stdout, plain.stdout);
    let count = |part: &str| ended.stderr.lines().filter(|line| line.starts_with(part)).count();
    let counts = ["sweep ", "block 0 ", "block 1 ", "head ", "token "].map(count);
    assert_eq!(counts, [3; 5], "{}", ended.stderr);
    for part in ["time mix", "channel mix", "save", "wait", " MB ", " ms"] {
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
    // Weights that stay are found at once, and were read before the first sweep.
    let resident = lab.run(&format!("{RUN} --trace")).ok();
    let last = resident.stderr.lines().rfind(|line| line.starts_with("block 1")).expect("a line");
    let words: Vec<&str> = last.split_whitespace().skip(2).take(4).collect();
    assert_eq!(words, ["pinned", "pinned", "pinned", "-"], "{last}");
}

#[test]
fn a_trace_that_cannot_be_written_is_refused_at_once() {
    let lab = Lab::new();
    lab.run(&format!("{RUN} --trace-file nowhere/trace.json")).fails(1, "--trace-file nowhere/trace.json");
    lab.run(&format!("{RUN} --trace-file .")).fails(2, "--trace-file .: is a directory");
    lab.run("run missing.rwkv --prompt a --trace-file trace.json").fails(1, "missing.rwkv");
    let left = std::fs::read_dir(lab.path(".")).expect("the folder").flatten();
    assert!(!left.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(".rwkv-trace")));
}

#[test]
#[cfg(unix)]
fn an_interrupted_run_leaves_a_whole_trace() {
    use std::io::{BufRead, BufReader, Read, Write};

    let lab = Lab::new();
    #[allow(unsafe_code, reason = "the standard library sends no signals but the deadly one")]
    let interrupt = |child: &std::process::Child| {
        let id = i32::try_from(child.id()).expect("a process id");
        // SAFETY: kill has no preconditions, and the child was not waited for.
        assert_eq!(unsafe { libc::kill(id, libc::SIGINT) }, 0);
    };
    // While text is generated.
    let mut child = lab
        .start("run tiny.rwkv --vocab tiny.vocab --prompt a --greedy --ban-token 0 --trace-file text.json");
    child.stdout.as_mut().expect("a pipe").read_exact(&mut [0; 8]).expect("text");
    interrupt(&child);
    let mut rest = Vec::new();
    child.stdout.take().expect("a pipe").read_to_end(&mut rest).expect("text");
    assert_eq!(child.wait().expect("an end").code(), Some(130));
    assert!(!named(&events(&lab, "text.json"), "token").is_empty());
    // While the prompt is read, from somebody who has more to say: the program ends at once.
    let mut child = lab.start("run tiny.rwkv --vocab tiny.vocab --seed 1 --trace-file prompt.json --trace");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(" the and".repeat(1_000).as_bytes()).expect("a prompt");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("block 1")), "a sweep of the prompt");
    interrupt(&child);
    lines.for_each(drop);
    assert_eq!(child.wait().expect("an end").code(), Some(130));
    drop(stdin);
    assert!(!named(&events(&lab, "prompt.json"), "time mix").is_empty());
}
