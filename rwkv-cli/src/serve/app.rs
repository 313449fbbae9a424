//! What the handlers share.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Result;
use rwkv_model::ModelOptions;
use tokio::task::JoinHandle;

use super::error::ApiError;
use crate::commands::serve::ServeArgs;
use crate::console::Console;

/// The server, as its handlers see it. Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Shared>);

struct Shared {
    args: Arc<ServeArgs>,
    console: Console,
    loaded: OnceLock<Loaded>,
}

/// What there is once the model is loaded.
pub struct Loaded {
    /// What the model is called.
    pub name: String,
    /// Its pack.
    pub pack: PathBuf,
    /// How it was opened, and how another one of it can be opened.
    pub options: ModelOptions,
}

impl App {
    /// A server whose model is not loaded yet. Checks the arguments.
    pub fn new(args: Arc<ServeArgs>, console: Console) -> Result<App> {
        Ok(App(Arc::new(Shared { args, console, loaded: OnceLock::new() })))
    }

    /// The command line.
    pub fn args(&self) -> &ServeArgs {
        &self.0.args
    }

    /// Where the server says what happens.
    pub fn console(&self) -> Console {
        self.0.console
    }

    /// The model.
    ///
    /// # Errors
    /// 503: it is not loaded yet.
    pub fn loaded(&self) -> Result<&Loaded, ApiError> {
        self.0.loaded.get().ok_or_else(ApiError::loading)
    }

    /// The model is there.
    pub fn set_loaded(&self, loaded: Loaded) {
        assert!(self.0.loaded.set(loaded).is_ok(), "a server loads one model");
    }

    /// Lets running answers end, for so long, and then ends them.
    pub async fn stop(&self, limit: Duration, serving: &mut JoinHandle<()>) {
        let _ = tokio::time::timeout(limit, serving).await;
    }
}
