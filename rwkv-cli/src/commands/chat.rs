//! `rwkv chat`: talk with a model.

mod conversation;
mod input;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use rwkv_model::ModelOptions;

use crate::args::{ModelArgs, SamplingArgs, VocabularyArgs, check_stops};
use crate::console::Console;
use crate::exit::Stop;
use crate::interrupt::{self, Interruptible};
use crate::session::check_readable;
use crate::template::{Think, clean};
use conversation::Conversation;
use input::Input;

const AFTER_HELP: &str = "\
Type a message, and the model answers. Ctrl-C ends an answer, Ctrl-D the program. In the conversation:
  /reset       forget everything
  /save FILE   save the state of the conversation
  /load FILE   go on from a saved one
  /help        show the commands
  /exit        end
A message that begins with / is sent by writing //.

Without a terminal, each line of stdin is a message, and stdout gets the answers, one after another.

Examples:
  rwkv chat rwkv7-g1-1.5b.pth
  rwkv chat model.rwkv --think=short --system 'You are a helpful librarian.'
  echo 'Why is the sky blue?' | rwkv chat model.rwkv --quiet";

const COMMANDS: &str = "\
/reset       forget everything
/save FILE   save the state of the conversation
/load FILE   go on from a saved one
/exit        end (as does Ctrl-D); Ctrl-C ends an answer";

/// Arguments of `rwkv chat`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ChatArgs {
    #[command(flatten)]
    vocabulary: VocabularyArgs,

    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,

    /// Whether the model thinks before it answers
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Think::Off, default_missing_value = "on", num_args = 0..=1, require_equals = true)]
    think: Think,

    /// End an answer after so many tokens [default: no limit; 96 for the demo model]
    #[arg(long, short = 'n', value_name = "N", allow_negative_numbers = true)]
    max_tokens: Option<usize>,

    /// End an answer before this text, instead of where the template says; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,

    /// Go on from a saved conversation or state
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    sampling: SamplingArgs,
}

/// What a line of input asks for.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Message(String),
    Nothing,
    Reset,
    Save(&'a str),
    Load(&'a str),
    Help,
    Exit,
    Wrong(String),
}

impl Line<'_> {
    fn parse(line: &str) -> Line<'_> {
        let line = line.trim();
        let Some(command) = line.strip_prefix('/').filter(|rest| !rest.starts_with('/')) else {
            let message = clean(line.strip_prefix('/').unwrap_or(line));
            return if message.is_empty() { Line::Nothing } else { Line::Message(message) };
        };
        let (command, argument) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        match (command, argument.trim()) {
            ("reset", "") => Line::Reset,
            ("help", "") => Line::Help,
            ("exit" | "quit", "") => Line::Exit,
            ("save" | "load", "") => Line::Wrong(format!("/{command} needs the name of a file")),
            ("save", file) => Line::Save(file),
            ("load", file) => Line::Load(file),
            ("reset" | "help" | "exit" | "quit", _) => Line::Wrong(format!("/{command} stands alone")),
            _ => Line::Wrong(format!(
                "/{command} is no command; /help lists them, // sends a message that begins with /"
            )),
        }
    }
}

/// Runs `rwkv chat`.
pub fn run(args: &ChatArgs, console: Console) -> Result<()> {
    // Before a checkpoint is packed, which takes long.
    check_stops(&args.stop)?;
    if let Some(path) = &args.state {
        check_readable(path)?;
    }
    args.sampling.check()?;
    let vocabulary = args.vocabulary.load_for(&args.model)?;
    let model = args.model.open(console, ModelOptions::default())?;
    vocabulary.warn_unless_fit(model.config().vocab, console);
    let mut conversation = Conversation::new(args, model, vocabulary, console)?;
    if let Some(path) = &args.state {
        conversation.load(path)?;
    }
    let mut input = Input::new(console);
    // A Ctrl-C that comes when an answer has just ended must not end the program.
    let _section = input.is_terminal().then(Interruptible::begin);
    if args.model.is_demo() {
        console.note("The demo model is no chat model: it continues what you write.");
    }
    if input.is_terminal() {
        console.note("/help lists the commands, Ctrl-D ends.");
    }
    while let Some(line) = interrupt::while_idle(|| input.line())? {
        let done = match Line::parse(&line) {
            Line::Message(message) => conversation.answer(&message),
            Line::Nothing => Ok(()),
            Line::Reset => {
                conversation.reset();
                console.note("(all forgotten)");
                Ok(())
            }
            Line::Save(file) => {
                conversation.save(Path::new(file)).map(|()| console.note(format_args!("(saved in {file})")))
            }
            Line::Load(file) => conversation
                .load(Path::new(file))
                .map(|()| console.note(format_args!("(going on from {file})"))),
            Line::Help => {
                console.note(COMMANDS);
                Ok(())
            }
            Line::Exit => break,
            Line::Wrong(why) => Err(anyhow::Error::msg(why)),
        };
        if interrupt::is_ending() {
            return Err(Stop::Interrupted.into());
        }
        // At a terminal the user can do something about it.
        match done {
            Err(error) if input.is_terminal() && !crate::exit::is_closed_pipe(&error) => {
                crate::console::error(&error);
                if conversation::is_out_of_memory(&error) {
                    console.note("(/reset forgets the conversation and makes room; --kv-ram gives more)");
                }
            }
            done => done?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        for (line, expected) in [
            ("hello ", Line::Message("hello".into())),
            ("  ", Line::Nothing),
            (
                "/",
                Line::Wrong(
                    "/ is no command; /help lists them, // sends a message that begins with /".into(),
                ),
            ),
            ("//etc/passwd", Line::Message("/etc/passwd".into())),
            ("/reset", Line::Reset),
            ("/save  my file.state ", Line::Save("my file.state")),
            ("/load x", Line::Load("x")),
            ("/load", Line::Wrong("/load needs the name of a file".into())),
            ("/exit now", Line::Wrong("/exit stands alone".into())),
            ("/quit", Line::Exit),
            ("/help", Line::Help),
        ] {
            assert_eq!(Line::parse(line), expected, "{line:?}");
        }
    }
}
