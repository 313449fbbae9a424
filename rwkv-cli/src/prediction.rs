//! How fast a model will be, from what the machine can do.
//!
//! ```text
//! a token   = max(computing, reading)                 the disk works while the processor does
//! computing = weights of each codec / its speed       columns of inputs that are zero left out
//!           + a state, read and written / memory's speed
//! reading   = what is read for a token / the disk's speed
//! ```
//!
//! What is left out: norms, hand-offs between threads, and what the disk's driver takes of the processor.

use std::time::Duration;

use anyhow::Result;
use rwkv_model::kernels::{Codec, Isa};
use rwkv_model::pack::{Manifest, PackedTensor};
use rwkv_model::{Config, MemoryPlan, Residency};
use serde::Serialize;

use crate::machine::{Disk, Limits};

/// The share of the channel mix's activations that are taken to be zero, as in trained models.
pub const ZEROS: f64 = 0.85;

/// What the machine can do, in bytes per second.
#[derive(Debug, Clone)]
pub struct Speeds {
    /// Of memory.
    pub memory: f64,
    /// Of products with the weights of a codec, one row at a time.
    pub codecs: Vec<(Codec, f64)>,
    /// Of plain reads.
    pub disk: Option<f64>,
}

/// What a token takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Prediction {
    #[serde(rename = "predicted_tokens_per_s")]
    pub tokens_per_s: f64,
    #[serde(rename = "predicted_compute_s_per_token")]
    pub compute_s_per_token: f64,
    #[serde(rename = "predicted_read_s_per_token")]
    pub read_s_per_token: f64,
}

impl Speeds {
    /// Measures: about a second with a disk, half of that without.
    ///
    /// # Errors
    /// Memory cannot be had, or the disk not be read.
    pub fn measure(
        threads: usize,
        width: usize,
        codecs: impl IntoIterator<Item = Codec>,
        disk: Option<&mut Disk>,
    ) -> Result<Speeds> {
        let disk = disk.map(|disk| disk.measure(DISK_TIME)).transpose()?;
        let mut limits = Limits::new()?;
        limits.use_threads(Isa::from_env()?, threads);
        let memory = limits.probe_memory();
        let codecs = codecs.into_iter().map(|codec| (codec, limits.probe_codec(codec, width))).collect();
        Ok(Speeds { memory, codecs, disk })
    }

    /// The speed of a codec; of one that was not measured, that of memory.
    fn codec(&self, name: &str) -> f64 {
        let measured = self.codecs.iter().find(|(codec, _)| codec.name() == name);
        measured.map_or(self.memory, |&(_, speed)| speed)
    }
}

/// How long the disk is measured.
const DISK_TIME: Duration = Duration::from_millis(700);

impl Prediction {
    /// What a token takes of a model with this manifest and plan. Nothing for weights that are left to the page cache, or to a disk
    /// that was not measured.
    pub fn new(
        manifest: &Manifest,
        config: &Config,
        plan: &MemoryPlan,
        speeds: &Speeds,
    ) -> Option<Prediction> {
        let compute = compute_seconds(manifest, config, speeds);
        let read = match (plan.residency, speeds.disk) {
            (Residency::Resident, _) => 0.0,
            // A row of the embedding is all that is read then.
            (Residency::Stream { .. }, _) if !streams(plan) => 0.0,
            (Residency::Stream { .. }, Some(disk)) => plan.read_bytes_per_token as f64 / disk,
            _ => return None,
        };
        let token = f64::max(compute, read);
        Some(Prediction { tokens_per_s: 1.0 / token, compute_s_per_token: compute, read_s_per_token: read })
    }
}

/// Whether some weights are read again for every token.
pub fn streams(plan: &MemoryPlan) -> bool {
    matches!(plan.residency, Residency::Stream { .. }) && plan.pinned_groups < plan.swept_groups
}

fn compute_seconds(manifest: &Manifest, config: &Config, speeds: &Speeds) -> f64 {
    let touched = |tensor: &PackedTensor| match tensor.layout.as_str() {
        "columns" => tensor.len as f64 * (1.0 - ZEROS),
        _ => tensor.len as f64,
    };
    let swept = manifest.groups.iter().filter(|group| group.swept).flat_map(|group| &group.tensors);
    let weights: f64 = swept.map(|tensor| touched(tensor) / speeds.codec(&tensor.codec)).sum();
    weights + 2.0 * config.state_bytes() as f64 / speeds.memory
}

/// The codecs of the weights that a token goes over.
pub fn codecs(manifest: &Manifest) -> Vec<Codec> {
    let swept = manifest.groups.iter().filter(|group| group.swept).flat_map(|group| &group.tensors);
    let mut codecs: Vec<Codec> = Vec::new();
    for codec in swept.filter_map(|tensor| tensor.codec.parse().ok()) {
        if !codecs.contains(&codec) {
            codecs.push(codec);
        }
    }
    codecs
}

#[cfg(test)]
mod tests {
    use rwkv_model::{Model, ModelOptions, manifest_of};

    use super::*;

    fn predict(budget_bytes: Option<u64>, disk: Option<f64>) -> Option<Prediction> {
        let config = Config::official("1.5b").unwrap();
        let manifest = manifest_of(&config, Codec::F16).unwrap();
        let residency =
            budget_bytes.map_or(Residency::Resident, |budget_bytes| Residency::Stream { budget_bytes });
        let plan = Model::plan_manifest(&manifest, &ModelOptions::default().residency(residency)).unwrap();
        let speeds = Speeds { memory: 20e9, codecs: vec![(Codec::F16, 10e9)], disk };
        Prediction::new(&manifest, &config, &plan, &speeds)
    }

    #[test]
    fn a_token_takes_as_long_as_the_slower_of_disk_and_processor() {
        // 1.5B has 24 * 2 * 8192 * 2048 weights in channel mixes, half of them in columns, and 1.39e9 in all that is swept.
        let resident = predict(None, None).unwrap();
        let bytes = 2.0 * (1.39e9 - ZEROS * 24.0 * 8192.0 * 2048.0);
        assert!((resident.compute_s_per_token / (bytes / 10e9) - 1.0).abs() < 0.03, "{resident:?}");
        assert_eq!(resident.tokens_per_s, 1.0 / resident.compute_s_per_token);
        let slow_disk = predict(Some(512 << 20), Some(1e9)).unwrap();
        assert_eq!(slow_disk.compute_s_per_token, resident.compute_s_per_token);
        assert!((2.0..2.7).contains(&slow_disk.read_s_per_token), "{slow_disk:?}");
        assert_eq!(slow_disk.tokens_per_s, 1.0 / slow_disk.read_s_per_token);
        let fast_disk = predict(Some(512 << 20), Some(1e12)).unwrap();
        assert_eq!(fast_disk.tokens_per_s, resident.tokens_per_s);
        assert_eq!(predict(Some(512 << 20), None), None, "a disk that nobody has measured");
        assert_eq!(predict(Some(64 << 30), None), Some(resident), "a budget in which everything stays");
    }

    #[test]
    fn codecs_are_those_that_are_swept() {
        let config = Config::official("0.1b").unwrap();
        for (main, expected) in
            [(Codec::F32, vec![Codec::F32]), (Codec::U4, vec![Codec::U4, Codec::F16, Codec::U8])]
        {
            assert_eq!(codecs(&manifest_of(&config, main).unwrap()), expected);
        }
    }
}
