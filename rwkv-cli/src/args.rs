//! The command line.

mod attention;
mod memory;
mod model;
mod prompt;
mod sampling;
mod vocabulary;

pub use attention::AttentionArgs;
pub use memory::{MemoryArgs, size};
pub use model::{ModelArgs, ThreadArgs, codec_parser, named_model, thread_parser};
pub use prompt::{PromptArgs, PromptSource};
pub use sampling::{SamplingArgs, check_stops};
pub use vocabulary::VocabularyArgs;

use clap::{Parser, Subcommand};

use crate::commands::{
    bench, chat, completions, detokenize, doctor, inspect, logits, pack, perplexity, plan, run, serve,
    tokenize, verify,
};

const AFTER_HELP: &str = "\
Examples:
  rwkv run --prompt 'The state of the Union is' --stats
  rwkv chat rwkv7-g1-0.1b.pth
  rwkv run rwkv7-g1-0.1b.pth --prompt 'The Eiffel tower is in the city of' --max-tokens 30
  rwkv run rwkv7-g1-0.1b.pth --prompt-file book.txt --max-tokens 0 --save-state book.state
  rwkv run rwkv7-g1-13.3b.pth --ram 4GiB --prompt 'Once upon a time'
  rwkv serve rwkv7-g1-1.5b.pth --port 8080
  rwkv bench --synthetic 1.5b

Environment:
  RWKV_ISA        instruction set: scalar, avx2 or avx512 (default: the best of the machine; results are the same)
  RWKV_LOG        what the libraries log to stderr, such as `debug` or `rwkv_model=debug`
  RWKV_CACHE_DIR  where packs go that have no place beside their checkpoint
  RWKV_API_KEY    the key that `rwkv serve` asks for

Exit codes:
  0 done, 1 failed, 2 wrong command line, 3 not a usable model file, 130 interrupted";

/// Runs RWKV language models on the CPU. Without a command, the demo model talks.
#[derive(Debug, Parser)]
#[command(name = "rwkv", version, after_help = AFTER_HELP)]
pub struct Cli {
    /// Say nothing on stderr but errors; show no bars
    #[arg(long, short, global = true, display_order = 1000)]
    pub quiet: bool,

    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Continue a text
    Run(run::RunArgs),
    /// Talk with a model
    Chat(chat::ChatArgs),
    /// Answer over HTTP, as the OpenAI API does
    Serve(serve::ServeArgs),
    /// Make a pack from a checkpoint
    Pack(pack::PackArgs),
    /// Show what a model file is
    Inspect(inspect::InspectArgs),
    /// Check all bytes of model files
    Verify(verify::VerifyArgs),
    /// Turn text into token ids
    Tokenize(tokenize::TokenizeArgs),
    /// Turn token ids into text
    Detokenize(detokenize::DetokenizeArgs),
    /// Compute the logits of tokens or of a text
    Logits(logits::LogitsArgs),
    /// Measure how well a model predicts a text, and how far it is from another pack of itself
    Perplexity(perplexity::PerplexityArgs),
    /// Show what a budget of memory would do
    Plan(plan::PlanArgs),
    /// Measure how fast a model runs
    Bench(bench::BenchArgs),
    /// Say what the machine is, and which models would run on it
    Doctor(doctor::DoctorArgs),
    /// Write the completions for a shell
    Completions(completions::CompletionsArgs),
}
