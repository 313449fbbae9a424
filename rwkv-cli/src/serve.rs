//! The server of `rwkv serve`.
//!
//! ```text
//! connection ─► guard (host, origin, key) ─► route ─► request, checked ─► Scheduler::submit
//!                                                                            │ engine thread
//!     client ◄── JSON, or server-sent events ◄── channel of bounded size ◄───┘ events
//! ```
//!
//! The engine never waits for a client: an event that finds the channel full, or nobody at its other end, ends the session.
//! A request is checked to its last field before it is given to the scheduler, and a stream begins, with its 200, when its
//! session has left the queue; so whatever can be refused is refused with a status.

mod answer;
mod app;
mod choice;
mod connections;
mod endpoints;
mod engine;
mod error;
mod fields;
#[cfg(test)]
mod fuzz;
mod guard;
mod load;
mod messages;
mod metrics;
mod page;
mod prompt;
mod scored;
mod sessions;
mod settings;
mod states;
mod template;
mod text;

pub use app::App;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
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
/// How long connections have to take what was still written for them.
const END_OF_CONNECTIONS: Duration = Duration::from_secs(2);

/// Serves until Ctrl-C, SIGTERM or SIGHUP.
///
/// # Errors
/// The port cannot be opened, or the model cannot be loaded.
pub fn run(args: Arc<ServeArgs>, console: Console) -> Result<()> {
    // What is wrong is said before the port is opened.
    args.model.named()?;
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
    if !args.host.is_loopback() && !app.guard().has_key() {
        console.warn("whoever reaches this machine may use the model: --api-key asks for a key");
    }
    let wanted = SocketAddr::from((args.host, args.port));
    let listener = TcpListener::bind(wanted).await.with_context(|| format!("cannot listen at {wanted}"))?;
    let address = listener.local_addr().context("the port is not known")?;
    console.note(format_args!("listening at http://{address}"));
    let stop = connections::Stop::on_signal()?;
    let mut load = load::start(app.clone());
    let mut serving = tokio::spawn({
        let (args, router, stop) = (Arc::clone(&args), router(&app), stop.clone());
        async move { connections::serve(listener, router, &args.limits, stop).await }
    });
    tokio::select! {
        loaded = &mut load => loaded??,
        () = stop.requested() => {
            interrupt::request();
            let _ = tokio::time::timeout(END_OF_LOAD, load).await;
            return Ok(());
        }
    }
    let scheduler = app.loaded()?.scheduler.clone();
    console.note(format_args!("ready: {}", app.loaded()?.name));
    stop.requested().await;
    app.desk().close();
    console.note("ending: no more requests are taken");
    let limit = args.limits.shutdown_limit;
    let ended = tokio::task::spawn_blocking(move || scheduler.shutdown(limit));
    ended.await.context("the engine did not end")?;
    // Sessions have ended by now, and their last words are in the channels.
    let _ = tokio::time::timeout(END_OF_CONNECTIONS, &mut serving).await;
    Ok(())
}

/// All routes.
fn router(app: &App) -> Router {
    let guarded = endpoints::guarded().merge(engine::routes());
    let guarded = guarded.route_layer(from_fn_with_state(app.clone(), guard::key));
    let router = Router::new()
        .merge(endpoints::open())
        .merge(page::routes())
        .merge(guarded)
        .fallback(|| async { ApiError::no_route() })
        .method_not_allowed_fallback(|| async { ApiError::no_method() })
        .layer(DefaultBodyLimit::max(usize::try_from(app.args().limits.body_limit).unwrap_or(usize::MAX)))
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(from_fn_with_state(app.clone(), guard::place))
        .layer(from_fn_with_state(app.clone(), metrics::count));
    let router = match app.guard().cors() {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router.with_state(app.clone())
}

/// Runs what waits for files or threads, where that holds up nobody.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(ApiError::internal("the server met a state that it should never be in")),
    }
}
