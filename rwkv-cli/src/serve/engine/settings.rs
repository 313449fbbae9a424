//! How the demonstration engine is to run.

use std::path::Path;

use rwkv_model::cache::ReadAhead;
use rwkv_model::{MemoryPlan, Model, ModelOptions, Residency, available_memory};
use serde::Serialize;

use crate::serve::error::ApiError;
use crate::serve::fields::Fields;

/// Numbers of sessions that can be chosen.
pub const SESSIONS: [usize; 3] = [1, 2, 4];
/// What has to stay free for everything else.
const RESERVE_BYTES: u64 = 128 << 20;

/// What the page's switches say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    pub read_ahead: ReadAhead,
    /// None: all weights in memory.
    pub budget_bytes: Option<u64>,
    pub sessions: usize,
}

/// The same, in JSON.
#[derive(Debug, Clone, Serialize)]
pub struct SettingsBody {
    read_ahead: String,
    budget_bytes: Option<u64>,
    sessions: usize,
}

impl From<Settings> for SettingsBody {
    fn from(settings: Settings) -> SettingsBody {
        let Settings { read_ahead, budget_bytes, sessions } = settings;
        SettingsBody { read_ahead: read_ahead.to_string(), budget_bytes, sessions }
    }
}

impl Settings {
    /// Reads them from a request.
    pub fn read(fields: &mut Fields) -> Result<Settings, ApiError> {
        let read_ahead = match fields.text("read_ahead")? {
            Some(name) => {
                let read_ahead = name.parse::<ReadAhead>();
                read_ahead.map_err(|error| ApiError::field("read_ahead", error.to_string()))?
            }
            None => ReadAhead::default(),
        };
        let sessions = fields.integer("sessions", 1..=4)?.unwrap_or(1) as usize;
        if !SESSIONS.contains(&sessions) {
            return Err(ApiError::field("sessions", format!("sessions is {sessions}; expected 1, 2 or 4")));
        }
        Ok(Settings { read_ahead, budget_bytes: fields.integer("budget_bytes", 0..=u64::MAX)?, sessions })
    }

    /// How a model is opened for them.
    pub fn options(&self, options: &ModelOptions) -> ModelOptions {
        let residency = match self.budget_bytes {
            Some(budget_bytes) => Residency::Stream { budget_bytes },
            None => Residency::Resident,
        };
        options.clone().residency(residency).read_ahead(self.read_ahead).sessions(self.sessions)
    }

    /// What that takes, if there is so much memory beside the model that answers requests.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn plan(&self, pack: &Path, options: &ModelOptions) -> Result<MemoryPlan, String> {
        let plan = Model::plan(pack, &self.options(options))
            .map_err(|error| format!("{:#}", anyhow::Error::new(error)))?;
        let (needed, available) = (plan.memory_bytes(), available_memory());
        match available {
            Some(available) if needed.saturating_add(RESERVE_BYTES) > available => Err(format!(
                "the demonstration would take {needed} bytes of memory, and {available} are available: choose a smaller budget"
            )),
            _ => Ok(plan),
        }
    }
}
