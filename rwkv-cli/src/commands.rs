//! The commands, one module for each.

pub mod bench;
pub mod chat;
pub mod completions;
pub mod detokenize;
pub mod doctor;
pub mod inspect;
pub mod logits;
pub mod pack;
pub mod perplexity;
pub mod plan;
pub mod run;
pub mod serve;
pub mod tokenize;
pub mod verify;

use anyhow::Result;

use crate::args::Command;
use crate::console::Console;

/// Does what the command line asks for.
pub fn dispatch(command: Command, console: Console) -> Result<()> {
    match command {
        Command::Run(args) => run::run(&args, console),
        Command::Chat(args) => chat::run(&args, console),
        Command::Serve(args) => serve::run(args, console),
        Command::Pack(args) => pack::run(&args, console),
        Command::Inspect(args) => inspect::run(&args, console),
        Command::Verify(args) => verify::run(&args, console),
        Command::Tokenize(args) => tokenize::run(&args, console),
        Command::Detokenize(args) => detokenize::run(&args, console),
        Command::Logits(args) => logits::run(&args, console),
        Command::Perplexity(args) => perplexity::run(&args, console),
        Command::Plan(args) => plan::run(&args, console),
        Command::Bench(args) => bench::run(&args, console),
        Command::Doctor(args) => doctor::run(&args, console),
        Command::Completions(args) => completions::run(&args),
    }
}
