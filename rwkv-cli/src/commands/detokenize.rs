//! `rwkv detokenize`: token ids as text.

use std::io::{self, IsTerminal, Read};

use anyhow::{Context, Result};
use clap::Args;
use serde::Deserialize;

use crate::args::VocabularyArgs;
use crate::console::Console;
use crate::exit::Stop;
use crate::output::Output;

const AFTER_HELP: &str = "\
The bytes of the tokens go to stdout as they are, and nothing else does. The id 0, the end of text, has none. An id that the \
vocabulary does not have is an error.

Examples:
  rwkv detokenize --ids 33155,45,23109
  rwkv tokenize --json < book.txt | rwkv detokenize > the-same.txt";

/// Arguments of `rwkv detokenize`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct DetokenizeArgs {
    /// The ids; without them, stdin is read: the JSON of `rwkv tokenize`, or numbers
    #[arg(long, value_name = "ID,ID,..", value_delimiter = ',')]
    ids: Option<Vec<u32>>,

    #[command(flatten)]
    vocabulary: VocabularyArgs,
}

/// The JSON of `rwkv tokenize`, or its list alone.
#[derive(Deserialize)]
#[serde(untagged)]
enum Ids {
    Object { ids: Vec<u32> },
    List(Vec<u32>),
}

/// Runs `rwkv detokenize`.
pub fn run(args: &DetokenizeArgs, console: Console) -> Result<()> {
    let vocabulary = args.vocabulary.load()?;
    let ids = match &args.ids {
        Some(ids) => ids.clone(),
        None => {
            if io::stdin().is_terminal() {
                console.note("Reading ids from the terminal: end them with Ctrl-D on an empty line.");
            }
            let mut text = String::new();
            io::stdin().lock().read_to_string(&mut text).context("stdin: cannot be read")?;
            parse(&text)?
        }
    };
    let mut output = Output::stdout();
    output.bytes(&vocabulary.decode(&ids)?)?;
    Ok(output.finish()?)
}

fn parse(text: &str) -> Result<Vec<u32>> {
    if text.trim_start().starts_with(['{', '[']) {
        let ids = serde_json::from_str(text).context("stdin: expected {\"ids\":[..]} or [..]")?;
        return Ok(match ids {
            Ids::Object { ids } | Ids::List(ids) => ids,
        });
    }
    let numbers = text.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
    numbers
        .map(|word| word.parse().map_err(|error| Stop::usage(format!("stdin: token id {word:?}: {error}"))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn ids_in_every_form() {
        for (text, expected) in [
            ("", Some(vec![])),
            ("1 2\n3", Some(vec![1, 2, 3])),
            ("1,2, 3\n", Some(vec![1, 2, 3])),
            ("{\"ids\":[1,2]}\n", Some(vec![1, 2])),
            (" [4]", Some(vec![4])),
            ("1 -2", None),
            ("{\"id\":[1]}", None),
            ("[1,", None),
            ("4294967296", None),
        ] {
            assert_eq!(parse(text).ok(), expected, "{text:?}");
        }
    }
}
