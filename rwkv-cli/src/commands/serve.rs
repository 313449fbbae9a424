//! `rwkv serve`: answer over HTTP.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::args::{ModelArgs, VocabularyArgs, size};
use crate::console::Console;
use crate::serve;

const AFTER_HELP: &str = "\
The API is that of OpenAI: /v1/chat/completions, /v1/completions, /v1/embeddings and /v1/models; beside it /tokenize, \
/detokenize, /v1/states, /health, /metrics and /openapi.json. A page to try the model is at /.

The port is open at once; until the model is loaded, /health and all requests for it answer 503. Ctrl-C or SIGTERM takes no \
more requests, lets running answers end up to --shutdown-limit, and exits with 0. A second Ctrl-C ends at once.

Whoever reaches the port may use the model: leave --host as it is, or set a key.

Examples:
  rwkv serve rwkv7-g1-1.5b.pth
  rwkv serve model.rwkv --ram 4GiB --sessions 4 --state-dir states
  RWKV_API_KEY=secret rwkv serve model.rwkv --host 0.0.0.0 --port 80
  curl localhost:8080/v1/completions -d '{\"prompt\":\"Once upon a time\",\"max_tokens\":50}'";

/// Reads an address, or the name that every machine has for itself.
fn address(text: &str) -> Result<IpAddr, std::net::AddrParseError> {
    if text == "localhost" { Ok(Ipv4Addr::LOCALHOST.into()) } else { text.parse() }
}

/// Arguments of `rwkv serve`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ServeArgs {
    #[command(flatten)]
    pub vocabulary: VocabularyArgs,

    /// Address to listen at
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = address)]
    pub host: IpAddr,

    /// Port to listen at; 0 takes a free one and says which
    #[arg(long, value_name = "PORT", default_value_t = 8080, allow_negative_numbers = true)]
    pub port: u16,

    /// What the model is called in answers [default: the name of its file]
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub name: Option<String>,

    /// Only answer requests that carry this key as `Authorization: Bearer KEY`. The environment variable keeps it out of the
    /// list of processes
    #[arg(long, value_name = "KEY", env = "RWKV_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,

    /// Let pages of this origin, such as `https://example.org`, use the API from a browser; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    pub cors_origin: Vec<String>,

    /// Keep named states in this folder, for requests to start from
    #[arg(long, value_name = "FOLDER")]
    pub state_dir: Option<PathBuf>,

    /// Also keep states of earlier prompts in this folder, for those that --prefix-cache has no room for and for the next start. They
    /// tell what was said, so the folder should be yours alone
    #[arg(long, value_name = "FOLDER")]
    pub prefix_dir: Option<PathBuf>,

    /// A minijinja (Jinja2) file that makes a text of messages [default: the format of the G1 models]
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,

    /// End chat answers before this text; may be repeated [default: where the G1 format does, at an empty line]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,

    #[command(flatten)]
    pub model: ModelArgs,

    #[command(flatten)]
    pub limits: LimitArgs,
}

/// What is bounded.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Sessions that the model works on at once; more wait
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_one())]
    pub sessions: usize,

    /// Sessions that may wait; more are refused with 503
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one())]
    pub queue: usize,

    /// Memory for states of earlier prompts, so that what continues them starts there
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    pub prefix_cache: u64,

    /// The most bytes of all states in --state-dir
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = size)]
    pub state_bytes: u64,

    /// The most bytes of all states in --prefix-dir
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = size)]
    pub prefix_bytes: u64,

    /// Seconds that a session may wait before it is refused with 503
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = seconds)]
    pub queue_timeout: Duration,

    /// Seconds after which an answer ends as if it had reached its number of tokens
    #[arg(long, value_name = "SECONDS", default_value = "3600", value_parser = seconds)]
    pub time_limit: Duration,

    /// The most tokens of an answer, for requests that ask for more or for no limit [default: no limit]
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,

    /// The most bytes of a request
    #[arg(long, value_name = "SIZE", default_value = "2MiB", value_parser = size)]
    pub body_limit: u64,

    /// Connections that may be open at once; more wait
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = at_least_one())]
    pub connections: usize,

    /// Seconds after which a client that takes nothing of its answer loses its connection
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = some_seconds)]
    pub stall_timeout: Duration,

    /// Seconds after which a stream that has nothing to say sends a comment, so that nobody takes it for dead
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = some_seconds)]
    pub keep_alive: Duration,

    /// Seconds that running answers have to end after Ctrl-C or SIGTERM
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub shutdown_limit: Duration,
}

/// Runs `rwkv serve`.
pub fn run(args: ServeArgs, console: Console) -> Result<()> {
    serve::run(Arc::new(args), console)
}

fn at_least_one() -> impl clap::builder::TypedValueParser<Value = usize> {
    use clap::builder::TypedValueParser;
    clap::value_parser!(u64).range(1..=1 << 20).map(|n| n as usize)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no number of seconds; expected one such as 30 or 0.5");
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// Reads a number of seconds that is not zero.
fn some_seconds(text: &str) -> Result<Duration, String> {
    seconds(text).and_then(|time| if time.is_zero() { Err("expected more than 0".into()) } else { Ok(time) })
}
