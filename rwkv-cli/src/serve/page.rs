//! The page at `/`. It is served without the key, which it asks for itself.

use axum::Router;

use super::App;

/// The page's routes.
pub fn routes() -> Router<App> {
    Router::new()
}
