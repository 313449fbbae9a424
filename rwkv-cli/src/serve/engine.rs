//! What the page shows of the running engine, below `/engine/`.

use axum::Router;

use super::App;

/// The engine view's routes. They are behind the key.
pub fn routes() -> Router<App> {
    Router::new()
}
