//! Ctrl-C, and what else asks a program to end.

#![cfg(unix)]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Child;
use std::sync::mpsc;
use std::thread;

use support::{Ended, Lab};

#[allow(unsafe_code, reason = "the standard library sends no signals but the deadly one")]
fn send(child: &Child, signal: i32) {
    let id = i32::try_from(child.id()).expect("a process id");
    // SAFETY: kill has no preconditions, and the child was not waited for.
    assert_eq!(unsafe { libc::kill(id, signal) }, 0);
}

fn interrupt(child: &Child) {
    send(child, libc::SIGINT);
}

#[test]
fn a_run_keeps_its_text_and_saves_its_state() {
    let lab = Lab::new();
    let mut child = lab.start(
        "run tiny.rwkv --vocab tiny.vocab --prompt x --greedy --ban-token 0 --save-state s --threads 1",
    );
    drop(child.stdin.take());
    let mut out = child.stdout.take().expect("a pipe");
    let mut text = vec![0; 64];
    out.read_exact(&mut text).expect("some text");
    interrupt(&child);
    out.read_to_end(&mut text).expect("the rest");
    let ended = Ended::new("run", child.wait_with_output().expect("it ends"));
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    assert!(ended.stderr.contains("(interrupted)"), "{}", ended.stderr);
    let go_on = "--vocab tiny.vocab --greedy --ban-token 0 --threads 1 --quiet";
    let more = lab.run(&format!("run tiny.rwkv --state s -n 20 {go_on}")).ok().stdout;
    let whole = lab.run(&format!("run tiny.rwkv --prompt x -n 4000 {go_on}")).ok().stdout;
    let both = [text, more].concat();
    let shorter = both.len().min(whole.len());
    assert_eq!(both[..shorter], whole[..shorter], "the state is that after the text");
}

#[test]
fn other_signals_end_a_run_in_order_too() {
    let lab = Lab::new();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Under `nohup` a hangup does nothing, to a test and to what it starts; elsewhere than on Linux nobody says.
    let hears_hangups = ignored.is_some_and(|mask| mask & 1 == 0);
    for signal in [libc::SIGTERM].into_iter().chain(hears_hangups.then_some(libc::SIGHUP)) {
        let state = format!("state-{signal}");
        let mut child = lab.start(&format!(
            "run tiny.rwkv --vocab tiny.vocab --prompt x --ban-token 0 --save-state {state} --threads 1"
        ));
        drop(child.stdin.take());
        let mut out = child.stdout.take().expect("a pipe");
        out.read_exact(&mut [0; 64]).expect("some text");
        // They may come twice.
        send(&child, signal);
        send(&child, signal);
        std::io::copy(&mut out, &mut std::io::sink()).expect("the rest");
        assert_eq!(child.wait().expect("it ends").code(), Some(130), "signal {signal}");
        assert!(lab.path(&state).is_file(), "signal {signal}");
    }
}

#[test]
fn a_signal_ends_a_chat_after_its_answer() {
    let lab = Lab::new();
    let mut child = lab.start("chat tiny.rwkv --vocab tiny.vocab --logit-bias 0=-1000 --threads 1");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(b"a\nb\nc\n").expect("it reads");
    let mut out = child.stdout.take().expect("a pipe");
    out.read_exact(&mut [0; 64]).expect("some of the answer");
    send(&child, libc::SIGTERM);
    std::io::copy(&mut out, &mut std::io::sink()).expect("the rest");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    drop(stdin);
}

#[test]
fn a_run_that_waits_for_its_prompt_ends_at_once() {
    let lab = Lab::new();
    let mut child = lab.start("tokenize --vocab tiny.vocab");
    let mut stdin = child.stdin.take().expect("a pipe");
    // More than the program's own buffers hold, so that output says that it runs.
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    stdin.write_all(" the and".repeat(1_000).as_bytes()).expect("it reads");
    out.read_line(&mut String::new()).expect("a line");
    interrupt(&child);
    std::io::copy(&mut out, &mut std::io::sink()).expect("the rest");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
}

#[test]
fn a_chat_ends_the_answer_and_goes_on() {
    let lab = Lab::new();
    let mut child = lab.start("chat tiny.rwkv --vocab tiny.vocab --stop never --greedy --logit-bias 98=1000");
    let mut stdin = child.stdin.take().expect("a pipe");
    let mut out = child.stdout.take().expect("a pipe");
    let mut notes = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    // Whatever comes is read at once, so that the program never waits for its reader.
    let (said, heard) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(len @ 1..) = out.read(&mut buffer) {
            for &byte in &buffer[..len] {
                let _ = said.send(byte);
            }
        }
    });
    for _ in 0..2 {
        stdin.write_all(b"hello\n").expect("it reads");
        assert_eq!(heard.recv(), Ok(b'a'), "an endless answer");
        interrupt(&child);
        let stopped = notes.by_ref().map(|line| line.expect("a line")).find(|line| line == "(stopped)");
        assert!(stopped.is_some(), "the program ended");
        assert_eq!(heard.iter().find(|&byte| byte != b'a'), Some(b'\n'), "the end of the answer");
    }
    stdin.write_all(b"/save s\n").expect("it reads");
    drop(stdin);
    let notes: Vec<String> = notes.map(|line| line.expect("a line")).collect();
    reader.join().expect("the reader");
    assert_eq!(child.wait().expect("it ends").code(), Some(0), "{notes:?}");
    assert_eq!(notes, ["(saved in s)"]);
}
