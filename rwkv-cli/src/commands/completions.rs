//! `rwkv completions`: what a shell needs to complete command lines.

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;
use crate::output::Output;

const AFTER_HELP: &str = "\
Examples:
  rwkv completions bash > ~/.local/share/bash-completion/completions/rwkv
  rwkv completions zsh > ~/.zfunc/_rwkv
  rwkv completions fish > ~/.config/fish/completions/rwkv.fish";

/// Arguments of `rwkv completions`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Runs `rwkv completions`.
pub fn run(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "rwkv", &mut script);
    let mut output = Output::stdout();
    output.bytes(&script)?;
    Ok(output.finish()?)
}
