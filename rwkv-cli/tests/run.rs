//! `rwkv run`: texts, states and their ends.

mod support;

use std::io::Read;

use support::{Lab, VOCAB};

const GREEDY: &str = "run tiny.rwkv --vocab tiny.vocab --greedy --ban-token 0";

#[test]
fn the_text_is_that_of_the_tokens() {
    let lab = Lab::new();
    let json = lab.run(&format!("{GREEDY} -p User: -n 20 --json")).ok().json();
    assert_eq!(json["finish"], "length");
    assert_eq!(json["prompt_tokens"], 1);
    let ids: Vec<String> =
        json["tokens"].as_array().expect("tokens").iter().map(|id| id.to_string()).collect();
    assert_eq!(ids.len(), 20);
    let plain = lab.run(&format!("{GREEDY} -p User: -n 20")).ok();
    let text = lab.run(&format!("detokenize --vocab tiny.vocab --ids {}", known(&ids).join(","))).ok();
    if known(&ids).len() == ids.len() {
        assert_eq!(plain.stdout, text.stdout);
    }
    assert!(plain.stderr.contains("20 tokens") && plain.stderr.contains("(length)"), "{}", plain.stderr);
    let quiet = lab.run(&format!("{GREEDY} -p User: -n 20 --quiet")).ok();
    assert_eq!((quiet.stdout, quiet.stderr.as_str()), (plain.stdout, ""));
}

/// Those of the ids that the vocabulary has.
fn known(ids: &[String]) -> Vec<String> {
    ids.iter().filter(|id| id.parse::<u32>().is_ok_and(|id| id < 266)).cloned().collect()
}

#[test]
fn a_seed_decides_and_threads_do_not() {
    let lab = Lab::new();
    let text = |args: &str| {
        lab.run(&format!("run tiny.rwkv --vocab tiny.vocab -p User: -n 30 --ban-token 0 {args}")).ok().stdout
    };
    let first = text("--seed 7 --temperature 2 --top-p 1");
    assert_eq!(text("--seed 7 --temperature 2 --top-p 1 --threads 3"), first);
    assert_ne!(text("--seed 8 --temperature 2 --top-p 1"), first);
    assert_eq!(text("--seed 1 --top-k 1 --presence-penalty 0 --frequency-penalty 0"), text("--greedy"));
}

/// The tokens that a run printed, with `--json`.
fn tokens(ended: support::Ended) -> Vec<u64> {
    let json = ended.ok().json();
    json["tokens"].as_array().expect("tokens").iter().map(|id| id.as_u64().expect("an id")).collect()
}

#[test]
fn a_saved_state_goes_on_as_if_nothing_had_happened() {
    let lab = Lab::new();
    let whole = tokens(lab.run(&format!("{GREEDY} -p User: -n 24 --json")));
    let first = tokens(lab.run(&format!("{GREEDY} -p User: -n 10 --json --save-state s")));
    let second = tokens(lab.run(&format!("{GREEDY} --state s -n 14 --json")));
    assert_eq!([first, second].concat(), whole);
    // Saved after nothing but the prompt.
    lab.run(&format!("{GREEDY} -p User: -n 0 --save-state p")).ok();
    assert_eq!(tokens(lab.run(&format!("{GREEDY} --state p -n 24 --json"))), whole);
    // With a further prompt: as the tokens in one piece.
    lab.run(&format!("{GREEDY} -p User:abc -n 0 --save-state p")).ok();
    let split = tokens(lab.run(&format!("{GREEDY} --state p -p defg -n 9 --json")));
    assert_eq!(split, tokens(lab.run(&format!("{GREEDY} -p User:abcdefg -n 9 --json"))));
    // The numbers, too.
    let logits = lab.run("logits tiny.rwkv --vocab tiny.vocab --state p -p defg").ok().json();
    let expected = lab.run("logits tiny.rwkv --vocab tiny.vocab -p User:abcdefg").ok().json();
    assert_eq!(logits["logits"], expected["logits"]);
}

#[test]
fn states_of_others_are_refused() {
    let lab = Lab::new();
    lab.checkpoint("other.safetensors", 2);
    lab.run("run other.safetensors --vocab tiny.vocab -p a -n 1 --save-state other").ok();
    lab.run("run tiny.rwkv --vocab tiny.vocab --state other -p a").fails(1, "state other: belongs to RWKV-7");
    lab.write("junk", "no state at all");
    lab.run("run tiny.rwkv --vocab tiny.vocab --state junk -p a").fails(1, "state junk: is no state file");
    lab.run("run tiny.rwkv --vocab tiny.vocab --state absent -p a")
        .fails(1, "state absent: cannot be read: ");
    lab.run("run tiny.rwkv --vocab tiny.vocab -p a --save-state no/where")
        .fails(1, "--save-state no/where: cannot be written: ");
    lab.run("run tiny.rwkv --vocab tiny.vocab -p a --save-state .").fails(2, "is a directory");
}

#[test]
fn a_long_text_is_the_same_from_every_source() {
    let lab = Lab::new();
    let text = "the and ing    \n\nUser: ".repeat(4_000);
    lab.write("long.txt", &text);
    let expected = tokens(lab.run(&format!("{GREEDY} --prompt-file long.txt -n 5 --json")));
    assert_eq!(tokens(lab.run_with(&format!("{GREEDY} -n 5 --json"), text.as_bytes())), expected);
    assert_eq!(tokens(lab.run_with(&format!("{GREEDY} -f - -n 5 --json"), text.as_bytes())), expected);
    let count = lab.run("tokenize --vocab tiny.vocab --count -f long.txt").ok();
    let read = lab.run(&format!("{GREEDY} -f long.txt -n 0")).ok();
    assert!(read.stderr.contains(&format!("read {} tokens", count.text().trim())), "{}", read.stderr);
}

#[test]
fn ends() {
    let lab = Lab::new();
    // Only the token 98, the byte `a`, is wanted.
    let run = |args: &str| {
        lab.run(&format!("run tiny.rwkv --vocab tiny.vocab -p x --logit-bias 98=1000 --json {args}"))
            .ok()
            .json()
    };
    let json = run("-n 5 --presence-penalty 0 --frequency-penalty 0");
    assert_eq!((&json["text"], &json["finish"]), (&"aaaaa".into(), &"length".into()));
    let json = run("--stop aaa --presence-penalty 0 --frequency-penalty 0");
    assert_eq!((&json["text"], &json["finish"]), (&"".into(), &"stop".into()));
    let json = run("--logit-bias 0=3000");
    assert_eq!((&json["text"], &json["finish"]), (&"".into(), &"end".into()));
    let json = run("-n 0");
    assert_eq!(
        (&json["text"], &json["finish"], &json["prompt_tokens"]),
        (&"".into(), &"length".into(), &1.into())
    );
    // What is held back for a stop string comes out at the end.
    let json = run("-n 5 --stop aab --stop aaaaaaa --presence-penalty 0 --frequency-penalty 0");
    assert_eq!(json["text"], "aaaaa");
    lab.run("run tiny.rwkv --vocab tiny.vocab").fails(2, "the prompt is empty");
    lab.run_args(&["run", "tiny.rwkv", "-p", ""]).fails(2, "the prompt is empty");
    lab.run("run tiny.rwkv -p x -n -1").fails(2, "--max-tokens");
}

#[test]
fn wrong_parameters() {
    let lab = Lab::new();
    for (args, part) in [
        ("--temperature -1", "temperature is -1"),
        ("--temperature nan", "temperature is NaN"),
        ("--top-p -0.5", "top_p is -0.5"),
        ("--penalty-decay 2", "penalty decay is 2; expected 0 to 1"),
        ("--logit-bias 272=1", "logit bias for token 272"),
        ("--logit-bias 5", "expected ID=BIAS"),
        ("--ban-token 9999", "banned token 9999"),
        ("--threads 0", "--threads"),
        ("--codec f16", "is a pack with codec f32, and --codec asks for f16"),
        ("--codec q8", "possible values: f32, f16, bf16, u8, i8, u4"),
        ("--prompt-file x", "cannot be used with"),
    ] {
        lab.run(&format!("run tiny.rwkv --vocab tiny.vocab -p x -n 1 {args}")).fails(2, part);
    }
    lab.run_args(&["run", "tiny.rwkv", "--vocab", "tiny.vocab", "-p", "x", "--stop", ""])
        .fails(2, "--stop is empty");
    lab.run("run tiny.rwkv -f absent").fails(1, "absent: cannot be opened: ");
    lab.run("run tiny.rwkv -f .").fails(2, ".: is a directory; expected a file with text");
    let world = lab
        .run("run tiny.rwkv --prompt hello -n 1")
        .fails(2, "but the model has only 272 tokens: the World vocabulary");
    assert!(world.stderr.starts_with("warning: "), "{}", world.stderr);
    let isa = lab.command(["run", "tiny.rwkv", "-p", "x"]).env("RWKV_ISA", "sse9").output().expect("it runs");
    support::Ended::new("RWKV_ISA=sse9", isa).fails(2, "instruction set \"sse9\" is not available here");
}

#[test]
fn what_is_wrong_is_said_before_a_checkpoint_is_packed() {
    let lab = Lab::new();
    lab.checkpoint("large.safetensors", 1);
    for (args, code, part) in [
        ("run large.safetensors -p x --temperature -1", 2, "temperature is -1"),
        ("run large.safetensors -p x --stop=", 2, "--stop is empty"),
        ("run large.safetensors -p x --state absent", 1, "state absent: cannot be read"),
        ("run large.safetensors -f .", 2, ".: is a directory"),
        ("chat large.safetensors --top-p nan", 2, "top_p is NaN"),
        ("chat large.safetensors --state .", 2, "state .: is no file"),
        ("logits large.safetensors --tokens 1 --state absent", 1, "state absent: cannot be read"),
        ("perplexity large.safetensors absent", 1, "absent: cannot be opened"),
    ] {
        let ended = lab.run(&format!("{args} --vocab tiny.vocab")).fails(code, part);
        assert!(!ended.stderr.contains("packing"), "{args}: {}", ended.stderr);
    }
    assert!(!lab.path("large.u8.rwkv").exists());
}

#[cfg(unix)]
#[test]
fn devices_and_links_stay_what_they_are() {
    use std::os::unix::fs::symlink;

    let lab = Lab::new();
    symlink("/dev/null", lab.path("null")).expect("a link");
    for (args, option) in [
        ("run tiny.rwkv --vocab tiny.vocab -p x -n 1 --save-state null", "--save-state null"),
        ("run tiny.rwkv --vocab tiny.vocab -p x -n 1 --trace-file null", "--trace-file null"),
        ("logits tiny.rwkv --tokens 1 --output null", "--output null"),
    ] {
        lab.run(args).fails(2, &format!("{option}: is a device or a pipe"));
    }
    symlink("far", lab.path("link")).expect("a link");
    lab.write("far", "old");
    lab.run("run tiny.rwkv --vocab tiny.vocab -p x -n 1 --save-state link").ok();
    assert!(lab.path("link").is_symlink());
    lab.run("run tiny.rwkv --vocab tiny.vocab --state far -p y -n 1").ok();
}

#[test]
fn every_instruction_set_writes_the_same() {
    let lab = Lab::new();
    let args = [
        "run",
        "tiny.rwkv",
        "--vocab",
        "tiny.vocab",
        "-p",
        "User:",
        "-n",
        "30",
        "--seed",
        "1",
        "--ban-token",
        "0",
    ];
    let expected = lab.run_args(&args).ok().stdout;
    for isa in rwkv_model::kernels::Isa::available() {
        let output = lab.command(args).env("RWKV_ISA", isa.name()).output().expect("it runs");
        assert_eq!(output.stdout, expected, "{isa}");
    }
}

#[test]
fn the_log_is_on_stderr() {
    let lab = Lab::new();
    let run = |filter| {
        let mut command =
            lab.command(["run", "tiny.rwkv", "--vocab", "tiny.vocab", "-p", "x", "-n", "1", "--quiet"]);
        support::Ended::new(filter, command.env("RWKV_LOG", filter).output().expect("it runs")).ok()
    };
    assert!(run("debug").stderr.contains("model opened"));
    assert_eq!(run("off").stderr, "");
}

#[test]
fn a_reader_who_leaves_is_no_error() {
    let lab = Lab::new();
    let mut child = lab.start("run tiny.rwkv --vocab tiny.vocab --prompt x --ban-token 0");
    let mut out = child.stdout.take().expect("a pipe");
    out.read_exact(&mut [0; 16]).expect("some text");
    drop(out);
    let ended = support::Ended::new("run | head", child.wait_with_output().expect("it ends"));
    assert!(!ended.stderr.contains("error") && !ended.stderr.contains("panic"), "{}", ended.stderr);
    ended.ok();
}

#[test]
fn vocabularies_of_one_token_more() {
    let lab = Lab::new();
    assert_eq!(VOCAB, 272);
    let last = lab.run("run tiny.rwkv --vocab tiny.vocab -p x -n 2 --logit-bias 271=1000 --json").ok().json();
    assert_eq!(last["tokens"], serde_json::json!([271, 271]));
    assert_eq!(last["text"], "\u{fffd}\u{fffd}", "an id without a text");
}
