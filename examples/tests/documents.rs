//! The documents and the programs agree: every example that `README.md` and the workspace's own `README.md` show is
//! run, in their order and in one directory, and prints what stands there.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

const PROGRAMS: [(&str, &str); 8] = [
    ("cache", env!("CARGO_BIN_EXE_cache")),
    ("generate", env!("CARGO_BIN_EXE_generate")),
    ("inspect", env!("CARGO_BIN_EXE_inspect")),
    ("kernels", env!("CARGO_BIN_EXE_kernels")),
    ("recall", env!("CARGO_BIN_EXE_recall")),
    ("scheduler", env!("CARGO_BIN_EXE_scheduler")),
    ("sessions", env!("CARGO_BIN_EXE_sessions")),
    ("tokenize", env!("CARGO_BIN_EXE_tokenize")),
];
const COMMAND: &str = "$ cargo run --release -p rwkv-examples --bin ";

struct Shown {
    program: String,
    arguments: Vec<String>,
    output: String,
}

/// The examples in the code blocks of a document.
fn shown(document: &str) -> Vec<Shown> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(document)).unwrap();
    let mut found = Vec::new();
    for block in text.split("```").skip(1).step_by(2) {
        let Some((_, lines)) = block.split_once('\n') else { continue };
        let Some((command, output)) = lines.split_once('\n') else { continue };
        if let Some(command) = command.strip_prefix(COMMAND) {
            let mut words = words(command);
            let program = words.remove(0);
            let arguments = words.into_iter().skip_while(|word| word == "--").collect();
            found.push(Shown { program, arguments, output: output.into() });
        }
    }
    found
}

/// The words of a command, of which some are in double quotes.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (part, text) in command.split('"').enumerate() {
        match part % 2 {
            0 => words.extend(text.split_whitespace().map(String::from)),
            _ => words.push(text.into()),
        }
    }
    words
}

fn check(documents: &[&str]) -> BTreeSet<String> {
    let dir = tempfile::tempdir().unwrap();
    let mut seen = BTreeSet::new();
    for Shown { program, arguments, output } in documents.iter().flat_map(|document| shown(document)) {
        let path = PROGRAMS.iter().find(|(name, _)| *name == program).map(|(_, path)| path);
        let path = path.unwrap_or_else(|| panic!("there is no example {program}"));
        let run = Command::new(path).args(&arguments).current_dir(dir.path()).output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{program} {arguments:?}: {}: {said}", run.status);
        assert_eq!(String::from_utf8_lossy(&run.stdout), output, "output of {program} {arguments:?}");
        seen.insert(program);
    }
    seen
}

#[test]
fn examples_print_what_the_documents_show() {
    let seen = check(&["README.md", "../README.md"]);
    let missing: Vec<_> = PROGRAMS.iter().filter(|(name, _)| !seen.contains(*name)).collect();
    assert!(missing.is_empty(), "README.md does not show {missing:?}");
}

#[test]
fn every_program_is_listed_here() {
    let here: BTreeSet<String> = PROGRAMS.iter().map(|(name, _)| (*name).into()).collect();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin");
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        Path::new(&entry.unwrap().file_name()).file_stem().unwrap().to_string_lossy().into_owned()
    };
    assert_eq!(std::fs::read_dir(dir).unwrap().map(name).collect::<BTreeSet<_>>(), here);
}
