//! Loading the model, while the port is open already.

use anyhow::{Context, Result};
use rwkv_model::ModelOptions;
use tokio::task::JoinHandle;

use super::app::{App, Loaded};

/// Packs the model if it must be, opens it, and gives it to the server.
pub fn start(app: App) -> JoinHandle<Result<()>> {
    tokio::task::spawn_blocking(move || load(&app))
}

fn load(app: &App) -> Result<()> {
    let args = app.args();
    let pack = args.model.resolve(app.console())?;
    let options = args.model.options(ModelOptions::default().sessions(args.limits.sessions))?;
    let model = args.model.open_pack(&pack, app.console(), options.clone())?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => pack.file_stem().context("the model's file has no name")?.to_string_lossy().into_owned(),
    };
    drop(model);
    app.set_loaded(Loaded { name, pack, options });
    Ok(())
}
