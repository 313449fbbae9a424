//! How the official sizes would run here.

use anyhow::Result;
use rwkv_model::kernels::Codec;
use rwkv_model::{Config, ErrorKind, Model, ModelError, ModelOptions, Residency, manifest_of};
use serde::Serialize;

use crate::args::MemoryArgs;
use crate::prediction::{Prediction, Speeds, streams};

/// A model in one codec.
#[derive(Debug, Serialize)]
pub struct Forecast {
    pub model: &'static str,
    pub parameters: u64,
    pub codec: &'static str,
    /// Of the pack.
    pub bytes: u64,
    /// `resident`, `stream`, `mmap`, or `none` where no memory is enough.
    pub residency: &'static str,
    /// Of weights that stream.
    pub budget: Option<u64>,
    pub smallest_budget: Option<u64>,
    pub pinned_groups: Option<usize>,
    pub swept_groups: Option<usize>,
    /// Whether some weights are read again for every token.
    pub streams: bool,
    pub read_bytes_per_token: Option<u64>,
    #[serde(flatten)]
    pub prediction: Option<Prediction>,
}

/// All sizes in these codecs, size by size.
pub fn all(
    codecs: impl IntoIterator<Item = Codec> + Copy,
    memory: &MemoryArgs,
    speeds: &Speeds,
) -> Result<Vec<Forecast>> {
    let options = memory.apply(ModelOptions::default().residency(Residency::Auto))?;
    let models = Config::official_names()
        .filter_map(|name| Some((name, Config::official(name)?)))
        .flat_map(|(name, config)| codecs.into_iter().map(move |codec| (name, config.clone(), codec)));
    models.map(|(name, config, codec)| Ok(Forecast::new(name, &config, codec, &options, speeds)?)).collect()
}

impl Forecast {
    fn new(
        model: &'static str,
        config: &Config,
        codec: Codec,
        options: &ModelOptions,
        speeds: &Speeds,
    ) -> Result<Forecast, ModelError> {
        let manifest = manifest_of(config, codec)?;
        let mut forecast = Forecast {
            model,
            parameters: config.parameters(),
            codec: codec.name(),
            bytes: manifest.data_len(),
            residency: "none",
            budget: None,
            smallest_budget: None,
            pinned_groups: None,
            swept_groups: None,
            streams: false,
            read_bytes_per_token: None,
            prediction: None,
        };
        let plan = match Model::plan_manifest(&manifest, options) {
            Ok(plan) => plan,
            Err(error) if error.kind() == ErrorKind::Residency => return Ok(forecast),
            Err(error) => return Err(error),
        };
        (forecast.residency, forecast.budget) = match plan.residency {
            Residency::Stream { budget_bytes } => ("stream", Some(budget_bytes)),
            Residency::Mapped => ("mmap", None),
            _ => ("resident", None),
        };
        forecast.smallest_budget = Some(plan.smallest_budget);
        forecast.pinned_groups = Some(plan.pinned_groups);
        forecast.swept_groups = Some(plan.swept_groups);
        forecast.streams = streams(&plan);
        forecast.read_bytes_per_token = Some(plan.read_bytes_per_token);
        forecast.prediction = Prediction::new(&manifest, config, &plan, speeds);
        Ok(forecast)
    }
}
