//! The server of `rwkv serve`.
//!
//! ```text
//! connection ─► guard (host, origin, key) ─► route ─► request, checked ─► Scheduler::submit
//!                                                                            │ engine thread
//!     client ◄── JSON, or server-sent events ◄── channel of bounded size ◄───┘ events
//! ```
//!
//! The engine never waits for a client: an event that finds the channel full, or nobody at its other end, ends the session.

#[allow(dead_code, reason = "the page is to use all of it")]
mod app;
mod connections;
mod engine;
#[allow(dead_code, reason = "the endpoints that are to come use all of it")]
mod error;
mod health;
mod load;
mod page;

pub use app::App;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::get;
use tokio::net::TcpListener;
use tower_http::catch_panic::CatchPanicLayer;

use crate::commands::serve::ServeArgs;
use crate::console::Console;
use crate::interrupt::{self, Interruptible};
use error::ApiError;

/// Threads that read requests and write answers. The work is done by the model's own.
const THREADS: usize = 2;
/// How long a load has to notice that it is to end, and to leave nothing behind.
const END_OF_LOAD: Duration = Duration::from_secs(10);

/// Serves until Ctrl-C or SIGTERM.
///
/// # Errors
/// The port cannot be opened, or the model cannot be loaded.
pub fn run(args: Arc<ServeArgs>, console: Console) -> Result<()> {
    // Ctrl-C is for the server, not for the process.
    let _section = Interruptible::begin();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .context("the server's threads cannot be started")?;
    let result = runtime.block_on(serve(args, console));
    // What still runs is nothing that anybody waits for.
    runtime.shutdown_background();
    result
}

async fn serve(args: Arc<ServeArgs>, console: Console) -> Result<()> {
    let app = App::new(Arc::clone(&args), console)?;
    let listener = TcpListener::bind((args.host, args.port))
        .await
        .with_context(|| format!("cannot listen at {}:{}", args.host, args.port))?;
    let address = listener.local_addr().context("the port is not known")?;
    console.note(format_args!("listening at http://{address}"));
    let stop = connections::Stop::on_signal()?;
    let mut load = load::start(app.clone());
    let mut serving =
        tokio::spawn(connections::serve(listener, router(&app), args.limits.connections, stop.clone()));
    tokio::select! {
        loaded = &mut load => loaded??,
        () = stop.requested() => {
            interrupt::request();
            let _ = tokio::time::timeout(END_OF_LOAD, load).await;
            return Ok(());
        }
    }
    console.note(format_args!("ready: {}", app.loaded()?.name));
    stop.requested().await;
    console.note("ending: no more requests are taken");
    app.stop(args.limits.shutdown_limit, &mut serving).await;
    Ok(())
}

/// All routes.
fn router(app: &App) -> Router {
    Router::new()
        .route("/health", get(health::health))
        .merge(page::routes())
        .merge(engine::routes())
        .fallback(|| async { ApiError::no_route() })
        .method_not_allowed_fallback(|| async { ApiError::no_method() })
        .layer(DefaultBodyLimit::max(usize::try_from(app.args().limits.body_limit).unwrap_or(usize::MAX)))
        .layer(CatchPanicLayer::custom(error::panicked))
        .with_state(app.clone())
}
