//! Named states: `rwkv serve --state-dir`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use rwkv_model::{Request, SessionEvent};
use serde_json::{Value, json};

use super::Segment;
use crate::serve::app::App;
use crate::serve::blocking;
use crate::serve::error::ApiError;
use crate::serve::fields::Fields;
use crate::serve::prompt::Prompt;
use crate::serve::sessions::Sessions;
use crate::serve::states::StateName;
use crate::session::{Session, Tail};

/// `GET /v1/states`.
pub async fn list(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    let states = Arc::clone(app.states()?);
    let list = blocking(move || states.list()).await?;
    Ok(Json(json!({ "object": "list", "data": list })))
}

/// `GET /v1/states/{name}`.
pub async fn get(State(app): State<App>, Segment(name): Segment) -> Result<Json<Value>, ApiError> {
    let states = Arc::clone(app.states()?);
    let name = StateName::new(&name, "name")?;
    blocking(move || states.get(&name)).await.map(Json)
}

/// `DELETE /v1/states/{name}`.
pub async fn delete(State(app): State<App>, Segment(name): Segment) -> Result<Json<Value>, ApiError> {
    let states = Arc::clone(app.states()?);
    let name = StateName::new(&name, "name")?;
    let id = name.to_string();
    blocking(move || states.delete(&name)).await?;
    Ok(Json(json!({ "id": id, "object": "state", "deleted": true })))
}

/// `POST /v1/states`: reads a prompt, from nothing or from a `state`, and keeps what the model remembers of it as `name`.
pub async fn save(State(app): State<App>, mut fields: Fields) -> Result<Json<Value>, ApiError> {
    let loaded = app.loaded()?;
    let states = Arc::clone(app.states()?);
    let name = StateName::take(&mut fields, "name")?;
    let name = name.ok_or_else(|| ApiError::field("name", "name is missing"))?;
    let from = StateName::take(&mut fields, "state")?;
    let prompts = Prompt::read_all(fields.required("prompt")?, "prompt")?;
    let [prompt] = prompts.as_slice() else {
        return Err(ApiError::field("prompt", format!("prompt has {} texts; expected one", prompts.len())));
    };
    let start = app.start(from.as_ref()).await?;
    let mut prompt = [start.unfed, prompt.tokens(loaded, "prompt")?].concat();
    // What comes next may be fed together with the last token, or instead of nothing.
    let unfed: Vec<u32> = prompt.pop().into_iter().collect();
    let prompt_tokens = prompt.len() + unfed.len();
    let request =
        Request { state: start.state, max_tokens: Some(0), keep_state: true, ..app.request(prompt) };
    let mut sessions = Sessions::submit(loaded, app.metrics(), vec![request])?;
    while let Some((_, event)) = sessions.next().await? {
        let SessionEvent::Finished(finished) = event else { continue };
        let Some(state) = finished.state else { break };
        let session = Session { state, tail: Tail { unfed, ..Tail::default() } };
        let mut saved = blocking(move || states.save(&name, &session)).await?;
        saved["usage"] = json!({ "prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens });
        return Ok(Json(saved));
    }
    Err(ApiError::internal("the session has left no state"))
}
