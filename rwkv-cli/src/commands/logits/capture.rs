//! What goes on inside of a model, for `--capture`.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use clap::ValueEnum;
use rwkv_model::{AttentionWeights, Block, Config, Embeddings, Interest, Observer, Side, State};

use super::tensor_file::TensorFile;

/// What can be captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// What goes into each block, and what comes out of it
    Embeddings,
    /// RWKV-X: how much each token attends to each row
    Attention,
}

/// The tensors of a capture: name and shape.
pub fn tensors(what: &[What], config: &Config, state: &State, tokens: usize) -> Vec<(String, Vec<u64>)> {
    let (rows, width) = (tokens as u64, config.width as u64);
    let mut tensors = Vec::new();
    if what.contains(&What::Embeddings) {
        for block in config.blocks() {
            for side in [Side::Input, Side::Output] {
                tensors.push((embedding_name(block, side), vec![rows, width]));
            }
        }
    }
    if what.contains(&What::Attention) {
        let heads = config.width / config.attention_head_size();
        let seen = state.most_attention_rows(tokens) as u64;
        for block in 0..config.attention {
            tensors.push((weights_name(block), vec![heads as u64, rows, seen]));
        }
    }
    tensors
}

fn embedding_name(block: Block, side: Side) -> String {
    let side = match side {
        Side::Input => "input",
        Side::Output => "output",
    };
    match block {
        Block::Rwkv(number) => format!("blocks.{number}.{side}"),
        Block::Attention(number) => format!("attention.{number}.{side}"),
    }
}

fn weights_name(block: usize) -> String {
    format!("attention.{block}.weights")
}

/// Where captured numbers go, and what went wrong with that.
#[derive(Debug)]
pub struct Sink {
    pub file: TensorFile,
    failed: Option<anyhow::Error>,
}

/// Shared by who computes and who captures; both are on one thread.
pub type SharedSink = Arc<Mutex<Sink>>;

impl Sink {
    pub fn new(file: TensorFile) -> SharedSink {
        Arc::new(Mutex::new(Sink { file, failed: None }))
    }

    /// The first error of a capture.
    pub fn check(&mut self) -> Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    fn write(&mut self, tensor: &str, at: u64, values: &[f32]) {
        if self.failed.is_none() {
            self.failed = self.file.write(tensor, at, values).err();
        }
    }
}

/// Writes down what goes on in the model.
#[derive(Debug)]
pub struct Capture {
    sink: SharedSink,
    interest: Interest,
    /// The position of the first token, and how many there are.
    first: u64,
    tokens: u64,
    seen: u64,
}

impl Capture {
    pub fn new(sink: SharedSink, what: &[What], state: &State, tokens: usize) -> Capture {
        let interest = Interest {
            stages: false,
            embeddings: what.contains(&What::Embeddings),
            attention: what.contains(&What::Attention),
        };
        let seen = state.most_attention_rows(tokens) as u64;
        Capture { sink, interest, first: state.tokens(), tokens: tokens as u64, seen }
    }
}

impl Observer for Capture {
    fn interest(&self) -> Interest {
        self.interest
    }

    fn embeddings(&mut self, embeddings: &Embeddings<'_>) {
        let &Embeddings { block, side, rows, feeds } = embeddings;
        let all: usize = feeds.iter().map(|feed| feed.rows.len()).sum();
        let width = rows.len() / all.max(1);
        let name = embedding_name(block, side);
        let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        for feed in feeds {
            let at = (feed.first_position - self.first) * width as u64;
            sink.write(&name, at, &rows[feed.rows.start * width..feed.rows.end * width]);
        }
    }

    fn attention(&mut self, weights: &AttentionWeights<'_>) {
        let &AttentionWeights { block, position, visible, heads, .. } = weights;
        let name = weights_name(block);
        let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        for (head, weights) in heads.iter().enumerate() {
            let row = (head as u64 * self.tokens + (position - self.first)) * self.seen;
            let mut done = 0;
            for rows in visible {
                sink.write(&name, row + rows.start as u64, &weights[done..done + rows.len()]);
                done += rows.len();
            }
        }
    }
}
