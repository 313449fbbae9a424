//! Feeding a text of any length: read, tokenised and fed piece by piece, in constant memory.

use std::time::{Duration, Instant};

use anyhow::Result;
use rwkv_model::{Feed, Logits, Model, State};

use crate::args::PromptSource;
use crate::console::Console;
use crate::progress::Progress;
use crate::vocabulary::Vocabulary;

/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;

/// What is left of a text after most of it was fed.
#[derive(Debug)]
pub struct Fed {
    /// The last tokens, not yet fed: at most one sweep's, and at least one unless there was none at all.
    pub rest: Vec<u32>,
    /// Tokens that were fed.
    pub tokens: u64,
    /// Time that it took, reading the text included.
    pub time: Duration,
}

/// Feeds the tokens `first` and then a text, all but the last tokens.
pub fn feed_text(
    model: &mut Model,
    state: &mut State,
    vocabulary: &Vocabulary,
    first: Vec<u32>,
    mut source: PromptSource,
    console: Console,
) -> Result<Fed> {
    let begin = Instant::now();
    let vocab = model.config().vocab;
    let chunk = model.chunk_rows();
    let mut encoder = vocabulary.stream_encoder();
    let mut buffer = vec![0; READ_BYTES];
    let (mut ids, mut tokens, mut read) = (first, 0, 0);
    let mut progress = None;
    loop {
        let len = source.read(&mut buffer)?;
        let begin_of_new = ids.len();
        if len == 0 {
            encoder.finish(&mut ids)?;
        } else {
            encoder.push(&buffer[..len], &mut ids)?;
        }
        read += len as u64;
        vocabulary.check(&ids[begin_of_new..], vocab)?;
        let mut fed = 0;
        while ids.len() - fed > chunk {
            let progress = progress.get_or_insert_with(|| reading(console, source.len));
            model.step(&mut [Feed::new(state, &ids[fed..fed + chunk], Logits::None)])?;
            fed += chunk;
            tokens += chunk as u64;
            // The tokens that wait were read, but not fed.
            let share = fed as f64 / ids.len() as f64;
            progress.set(read - ((1.0 - share) * len as f64) as u64);
            progress
                .message(format!("{tokens} tokens, {:.0}/s", tokens as f64 / begin.elapsed().as_secs_f64()));
        }
        ids.drain(..fed);
        if len == 0 {
            return Ok(Fed { rest: ids, tokens, time: begin.elapsed() });
        }
    }
}

fn reading(console: Console, len: Option<u64>) -> Progress {
    match len {
        Some(len) => Progress::text(console, "reading", len),
        None => Progress::spinner(console, "reading"),
    }
}
