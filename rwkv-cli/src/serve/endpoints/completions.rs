//! `/v1/completions`: a text goes on.

use axum::extract::State;
use axum::response::Response;
use rwkv_model::{Finished, Request, SamplerParams};
use serde_json::{Value, json};

use crate::serve::answer::{Plan, Shape, Whole};
use crate::serve::app::{App, Loaded};
use crate::serve::choice::finish_reason;
use crate::serve::error::ApiError;
use crate::serve::fields::Fields;
use crate::serve::prompt::{Prompt, from_the_beginning};
use crate::serve::scored::{Scored, characters_begun, columns};
use crate::serve::settings::{MOST_CHOICES, MOST_LOGPROBS, Settings};
use crate::serve::text::Characters;
use crate::vocabulary::Vocabulary;

/// The most log probabilities of prompts in a request: all of them are in memory until the answer is written, some 400 bytes each.
const MOST_SCORES: usize = 1 << 16;

/// `POST /v1/completions`.
pub async fn completions(State(app): State<App>, mut fields: Fields) -> Result<Response, ApiError> {
    let loaded = app.loaded()?;
    let base = app.args().model.sampler_params(SamplerParams::default());
    let settings = Settings::take(&mut fields, base, loaded.scheduler.config().vocab)?;
    let prompts = match fields.take("prompt") {
        None => vec![Prompt::Text(String::new())],
        Some(value) => Prompt::read_all(value, "prompt")?,
    };
    let choices = prompts.len().saturating_mul(settings.n);
    if choices as u64 > MOST_CHOICES {
        let message = format!("{choices} choices are asked for; expected at most {MOST_CHOICES}");
        return Err(ApiError::field("prompt", message));
    }
    if settings.save_state.is_some() && choices > 1 {
        return Err(ApiError::field("save_state", "save_state is only for one prompt"));
    }
    let echo = fields.flag("echo")?.unwrap_or(false);
    let logprobs = fields.integer("logprobs", 0..=MOST_LOGPROBS)?.map(|count| count as usize);
    if echo && logprobs.is_some() && settings.stream {
        let message = "logprobs with echo are known at the end; expected stream: false";
        return Err(ApiError::field("logprobs", message));
    }
    if let Some(best_of) = fields.integer("best_of", 1..=MOST_CHOICES)?
        && best_of != settings.n as u64
    {
        let message = format!("best_of is {best_of}; expected none, or as many as n");
        return Err(ApiError::field("best_of", message));
    }
    fields.refuse("suffix", |value| value == "", "the model reads forwards only")?;
    let start = app.start(settings.state.as_ref()).await?;
    let mut scores = 0;
    let mut requests = Vec::new();
    let mut echoes = Vec::new();
    for (index, prompt) in prompts.iter().enumerate() {
        let param = if prompts.len() == 1 { "prompt".to_owned() } else { format!("prompt[{index}]") };
        let own = prompt.tokens(loaded, &param)?;
        let ids = [start.unfed.as_slice(), &own].concat();
        let ids = if start.state.is_none() { from_the_beginning(ids) } else { ids };
        if ids.is_empty() {
            return Err(ApiError::field(param, "the prompt is empty, and the text of the state has ended"));
        }
        if let (true, Some(count)) = (echo, logprobs) {
            scores += settings.n * ids.len() * (count + 1);
            if scores > MOST_SCORES {
                let message = format!(
                    "{scores} log probabilities of prompts are asked for, {} for a token; expected at most {MOST_SCORES} in a request",
                    count + 1
                );
                return Err(ApiError::field("logprobs", message));
            }
        }
        for choice in 0..settings.n {
            echoes.push(echo.then(|| Echo::new(loaded, &own, ids.len())));
            requests.push(Request {
                state: start.state.clone(),
                logprobs,
                prompt_logprobs: logprobs.filter(|_| echo),
                ..app.text_request(ids.clone(), &settings, choice)
            });
        }
    }
    let Settings { n, stream, include_usage, save_state, .. } = settings;
    let shape = Completion { echoes, is_scored: logprobs.is_some() };
    Plan { shape, requests, n, skips_blanks: false, stream, include_usage, save_state }.answer(app).await
}

/// A prompt that is repeated before its answer.
struct Echo {
    /// Its whole characters.
    text: String,
    /// What has taken its bytes, the beginning of a further character among them.
    characters: Characters,
    tokens: Vec<Vec<u8>>,
    /// Tokens that the session was fed before those of the prompt.
    before: usize,
}

impl Echo {
    fn new(loaded: &Loaded, own: &[u32], fed: usize) -> Echo {
        let tokens = own.iter().map(|&id| loaded.vocabulary.text(&[id])).collect();
        let mut characters = Characters::default();
        let text = characters.push(&loaded.vocabulary.text(own));
        Echo { text, characters, tokens, before: fed - own.len() }
    }

    /// The prompt's tokens, scored. The first one of all has nothing before it that it could follow from.
    fn scored(&self, end: &Finished, vocabulary: &Vocabulary) -> Vec<Scored> {
        let mut offset = 0;
        let score = |(index, bytes): (usize, &Vec<u8>)| {
            let logprobs = (self.before + index).checked_sub(1).and_then(|at| end.prompt_logprobs.get(at));
            let scored = Scored::new(offset, bytes.clone(), logprobs, vocabulary);
            offset += characters_begun(bytes);
            scored
        };
        self.tokens.iter().enumerate().map(score).collect()
    }
}

struct Completion {
    /// By choice.
    echoes: Vec<Option<Echo>>,
    is_scored: bool,
}

impl Shape for Completion {
    const ID: &'static str = "cmpl";
    const OBJECT: &'static str = "text_completion";
    const CHUNK: &'static str = "text_completion";

    fn begun(&self, choice: usize) -> Characters {
        self.echoes[choice].as_ref().map(|echo| echo.characters.clone()).unwrap_or_default()
    }

    fn opening(&self, choice: usize) -> Option<Value> {
        self.echoes[choice].as_ref().map(|echo| json!({ "text": echo.text }))
    }

    fn part(&self, text: &str, scored: &[Scored], _: bool) -> Value {
        let logprobs = if self.is_scored && !scored.is_empty() { columns(scored) } else { Value::Null };
        json!({ "text": text, "logprobs": logprobs })
    }

    fn whole(&self, choice: usize, whole: Whole, vocabulary: &Vocabulary) -> Value {
        let Whole { mut text, mut scored, end } = whole;
        if let Some(echo) = &self.echoes[choice] {
            let before = echo.tokens.iter().map(|bytes| characters_begun(bytes)).sum();
            let mut all = echo.scored(&end, vocabulary);
            all.extend(scored.into_iter().map(|token| token.after(before)));
            (text, scored) = (format!("{}{text}", echo.text), all);
        }
        json!({
            "index": choice,
            "text": text,
            "logprobs": if self.is_scored { columns(&scored) } else { Value::Null },
            "finish_reason": finish_reason(end.reason),
        })
    }
}
