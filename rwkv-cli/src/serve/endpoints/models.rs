//! The models that there are: one.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::Segment;
use crate::serve::app::{App, Loaded};
use crate::serve::error::ApiError;

/// `GET /v1/models`.
pub async fn list(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    Ok(Json(json!({ "object": "list", "data": [describe(app.loaded()?)] })))
}

/// `GET /v1/models/{model}`.
pub async fn get(State(app): State<App>, Segment(model): Segment) -> Result<Json<Value>, ApiError> {
    let loaded = app.loaded()?;
    if model != loaded.name {
        let message = format!("there is no model {model:?}; there is {:?}", loaded.name);
        return Err(ApiError::not_found(message).code("model_not_found"));
    }
    Ok(Json(describe(loaded)))
}

fn describe(loaded: &Loaded) -> Value {
    let config = loaded.scheduler.config();
    json!({
        "id": loaded.name,
        "object": "model",
        "created": loaded.created,
        "owned_by": "local",
        "meta": { "family": config.family().to_string(), "vocab": config.vocab, "width": config.width, "layers": config.layers },
    })
}
