//! Help, completions, and wrong command lines.

mod support;

use support::Lab;

const COMMANDS: [&str; 12] = [
    "run",
    "chat",
    "serve",
    "pack",
    "inspect",
    "verify",
    "tokenize",
    "detokenize",
    "logits",
    "perplexity",
    "bench",
    "completions",
];

#[test]
fn help_has_examples() {
    let lab = Lab::empty();
    let help = lab.run("--help").ok();
    for command in COMMANDS {
        assert!(help.text().contains(command), "{command}");
        let help = lab.run(&format!("{command} --help")).ok();
        assert!(help.text().contains("Examples:"), "{command}");
        assert!(help.text().contains(&format!("rwkv {command}")), "{command}");
    }
    assert!(lab.run("--version").ok().text().starts_with("rwkv "));
}

#[test]
fn completions_for_every_shell() {
    let lab = Lab::empty();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = lab.run(&format!("completions {shell}")).ok();
        assert!(COMMANDS.iter().all(|command| script.text().contains(command)), "{shell}");
    }
    lab.run("completions tcsh").fails(2, "possible values");
}

#[test]
fn wrong_command_lines_have_the_code_2() {
    let lab = Lab::empty();
    for args in [
        "walk",
        "run --no-demo",
        "run --frobnicate",
        "pack",
        "verify",
        "bench",
        "bench x --synthetic 0.1b",
        "bench --synthetic 5b",
        "inspect a b",
        "bench --synthetic 0.1b --threads 0",
    ] {
        let ended = lab.run(args);
        assert_eq!(ended.code, Some(2), "{args:?}: {}", ended.stderr);
        assert!(
            ended.stdout.is_empty() && ended.stderr.contains("Usage:") || ended.stderr.contains("--help"),
            "{args:?}: {}",
            ended.stderr
        );
    }
    lab.run("bench --synthetic 0.1b --relu-zeros 7").fails(2, "share of zeros is 7");
}
