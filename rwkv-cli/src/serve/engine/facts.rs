//! What does not change while the server runs: the pack, and what memory it asks for.

use std::path::Path;

use rwkv_model::pack::{Group, Pack, PackedTensor};
use rwkv_model::{Block, Config, Model, ModelOptions, Residency};
use serde::Serialize;

use super::settings::SESSIONS;
use crate::serve::error::ApiError;

/// The pack as the page draws it.
#[derive(Debug, Serialize)]
pub struct Facts {
    pub name: String,
    pub description: String,
    pub family: &'static str,
    pub layers: usize,
    pub heads: usize,
    pub head_size: usize,
    pub vocabulary: usize,
    pub parameters: u64,
    pub file_bytes: u64,
    /// In the order in which they are run: the number of a block with a time mix, -2 minus the number of an attention block.
    pub blocks: Vec<i32>,
    pub groups: Vec<GroupFacts>,
    /// For 1, 2 and 4 sessions.
    pub budgets: Vec<Bounds>,
}

/// A group of the pack.
#[derive(Debug, Serialize)]
pub struct GroupFacts {
    pub name: String,
    /// Whether every token needs it whole.
    pub swept: bool,
    pub offset: u64,
    pub bytes: u64,
    pub checksum: String,
    pub tensors: Vec<TensorFacts>,
}

/// A tensor's entry in the manifest.
#[derive(Debug, Serialize)]
pub struct TensorFacts {
    pub name: String,
    pub codec: String,
    pub layout: String,
    pub shape: Vec<usize>,
    /// In the file.
    pub offset: u64,
    pub bytes: u64,
}

/// How much memory the demonstration can use.
#[derive(Debug, Serialize)]
pub struct Bounds {
    pub sessions: usize,
    /// The smallest budget that works.
    pub smallest_bytes: u64,
    /// What it takes to hold all weights.
    pub resident_bytes: u64,
}

impl Facts {
    /// Reads them from a pack's manifest.
    pub fn read(name: &str, path: &Path, options: &ModelOptions) -> Result<Facts, ApiError> {
        let pack = Pack::open(path).map_err(|_| ApiError::internal("the pack cannot be opened any more"))?;
        let manifest = pack.manifest();
        let config =
            Config::from_manifest(manifest).map_err(|error| ApiError::internal(error.to_string()))?;
        let block = |block| match block {
            Block::Rwkv(number) => number as i32,
            Block::Attention(number) => -2 - number as i32,
        };
        Ok(Facts {
            name: name.to_owned(),
            description: config.to_string(),
            family: config.family(),
            layers: config.layers,
            heads: config.heads,
            head_size: config.head_size,
            vocabulary: config.vocab,
            parameters: config.parameters(),
            file_bytes: pack.file_len(),
            blocks: config.blocks().map(block).collect(),
            groups: manifest.groups.iter().map(group).collect(),
            budgets: SESSIONS
                .map(|sessions| bounds(path, options, sessions))
                .into_iter()
                .collect::<Result<_, _>>()?,
        })
    }
}

fn bounds(path: &Path, options: &ModelOptions, sessions: usize) -> Result<Bounds, ApiError> {
    let options = options.clone().residency(Residency::Resident).sessions(sessions);
    let plan = Model::plan(path, &options).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(Bounds { sessions, smallest_bytes: plan.smallest_budget, resident_bytes: plan.memory_bytes() })
}

fn group(group: &Group) -> GroupFacts {
    let tensor = |tensor: &PackedTensor| TensorFacts {
        name: tensor.name.clone(),
        codec: tensor.codec.clone(),
        layout: tensor.layout.clone(),
        shape: tensor.shape.clone(),
        offset: group.offset + tensor.offset_in_group,
        bytes: tensor.len,
    };
    GroupFacts {
        name: group.name.clone(),
        swept: group.swept,
        offset: group.offset,
        bytes: group.len,
        checksum: group.checksum.to_string(),
        tensors: group.tensors.iter().map(tensor).collect(),
    }
}
