//! What the server answers at each path.

mod chat;
mod completions;
mod embeddings;
mod health;
mod models;
mod openapi;
mod states;
mod tokens;

use axum::Router;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::routing::{get, post};

use super::app::App;
use super::error::ApiError;
use super::metrics;

/// The last part of a path.
pub struct Segment(String);

impl FromRequestParts<App> for Segment {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Segment, ApiError> {
        let path = Path::from_request_parts(parts, app).await;
        path.map(|Path(name)| Segment(name)).map_err(|_| ApiError::invalid("the path is not UTF-8"))
    }
}

/// Routes for everybody.
pub fn open() -> Router<App> {
    Router::new().route("/health", get(health::health)).route("/openapi.json", get(openapi::openapi))
}

/// Routes behind the key.
pub fn guarded() -> Router<App> {
    Router::new()
        .route("/v1/models", get(models::list))
        .route("/v1/models/{model}", get(models::get))
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/states", get(states::list).post(states::save))
        .route("/v1/states/{name}", get(states::get).delete(states::delete))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/metrics", get(metrics::metrics))
}
