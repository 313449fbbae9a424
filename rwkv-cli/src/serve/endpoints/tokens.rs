//! Text to tokens and back.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::serve::app::App;
use crate::serve::error::ApiError;
use crate::serve::fields::{Fields, wrong};
use crate::serve::prompt::Prompt;

/// `POST /tokenize`: `content` (or `prompt`) to `tokens`.
pub async fn tokenize(State(app): State<App>, mut fields: Fields) -> Result<Json<Value>, ApiError> {
    let loaded = app.loaded()?;
    let text = match fields.text("content")? {
        Some(text) => text,
        None => fields.text("prompt")?.ok_or_else(|| ApiError::field("content", "content is missing"))?,
    };
    let tokens = loaded.encode(&text, "content")?;
    Ok(Json(json!({ "tokens": tokens, "count": tokens.len() })))
}

/// `POST /detokenize`: `tokens` to `content`. Bytes that are no characters become U+FFFD.
pub async fn detokenize(State(app): State<App>, mut fields: Fields) -> Result<Json<Value>, ApiError> {
    let loaded = app.loaded()?;
    let ids = match fields.required("tokens")? {
        Value::Array(list) if list.is_empty() => Vec::new(),
        list @ Value::Array(_) => match Prompt::read_all(list, "tokens")?.as_slice() {
            [prompt @ Prompt::Tokens(_)] => prompt.tokens(loaded, "tokens")?,
            prompts => {
                let what = match prompts {
                    [Prompt::Text(_), ..] => "texts",
                    _ => "lists",
                };
                let message = format!("tokens is a list of {what}; expected a list of tokens");
                return Err(ApiError::field("tokens", message));
            }
        },
        other => return Err(wrong("tokens".into(), &other, "a list of tokens")),
    };
    let bytes = loaded.vocabulary.text(&ids);
    Ok(Json(json!({ "content": String::from_utf8_lossy(&bytes), "count": ids.len() })))
}
