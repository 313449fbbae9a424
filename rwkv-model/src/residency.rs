mod rows;

use std::fmt::Display;
use std::sync::Arc;

use rwkv_cache::source::Source;
use rwkv_cache::{Cache, CacheOptions, CacheStats, Group, GroupId, Lease, VerifyReads};
use rwkv_kernels::{Codec, DType, widen};
use rwkv_pack::Pack;

use crate::budget::Planned;
use crate::error::{ErrorKind, ModelError, Result};
use crate::weights::{EmbeddingAt, Weights};
use rows::Rows;

/// Where the weights are while the model runs. It changes no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Residency {
    /// All in memory, read once.
    #[default]
    Resident,
    /// In the operating system's page cache, through a memory map. A file that is cut while it is mapped kills the
    /// process; the other kinds report an error.
    Mapped,
    /// As many groups in memory as a budget allows, the others read again in every sweep. Embedding rows are read one by one.
    ///
    /// The budget bounds everything that grows with the model or with a prompt: weights, a sweep's buffers, the state and a row
    /// of logits for each of the [sessions](crate::ModelOptions::sessions), and the keys and values of attention blocks, to
    /// which it leaves [a part](crate::ModelOptions::kv_bytes). What the program is without a model comes on top.
    Stream {
        /// Bytes of memory.
        budget_bytes: u64,
    },
    /// Resident if everything fits the [memory that is available](crate::available_memory), or if the system does not say; else
    /// streamed with three quarters of that as the budget.
    Auto,
}

/// The weights in memory, group by group.
pub(crate) struct Residence {
    cache: Cache,
    vectors: Lease,
    embedding: Embedding,
    sweep: Vec<GroupId>,
    blocks_only: Vec<GroupId>,
}

/// The group of the embedding.
enum Embedding {
    InMemory(Lease),
    ByRow(Rows),
}

impl Residence {
    /// Opens the weights of a pack that `source` holds the bytes of.
    pub fn open(
        pack: Pack,
        source: Arc<dyn Source>,
        weights: &Weights,
        planned: Planned,
        options: CacheOptions,
        reads: VerifyReads,
    ) -> Result<Residence> {
        let Planned { groups, plan, report } = planned;
        let by_row = matches!(report.residency, Residency::Stream { .. });
        let rows = weights.embedding.group;
        let pack = Arc::new(pack);
        let verifier = Arc::clone(&pack);
        let options = options.verify_reads(reads).verify(move |id, bytes| {
            // For the cache, a group that is read by row is empty.
            if by_row && id == rows {
                return Ok(());
            }
            verifier.check_group(id.index(), bytes).map_err(|error| error.to_string())
        });
        let cache = Cache::new(source, groups, plan, options).map_err(failed)?;
        let vectors = cache.lease(weights.vectors).map_err(failed)?;
        let embedding = match by_row {
            true => Embedding::ByRow(Rows::new(pack, rows, reads)),
            false => Embedding::InMemory(cache.lease(rows).map_err(failed)?),
        };
        let blocks_only = weights.block_groups();
        let mut sweep = blocks_only.clone();
        sweep.extend(weights.head.iter().map(|part| part.group));
        Ok(Residence { cache, vectors, embedding, sweep, blocks_only })
    }

    /// Waits until all that stays in memory is there.
    pub fn load(&self) -> Result<()> {
        self.cache.load_pinned().map_err(failed)
    }

    /// Says whether the next sweep needs the head.
    pub fn expect_sweep(&self, with_head: bool) {
        if self.cache.plan().slots() > 0 {
            self.cache.expect(if with_head { &self.sweep } else { &self.blocks_only });
        }
    }

    /// The bytes of a group. A read that fails is tried once more: a sweep is too much to lose to a disk that hesitated.
    pub fn lease(&self, group: GroupId) -> Result<Lease> {
        twice(|| self.cache.lease(group)).map_err(failed)
    }

    /// A group's name and place.
    pub fn group(&self, id: GroupId) -> &Group {
        &self.cache.groups()[id.index()]
    }

    /// The bytes of the group of vectors.
    pub fn vectors(&self) -> &[u8] {
        &self.vectors
    }

    /// A token's embedding, appended to `out`. `buffer` is for reads.
    pub fn embedding(
        &self,
        at: &EmbeddingAt,
        token: u32,
        buffer: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let begin = at.offset_in_group + token as usize * at.row_bytes;
        let row = begin..begin + at.row_bytes;
        let bytes = match &self.embedding {
            Embedding::InMemory(group) => &group[row],
            Embedding::ByRow(rows) => {
                let within = twice(|| rows.read(&self.cache, row.clone(), buffer)).map_err(failed)?;
                &buffer[within]
            }
        };
        let dtype = match at.codec {
            Codec::F16 => DType::F16,
            Codec::Bf16 => DType::Bf16,
            _ => DType::F32,
        };
        widen(dtype, bytes, out);
        Ok(())
    }

    /// The cache's counters.
    pub fn stats(&self) -> CacheStats {
        self.cache.stats()
    }
}

fn twice<T, E: Display>(mut read: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    read().or_else(|error| {
        tracing::warn!(%error, "weights could not be read; once more");
        read()
    })
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ModelError {
    ModelError::new(ErrorKind::Residency, "the weights cannot be read").caused_by(error)
}
