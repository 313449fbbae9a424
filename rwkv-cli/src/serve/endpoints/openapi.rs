//! The description of the API.

use axum::http::header;
use axum::response::IntoResponse;

const OPENAPI: &str = include_str!("openapi.json");

/// `GET /openapi.json`.
pub async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI)
}
