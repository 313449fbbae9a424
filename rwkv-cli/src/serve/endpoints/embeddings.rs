//! Embeddings: the mean, over the tokens of a text, of what the model's head is multiplied with (the last block's output after
//! `ln_out`). RWKV models are not trained for it: texts that are alike get vectors that are alike, no more is promised.

use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rwkv_model::{Request, SessionEvent};
use serde_json::{Value, json};

use crate::serve::app::App;
use crate::serve::error::ApiError;
use crate::serve::fields::{Fields, wrong};
use crate::serve::prompt::Prompt;
use crate::serve::sessions::Sessions;

/// The most texts of a request.
const MOST_INPUTS: usize = 256;

/// `POST /v1/embeddings`.
pub async fn embeddings(State(app): State<App>, mut fields: Fields) -> Result<Json<Value>, ApiError> {
    let loaded = app.loaded()?;
    let width = loaded.scheduler.config().width;
    fields.text("model")?;
    fields.text("user")?;
    let is_base64 = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            return Err(wrong("encoding_format".into(), &json!(other), "\"float\" or \"base64\""));
        }
    };
    if let Some(dimensions) = fields.integer("dimensions", 1..=u64::MAX)?
        && dimensions != width as u64
    {
        let message = format!("dimensions is {dimensions}; this model has {width}, and they cannot be cut");
        return Err(ApiError::field("dimensions", message));
    }
    let inputs = Prompt::read_all(fields.required("input")?, "input")?;
    if inputs.len() > MOST_INPUTS {
        let message = format!("input has {} texts; expected at most {MOST_INPUTS}", inputs.len());
        return Err(ApiError::field("input", message));
    }
    let mut prompts = Vec::new();
    for (index, input) in inputs.iter().enumerate() {
        let param = if inputs.len() == 1 { "input".to_owned() } else { format!("input[{index}]") };
        let ids = input.tokens(loaded, &param)?;
        if ids.is_empty() {
            return Err(ApiError::field(param.clone(), format!("{param} is empty; expected a text")));
        }
        prompts.push(ids);
    }
    let tokens: usize = prompts.iter().map(Vec::len).sum();
    let mut data = Vec::new();
    // As many at a time as run at once: a long list must not fill the queue.
    for batch in prompts.chunks(app.args().limits.sessions) {
        let requests = batch.iter().map(|prompt| Request {
            max_tokens: Some(0),
            embedding: true,
            ..app.request(prompt.clone())
        });
        let mut sessions = Sessions::submit(loaded, app.metrics(), requests.collect())?;
        let mut found: Vec<Option<Vec<f32>>> = vec![None; batch.len()];
        while let Some((index, event)) = sessions.next().await? {
            if let SessionEvent::Finished(finished) = event {
                found[index] = finished.embedding;
            }
        }
        for embedding in found {
            let Some(embedding) = embedding else { return Err(ApiError::out_of_time()) };
            let embedding = if is_base64 { base64(&embedding) } else { json!(embedding) };
            data.push(json!({ "object": "embedding", "index": data.len(), "embedding": embedding }));
        }
    }
    Ok(Json(json!({
        "object": "list",
        "data": data,
        "model": loaded.name,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })))
}

fn base64(embedding: &[f32]) -> Value {
    let bytes: Vec<u8> = embedding.iter().flat_map(|value| value.to_le_bytes()).collect();
    Value::String(BASE64_STANDARD.encode(bytes))
}
