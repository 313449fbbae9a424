//! Loading the model, while the port is open already.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use rwkv_model::{ModelOptions, Scheduler, SchedulerOptions, TokenBytes};
use tokio::task::JoinHandle;

use super::app::{App, Loaded};
use crate::model_file::{self, DEMO};

/// Packs the model if it must be, opens it, and gives it to the server.
pub fn start(app: App) -> JoinHandle<Result<()>> {
    tokio::task::spawn_blocking(move || load(&app))
}

fn load(app: &App) -> Result<()> {
    let (args, console) = (app.args(), app.console());
    let limits = &args.limits;
    let vocabulary = Arc::new(args.vocabulary.load_for(&args.model)?);
    let pack = args.model.resolve(console)?;
    let options = ModelOptions::default().sessions(limits.sessions).reserve(limits.prefix_cache);
    let options = args.model.options(&pack, options)?;
    let model = args.model.open_pack(&pack, console, options.clone())?;
    vocabulary.warn_unless_fit(model.config().vocab, console);
    let name = match &args.name {
        Some(name) => name.clone(),
        None if args.model.is_demo() => DEMO.to_owned(),
        None => model_file::pack_name(args.model.named()?, args.model.codec)?,
    };
    let token_bytes: TokenBytes = {
        let vocabulary = Arc::clone(&vocabulary);
        Arc::new(move |id, bytes| vocabulary.append(id, bytes))
    };
    let scheduler = Scheduler::start(
        model,
        SchedulerOptions {
            queue: limits.queue,
            sessions: limits.sessions,
            prefix_cache_bytes: limits.prefix_cache,
            spill: args.prefix_dir.clone(),
            spill_bytes: limits.prefix_bytes,
            ..SchedulerOptions::new(token_bytes)
        },
    )?;
    if args.prefix_dir.is_some() && scheduler.stats().prefix.limit_bytes == 0 {
        console.warn("--prefix-dir keeps nothing: the budget has no room for states of prompts");
    }
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    app.set_loaded(Loaded { name, created, pack, options, vocabulary, scheduler });
    Ok(())
}
