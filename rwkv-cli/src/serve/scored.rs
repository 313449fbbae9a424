//! Tokens with their probabilities.

use rwkv_model::TokenLogprobs;
use serde_json::{Value, json};

use crate::vocabulary::Vocabulary;

/// What stands for a probability of zero, whose logarithm JSON cannot say.
const LEAST: f32 = -9999.0;

/// A token of an answer, its probability, and the likeliest tokens in its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// Characters of the answer before it.
    pub offset: usize,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The logarithm of its probability. That of the first token of a text is not known.
    pub logprob: Option<f32>,
    /// The same of the likeliest tokens.
    pub top: Vec<(Vec<u8>, f32)>,
}

impl Scored {
    /// A token, and what the model thought of it.
    pub fn new(
        offset: usize,
        bytes: Vec<u8>,
        scores: Option<&TokenLogprobs>,
        vocabulary: &Vocabulary,
    ) -> Scored {
        let finite = |logprob: f32| logprob.max(LEAST);
        let top = scores.map_or(&[][..], |scores| &scores.top);
        let top = top.iter().map(|&(id, logprob)| (vocabulary.text(&[id]), finite(logprob))).collect();
        Scored { offset, bytes, logprob: scores.map(|scores| finite(scores.logprob)), top }
    }

    /// Moves the token behind so many characters.
    pub fn after(self, characters: usize) -> Scored {
        Scored { offset: self.offset + characters, ..self }
    }
}

/// Scores as `/v1/completions` shows them: one list for each property.
pub fn columns(scored: &[Scored]) -> Value {
    let top = |token: &Scored| -> Value {
        let named = token.top.iter().map(|(bytes, logprob)| (name(bytes), json!(logprob)));
        if token.logprob.is_some() { Value::Object(named.collect()) } else { Value::Null }
    };
    json!({
        "tokens": scored.iter().map(|token| name(&token.bytes)).collect::<Vec<_>>(),
        "token_logprobs": scored.iter().map(|token| token.logprob).collect::<Vec<_>>(),
        "top_logprobs": scored.iter().map(top).collect::<Vec<_>>(),
        "text_offset": scored.iter().map(|token| token.offset).collect::<Vec<_>>(),
    })
}

/// Scores as `/v1/chat/completions` shows them: one object for each token.
pub fn rows(scored: &[Scored]) -> Value {
    let row = |bytes: &[u8], logprob: Option<f32>| json!({ "token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes });
    let token = |token: &Scored| {
        let mut value = row(&token.bytes, token.logprob);
        value["top_logprobs"] = token.top.iter().map(|(bytes, logprob)| row(bytes, Some(*logprob))).collect();
        value
    };
    json!({ "content": scored.iter().map(token).collect::<Vec<_>>(), "refusal": null })
}

/// How many characters begin in these bytes.
pub fn characters_begun(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count()
}

/// A token as a name: its text, or `bytes:\xe2\x82` where it is none.
fn name(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |name, byte| format!("{name}\\x{byte:02x}")),
    }
}
