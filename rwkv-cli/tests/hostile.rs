//! Files that are no models, through every command that takes one: an error each, with a code, and nothing left behind.

mod support;

use std::collections::BTreeSet;
use std::fs;

use support::Lab;

const COMMANDS: [&str; 7] = [
    "run FILE -p x -n 1",
    "chat FILE",
    "pack FILE -o out.rwkv",
    "inspect FILE",
    "inspect FILE --json",
    "verify FILE",
    "logits FILE --tokens 1",
];

/// The names in the folder.
fn names(lab: &Lab) -> BTreeSet<String> {
    let entries = fs::read_dir(lab.path("")).expect("the folder");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn every_command_refuses_every_bad_file() {
    let lab = Lab::new();
    fs::create_dir(lab.path("folder")).expect("a folder");
    lab.write("empty", "");
    lab.write("html", "<!DOCTYPE html><html><body>Sign in to download</body></html>");
    lab.write("lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n");
    lab.write("gguf", b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    lab.write("text", "hello\n");
    lab.write("zeros", [0; 8192]);
    lab.write("header", [&u64::MAX.to_le_bytes()[..], b"{}"].concat());
    let pack = fs::read(lab.path("tiny.rwkv")).expect("the pack");
    lab.checkpoint("whole.safetensors", 1);
    let checkpoint = fs::read(lab.path("whole.safetensors")).expect("the checkpoint");
    let mut files = vec!["folder", "empty", "html", "lfs", "gguf", "text", "zeros", "header"]
        .into_iter()
        .map(str::to_owned)
        .collect::<Vec<_>>();
    for part in 1..8 {
        lab.write(&format!("pack{part}"), &pack[..pack.len() * part / 8]);
        lab.write(&format!("checkpoint{part}"), &checkpoint[..checkpoint.len() * part / 8]);
        files.extend([format!("pack{part}"), format!("checkpoint{part}")]);
    }
    let before = names(&lab);
    let mut wrong = Vec::new();
    for file in &files {
        for command in COMMANDS {
            let ended = lab.run(&command.replace("FILE", file));
            let is_one_line = ended.stderr.starts_with("error: ") && ended.stderr.lines().count() == 1;
            let code = if file == "folder" { &[1, 3][..] } else { &[3][..] };
            if !ended.code.is_some_and(|found| code.contains(&found))
                || !is_one_line
                || !ended.stdout.is_empty()
            {
                wrong.push(format!("{command}, {file}: {:?} {}", ended.code, ended.stderr));
            }
            if !ended.stderr.contains(file.as_str()) {
                wrong.push(format!("{command}, {file}: not named in {}", ended.stderr));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(names(&lab), before, "nothing is left behind");
    for command in COMMANDS {
        lab.run(&command.replace("FILE", "absent")).fails(1, "absent");
    }
    lab.run("bench absent").fails(1, "absent");
    lab.run("bench html").fails(3, "web page");
}

#[test]
fn other_families_are_refused_by_name() {
    for (file, family) in [
        ("rwkv4-rand", "RWKV-4"),
        ("rwkv5p2-rand", "RWKV-5"),
        ("rwkv6-rand", "RWKV-6"),
        ("rwkv7a-tiny", "RWKV-7a"),
    ] {
        let Some(path) = support::oracle(&format!("models/{file}.safetensors")) else { return };
        let lab = Lab::empty();
        fs::copy(path, lab.path("model.safetensors")).expect("a copy");
        for command in ["run FILE -p x", "pack FILE -o out.rwkv", "logits FILE --tokens 1"] {
            lab.run(&command.replace("FILE", "model.safetensors")).fails(3, family);
        }
        let facts = lab.run("inspect model.safetensors --json").ok().json();
        assert!(facts["family"].as_str().is_some_and(|found| found.contains(family)), "{facts}");
        assert!(facts["model"].is_null() && facts["problem"].is_string());
        assert!(!lab.path("out.rwkv").exists());
    }
}
