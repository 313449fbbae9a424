//! `rwkv chat` without a terminal: lines in, answers out.

mod support;

use support::Lab;

const CHAT: &str = "chat tiny.rwkv --vocab tiny.vocab --seed 1 --quiet";

#[test]
fn each_line_has_an_answer() {
    let lab = Lab::new();
    let chat = lab.run_with(&format!("{CHAT} -n 3 --logit-bias 98=1000"), b"hello\n\nagain\n").ok();
    assert_eq!(chat.text(), "aaa\naaa\n");
    assert_eq!(chat.stderr, "");
    assert_eq!(lab.run_with(CHAT, b"").ok().text(), "");
}

#[test]
fn answers_end_where_the_template_says() {
    let lab = Lab::new();
    // Token 265 is a full stop and an empty line.
    let ended = lab.run_with(&format!("{CHAT} --logit-bias 265=1000"), b"hello\nagain").ok();
    assert_eq!(ended.text(), ".\n.\n");
    let thinking = lab.run_with(&format!("{CHAT} --logit-bias 265=1000 --think -n 2"), b"hello\n").ok();
    assert_eq!(thinking.text(), "<think.\n\n.\n\n\n");
    let skipped = lab.run_with(&format!("{CHAT} --logit-bias 63=1000 --think=skip -n 2"), b"hello\n").ok();
    assert_eq!(skipped.text(), "\n", "the bracket closes the thoughts");
    let stopped = lab.run_with(&format!("{CHAT} --logit-bias 98=1000 --stop aa"), b"hello\n").ok();
    assert_eq!(stopped.text(), "\n");
}

#[test]
fn a_conversation_has_the_tokens_of_its_transcript() {
    let lab = Lab::new();
    // The model answers with `.` and an empty line, which is a token of its own.
    let always = "--logit-bias 265=1000";
    lab.write("hello", "hello\n/save s\n");
    lab.run_with(&format!("{CHAT} {always}"), b"hello\n/save s\n").ok();
    let transcript = "User: hello\n\nAssistant:.\n\nUser: x";
    let expected =
        lab.run_args(&["logits", "tiny.rwkv", "--vocab", "tiny.vocab", "-p", transcript]).ok().json();
    let found =
        lab.run_args(&["logits", "tiny.rwkv", "--vocab", "tiny.vocab", "--state", "s", "-p", "User: x"]);
    assert_eq!(found.ok().json()["logits"], expected["logits"]);
}

#[test]
fn a_saved_conversation_goes_on() {
    let lab = Lab::new();
    let args = "chat tiny.rwkv --vocab tiny.vocab --greedy --quiet -n 12 --ban-token 0";
    let whole = lab.run_with(args, b"hello\nwho are you?\n").ok().stdout;
    let first = lab.run_with(args, b"hello\n/save s\n").ok().stdout;
    let second = lab.run_with(&format!("{args} --state s"), b"who are you?\n").ok().stdout;
    assert_eq!([first, second].concat(), whole);
    let reset = lab.run_with(args, b"hello\n/reset\nhello\n").ok().stdout;
    let (one, other) = reset.split_at(reset.len() / 2);
    assert_eq!(one, other, "everything is forgotten");
    let loaded = lab.run_with(args, b"something else\n/load s\nwho are you?\n").ok().stdout;
    assert!(loaded.ends_with(&whole[whole.len() / 2..]), "{:?}", String::from_utf8_lossy(&loaded));
}

#[test]
fn the_system_speaks_first() {
    let lab = Lab::new();
    let args = "chat tiny.rwkv --vocab tiny.vocab --greedy --quiet -n 12 --ban-token 0";
    let plain = lab.run_with(args, b"hello\n").ok().stdout;
    let told = lab.run_with(&format!("{args} --system Be_brief"), b"hello\n").ok().stdout;
    assert_ne!(plain, told);
}

#[test]
fn wrong_commands_end_a_script() {
    let lab = Lab::new();
    for (line, part) in [
        ("/foo\n", "/foo is no command"),
        ("/save\n", "/save needs the name of a file"),
        ("/load absent\n", "state absent: cannot be read: "),
        ("/save no/where\n", "state no/where: cannot be written: "),
    ] {
        lab.run_with(CHAT, line.as_bytes()).fails(1, part);
    }
    lab.run_with(CHAT, b"/exit\n/foo\n").ok();
    let mut help = lab.command("chat tiny.rwkv --vocab tiny.vocab".split(' '));
    lab.write("help", "/help\n");
    help.stdin(std::fs::File::open(lab.path("help")).expect("the file"));
    let help = support::Ended::new("chat", help.output().expect("it runs")).ok();
    assert!(help.stderr.contains("/reset       forget everything"), "{}", help.stderr);
}
