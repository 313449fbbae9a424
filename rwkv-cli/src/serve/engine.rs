//! What the page shows of the running engine, below `/engine/`.
//!
//! ```text
//! GET  /engine           the pack: groups, tensors, and what memory it asks for
//! GET  /engine/events    what the demonstration engine does, as server-sent events; it runs only while somebody listens
//! POST /engine/run       starts it, or starts it again with other settings
//! POST /engine/stop      ends it
//! POST /engine/pass      records the next complete pass of a token
//! POST /engine/compare   measures settings against each other
//! ```
//!
//! Events: `status` (what it does, with which settings and memory), `tick` (counters, slots and notes of sampled passes, see
//! `tap.rs`), `sessions` (texts and likely tokens), `states` (norms of the heads' states), `compare-*` (measurements), and `missed`
//! for a listener who was too slow.

mod compare;
mod demonstration;
mod desk;
mod facts;
mod session;
mod settings;
mod tap;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::App;
use super::blocking;
use super::error::ApiError;
use super::fields::{Fields, wrong};
use compare::Comparison;
pub use desk::Desk;
use desk::{Base, END, Message, Wish};
use facts::Facts;
use settings::Settings;

/// How long a pass may take that is to be recorded.
const LONGEST_PASS: Duration = Duration::from_secs(60);
/// Messages on the way to a listener.
const ON_THE_WAY: usize = 4;

/// The engine view's routes. They are behind the key.
pub fn routes() -> Router<App> {
    Router::new()
        .route("/engine", get(read_facts))
        .route("/engine/events", get(events))
        .route("/engine/run", post(run))
        .route("/engine/stop", post(stop))
        .route("/engine/pass", post(record))
        .route("/engine/compare", post(compare))
}

async fn read_facts(State(app): State<App>) -> Result<Json<Facts>, ApiError> {
    let base = base(&app)?;
    let name = app.loaded()?.name.clone();
    blocking(move || Facts::read(&name, &base.pack, &base.options)).await.map(Json)
}

async fn run(State(app): State<App>, mut fields: Fields) -> Result<Json<Value>, ApiError> {
    let base = base(&app)?;
    let settings = Settings::read(&mut fields)?;
    let desk = Arc::clone(app.desk());
    blocking(move || {
        let plan = settings.plan(&base.pack, &base.options);
        let plan = plan.map_err(|line| ApiError::field("budget_bytes", line))?;
        ask(&desk, Wish::Run(settings), &base)?;
        Ok(json!({ "memory_bytes": plan.memory_bytes() }))
    })
    .await
    .map(Json)
}

async fn stop(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    ask(app.desk(), Wish::Stop, &base(&app)?)?;
    Ok(Json(json!({})))
}

async fn compare(State(app): State<App>, mut fields: Fields) -> Result<Json<Value>, ApiError> {
    let name = fields.required("comparison")?;
    let comparison = name.as_str().and_then(Comparison::of);
    let comparison =
        comparison.ok_or_else(|| wrong("comparison".into(), &name, "budgets, read-ahead or sessions"))?;
    ask(app.desk(), Wish::Compare(comparison), &base(&app)?)?;
    Ok(Json(json!({})))
}

async fn record(State(app): State<App>) -> Result<Response, ApiError> {
    let desk = app.desk();
    if !desk.has_engine() {
        return Err(ApiError::invalid("the demonstration engine does not run: POST /engine/run first"));
    }
    let mut passes = desk.passes();
    passes.mark_unchanged();
    let recorded = tokio::time::timeout(LONGEST_PASS, passes.changed()).await;
    let pass = passes.borrow().clone();
    match (recorded, pass) {
        (Ok(Ok(())), Some(pass)) => {
            Ok(([(header::CONTENT_TYPE, "application/json")], pass.to_string()).into_response())
        }
        _ => Err(ApiError::unavailable(
            "no pass came to its end; is somebody listening to /engine/events?",
            "no_pass",
        )),
    }
}

async fn events(State(app): State<App>) -> Result<Response, ApiError> {
    app.loaded()?;
    let looking = app.desk().look_on();
    let too_many =
        || ApiError::unavailable("too many pages look at the engine already", "too_many_onlookers");
    let (before, mut feed) = looking.ok_or_else(too_many)?;
    let (sender, receiver) = mpsc::channel::<Result<Event, Infallible>>(ON_THE_WAY);
    tokio::spawn(async move {
        for message in before {
            if sender.send(Ok(event(message))).await.is_err() {
                return;
            }
        }
        loop {
            let message = tokio::select! {
                message = feed.recv() => message,
                () = sender.closed() => return,
            };
            let event = match message {
                Ok((END, _)) => return,
                Ok(message) => event(message),
                Err(RecvError::Lagged(missed)) => event(("missed", missed.to_string().into())),
                Err(RecvError::Closed) => return,
            };
            if sender.send(Ok(event)).await.is_err() {
                return;
            }
        }
    });
    Ok(Sse::new(ReceiverStream::new(receiver)).keep_alive(KeepAlive::default()).into_response())
}

fn event((name, json): Message) -> Event {
    Event::default().event(name).data(&*json)
}

fn base(app: &App) -> Result<Base, ApiError> {
    let loaded = app.loaded()?;
    Ok(Base {
        pack: loaded.pack.clone(),
        // It keeps no states of prompts.
        options: loaded.options.clone().reserve(0),
        vocabulary: Arc::clone(&loaded.vocabulary),
    })
}

fn ask(desk: &Arc<Desk>, wish: Wish, base: &Base) -> Result<(), ApiError> {
    desk.ask(wish, base)
        .map_err(|error| ApiError::internal(format!("the engine's thread cannot be started: {error}")))
}
