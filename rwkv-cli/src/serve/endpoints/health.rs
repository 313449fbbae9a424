//! Whether the server can answer.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::serve::App;

/// `GET /health`: 200 once the model is loaded. It says nothing else, since it needs no key.
pub async fn health(State(app): State<App>) -> (StatusCode, Json<Value>) {
    match app.loaded() {
        Ok(_) => (StatusCode::OK, Json(json!({ "status": "ok" }))),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": "loading" }))),
    }
}
