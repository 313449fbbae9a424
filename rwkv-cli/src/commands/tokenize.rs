//! `rwkv tokenize`: a text as token ids.

use anyhow::Result;
use clap::Args;

use crate::args::{PromptArgs, VocabularyArgs};
use crate::console::Console;
use crate::output::Output;

const AFTER_HELP: &str = "\
The text is bytes, and need not be UTF-8. Without options, each token is a line: its id, a tab, and its bytes, quoted. \
With --json, stdout gets {\"ids\":[33155,45]}.

Examples:
  rwkv tokenize --prompt 'Hello, world'
  rwkv tokenize --json < book.txt > book.json
  rwkv tokenize --count < book.txt";

/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;

/// Arguments of `rwkv tokenize`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct TokenizeArgs {
    #[command(flatten)]
    prompt: PromptArgs,

    #[command(flatten)]
    vocabulary: VocabularyArgs,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Print only how many tokens there are
    #[arg(long, conflicts_with = "json")]
    count: bool,
}

/// Runs `rwkv tokenize`.
pub fn run(args: &TokenizeArgs, console: Console) -> Result<()> {
    let vocabulary = args.vocabulary.load()?;
    let mut source = args.prompt.open(console)?;
    let mut output = Output::stdout();
    let mut encoder = vocabulary.stream_encoder();
    let mut buffer = vec![0; READ_BYTES];
    let (mut ids, mut count) = (Vec::new(), 0u64);
    if args.json {
        output.bytes(b"{\"ids\":[")?;
    }
    loop {
        let len = source.read(&mut buffer)?;
        if len == 0 {
            encoder.finish(&mut ids)?;
        } else {
            encoder.push(&buffer[..len], &mut ids)?;
        }
        for id in ids.drain(..) {
            if args.json {
                let comma = if count == 0 { "" } else { "," };
                output.bytes(format!("{comma}{id}").as_bytes())?;
            } else if !args.count {
                let token = vocabulary.token_bytes(id).unwrap_or_default();
                output.line(format_args!("{id}\t\"{}\"", quoted(token)))?;
            }
            count += 1;
        }
        if len == 0 {
            break;
        }
    }
    if args.json {
        output.line("]}")?;
    } else if args.count {
        output.line(count)?;
    }
    Ok(output.finish()?)
}

/// Text as it is, but for quotes, backslashes and control characters; other bytes as `\xff`.
fn quoted(token: &[u8]) -> String {
    let mut text = String::new();
    for chunk in token.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '"' | '\\' => text.extend(['\\', char]),
                _ if char.is_control() => text.extend(char.escape_default()),
                _ => text.push(char),
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn tokens_are_quoted() {
        for (token, expected) in [
            (&b" Hello"[..], " Hello"),
            (b"\n\n", "\\n\\n"),
            (b"say \"\\\"", "say \\\"\\\\\\\""),
            ("é".as_bytes(), "é"),
            (b"\xff\xc3", "\\xff\\xc3"),
            (b"\x1b", "\\u{1b}"),
        ] {
            assert_eq!(quoted(token), expected, "{token:?}");
        }
    }
}
