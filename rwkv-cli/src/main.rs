//! The program `rwkv`: RWKV models at the command line.
//!
//! What scripts may rely on (outputs, exit codes) is written down in the README of this crate.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod console;
#[cfg_attr(not(feature = "demo"), path = "demo/absent.rs")]
mod demo;
mod directories;
mod exit;
mod feed;
mod interrupt;
mod machine;
mod meter;
mod model_file;
mod output;
mod prediction;
mod progress;
mod serve;
mod session;
mod statistics;
mod template;
mod trace;
mod vocabulary;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = args::Cli::parse();
    let console = console::Console::new(cli.quiet);
    console.start_log();
    interrupt::install();
    exit::of(match cli.command {
        Some(command) => commands::dispatch(command, console),
        None => commands::run::unasked(console),
    })
}
