//! `/v1/chat/completions`: a message is answered.

use axum::extract::State;
use axum::response::Response;
use rwkv_model::{Request, SamplerParams};
use serde_json::{Value, json};

use crate::serve::answer::{Plan, Shape, Whole};
use crate::serve::app::App;
use crate::serve::choice::finish_reason;
use crate::serve::error::ApiError;
use crate::serve::fields::Fields;
use crate::serve::messages::Message;
use crate::serve::scored::{Scored, rows};
use crate::serve::settings::{MOST_LOGPROBS, Settings};
use crate::serve::template::continues;
use crate::vocabulary::Vocabulary;

/// `POST /v1/chat/completions`.
pub async fn chat(State(app): State<App>, mut fields: Fields) -> Result<Response, ApiError> {
    let loaded = app.loaded()?;
    let base = app.args().model.sampler_params(SamplerParams::chat());
    let mut settings = Settings::take(&mut fields, base, loaded.scheduler.config().vocab)?;
    let messages = Message::take_all(&mut fields)?;
    let logprobs = logprobs(&mut fields)?;
    refuse_what_is_not_there(&mut fields)?;
    settings.stop.extend(app.chat_stops());
    let start = app.start(settings.state.as_ref()).await?;
    let text = start.before(app.template().render(&messages)?);
    let prompt = [start.unfed, loaded.encode(&text, "messages")?].concat();
    if prompt.is_empty() {
        return Err(ApiError::field("messages", "the chat template makes no text of the messages"));
    }
    let requests = (0..settings.n).map(|choice| Request {
        state: start.state.clone(),
        logprobs,
        ..app.text_request(prompt.clone(), &settings, choice)
    });
    let requests = requests.collect();
    let Settings { n, stream, include_usage, save_state, .. } = settings;
    let shape = Chat { is_scored: logprobs.is_some() };
    let skips_blanks = !continues(&messages);
    Plan { shape, requests, n, skips_blanks, stream, include_usage, save_state }.answer(app).await
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    match fields.integer("top_logprobs", 0..=MOST_LOGPROBS)? {
        Some(1..) if !wanted => Err(ApiError::field("top_logprobs", "top_logprobs needs logprobs: true")),
        count => Ok(wanted.then_some(count.unwrap_or(0) as usize)),
    }
}

/// What other servers know, and what would be missed without a word.
fn refuse_what_is_not_there(fields: &mut Fields) -> Result<(), ApiError> {
    let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    fields.refuse("tools", is_empty, "the model calls no tools")?;
    fields.refuse("functions", is_empty, "the model calls no functions")?;
    fields.refuse("response_format", |format| format["type"] == "text", "answers are free text")?;
    fields.refuse("modalities", |list| *list == json!(["text"]), "answers are text alone")?;
    fields.refuse("audio", |_| false, "answers are text alone")
}

struct Chat {
    is_scored: bool,
}

impl Shape for Chat {
    const ID: &'static str = "chatcmpl";
    const OBJECT: &'static str = "chat.completion";
    const CHUNK: &'static str = "chat.completion.chunk";

    fn opening(&self, _: usize) -> Option<Value> {
        Some(json!({ "delta": { "role": "assistant", "content": "" } }))
    }

    fn part(&self, text: &str, scored: &[Scored], is_last: bool) -> Value {
        let delta = if is_last { json!({}) } else { json!({ "content": text }) };
        let logprobs = if self.is_scored && !scored.is_empty() { rows(scored) } else { Value::Null };
        json!({ "delta": delta, "logprobs": logprobs })
    }

    fn whole(&self, choice: usize, Whole { text, scored, end }: Whole, _: &Vocabulary) -> Value {
        json!({
            "index": choice,
            "message": { "role": "assistant", "content": text, "refusal": null },
            "logprobs": if self.is_scored { rows(&scored) } else { Value::Null },
            "finish_reason": finish_reason(end.reason),
        })
    }
}
