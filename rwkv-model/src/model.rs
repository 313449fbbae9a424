use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rwkv_cache::source::{Io, Source, open as open_source};
use rwkv_cache::{CacheOptions, CacheStats, ReadAhead, VerifyReads};
use rwkv_kernels::{Isa, KvFormat, Team};
use rwkv_pack::{Manifest, Pack};

use crate::attention::Attention;
use crate::budget::{MemoryPlan, Planned, Request};
use crate::config::Config;
use crate::counters::StepCounters;
use crate::error::{ErrorKind, ModelError, Result, bail};
use crate::identity::Identity;
use crate::kv::{Budget, KvLimits};
use crate::observer::Observer;
use crate::residency::{Residence, Residency};
use crate::state::State;
use crate::step::Scratch;
use crate::weights::Weights;

/// More rows than any memory has room for.
const MOST_ROWS: usize = 1 << 24;

/// How a model is opened.
#[derive(Debug, Clone)]
pub struct ModelOptions {
    threads: usize,
    isa: Option<Isa>,
    chunk_rows: usize,
    residency: Residency,
    sessions: usize,
    reserved_bytes: u64,
    io: Option<Io>,
    read_ahead: ReadAhead,
    verify_reads: VerifyReads,
    attention: Attention,
    kv_format: KvFormat,
    kv_bytes: Option<u64>,
    all_logits: bool,
    cache_observer: Option<CacheObserver>,
}

#[derive(Clone)]
struct CacheObserver(Arc<dyn rwkv_cache::Observer>);

impl fmt::Debug for CacheObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CacheObserver")
    }
}

impl Default for ModelOptions {
    /// All processors that the process may use, the best instruction set, sweeps of up to 256 rows, all weights in
    /// memory; for RWKV-X full attention, a cache of f16 and no limit of it.
    fn default() -> ModelOptions {
        ModelOptions {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            isa: None,
            chunk_rows: 256,
            residency: Residency::Resident,
            sessions: 1,
            reserved_bytes: 0,
            io: None,
            read_ahead: ReadAhead::default(),
            verify_reads: VerifyReads::default(),
            attention: Attention::default(),
            kv_format: KvFormat::default(),
            kv_bytes: None,
            all_logits: false,
            cache_observer: None,
        }
    }
}

impl ModelOptions {
    /// How many threads compute, the caller included. It changes no result. 0 counts as 1.
    pub fn threads(mut self, threads: usize) -> ModelOptions {
        self.threads = threads.max(1);
        self
    }

    /// The instruction set. It changes no result.
    pub fn isa(mut self, isa: Isa) -> ModelOptions {
        self.isa = Some(isa);
        self
    }

    /// The most rows (tokens of all feeds together) that share one sweep over the weights. It changes no result;
    /// more rows read the weights less often and take more memory. Weights that stream may lower it, to what an eighth of the
    /// budget has room for, but not below 16. 0 counts as 1, and more than 2^24 as that.
    pub fn chunk_rows(mut self, rows: usize) -> ModelOptions {
        self.chunk_rows = rows.clamp(1, MOST_ROWS);
        self
    }

    /// Where the weights are while the model runs. It changes no result.
    pub fn residency(mut self, residency: Residency) -> ModelOptions {
        self.residency = residency;
        self
    }

    /// How many sessions' states and logits a budget has to have room for, 1 by default, which 0 counts as. More can still be made.
    pub fn sessions(mut self, sessions: usize) -> ModelOptions {
        self.sessions = sessions.max(1);
        self
    }

    /// Bytes that a budget leaves to the caller, for states that it keeps, such as those of a scheduler's prefix cache. A small
    /// budget leaves less: a quarter at most of what is beyond the smallest that works.
    /// [`MemoryPlan::reserved_bytes`] says how much it is.
    pub fn reserve(mut self, bytes: u64) -> ModelOptions {
        self.reserved_bytes = bytes;
        self
    }

    /// How the pack is read. It changes no result. By default weights that stay are read through the page cache and left in
    /// it, for the next start, and those that stream are read directly where the file system allows it.
    pub fn io(mut self, io: Io) -> ModelOptions {
        self.io = Some(io);
        self
    }

    /// How far ahead of use weights that stream are read. It changes no result.
    pub fn read_ahead(mut self, read_ahead: ReadAhead) -> ModelOptions {
        self.read_ahead = read_ahead;
        self
    }

    /// Which reads of weights that stream are verified, by the checksums of their groups, and for rows of the embedding by
    /// those of the group's parts.
    pub fn verify_reads(mut self, reads: VerifyReads) -> ModelOptions {
        self.verify_reads = reads;
        self
    }

    /// Which rows new states attend to, in a model with attention blocks. Each state keeps what it was made with.
    pub fn attention(mut self, attention: Attention) -> ModelOptions {
        self.attention = attention;
        self
    }

    /// How new states store keys and values, in a model with attention blocks. Each state keeps what it was made with.
    pub fn kv_format(mut self, format: KvFormat) -> ModelOptions {
        self.kv_format = format;
        self
    }

    /// Bytes that the keys and values of all states may take. A step that would need more is refused before it begins.
    ///
    /// Weights that stream leave them an eighth of the budget by default, and what they do not need themselves;
    /// [`Residency::Auto`] what is available when the model is opened. Else there is no limit.
    pub fn kv_bytes(mut self, bytes: u64) -> ModelOptions {
        self.kv_bytes = Some(bytes);
        self
    }

    /// Whether a budget has to have room for the logits of every row of a sweep, as [`Logits::All`](crate::Logits::All) wants
    /// them, and not only of one for each session.
    pub fn all_logits(mut self, all: bool) -> ModelOptions {
        self.all_logits = all;
        self
    }

    /// Who is told what the cache of the weights does, its reader threads included. It changes no result. What the model does
    /// between two leases is told to [another one](Model::observe).
    pub fn cache_observer(mut self, observer: Arc<dyn rwkv_cache::Observer>) -> ModelOptions {
        self.cache_observer = Some(CacheObserver(observer));
        self
    }

    fn chosen_io(&self, residency: Residency) -> Io {
        match (self.io, residency) {
            (Some(io), _) => io,
            (None, Residency::Stream { .. }) => Io::Auto,
            (None, _) => Io::Mapped,
        }
    }

    fn plan(&self, manifest: &Manifest, weights: &Weights) -> Result<Planned> {
        self.attention.validate()?;
        let request = Request {
            residency: self.residency,
            chunk_rows: self.chunk_rows,
            sessions: self.sessions,
            reserved_bytes: self.reserved_bytes,
            all_logits: self.all_logits,
            attention: self.attention,
            kv_format: self.kv_format,
            kv_bytes: self.kv_bytes,
        };
        Planned::new(manifest, weights, request)
    }
}

/// An RWKV-7 or RWKV-X model, ready to run.
///
/// One thread drives it; the work of a [`step`](Model::step) is spread over a team of threads.
pub struct Model {
    pub(crate) weights: Weights,
    pub(crate) residence: Residence,
    pub(crate) identity: Arc<Identity>,
    pub(crate) team: Team,
    pub(crate) isa: Isa,
    pub(crate) chunk_rows: usize,
    pub(crate) scratch: Scratch,
    pub(crate) logits: Vec<f32>,
    pub(crate) counters: StepCounters,
    pub(crate) kv_budget: Arc<Budget>,
    pub(crate) observer: Option<Box<dyn Observer>>,
    attention: Attention,
    kv_format: KvFormat,
    manifest: Manifest,
    memory_plan: MemoryPlan,
    /// Of the blocks, and of the head.
    swept_bytes: [u64; 2],
}

impl Model {
    /// Opens a pack.
    ///
    /// The checksum of each group, or part of the embedding, is verified when it is first read, or [every time](ModelOptions::verify_reads).
    ///
    /// # Errors
    /// The file cannot be read or is no pack, the pack does not hold a whole model, the weights do not fit,
    /// memory or threads are refused, a checksum is wrong, or `RWKV_ISA` names an instruction set that the machine lacks.
    pub fn open(path: impl AsRef<Path>, options: ModelOptions) -> Result<Model> {
        let path = path.as_ref();
        let pack = open_pack(path)?;
        let weights = resolve(&pack)?;
        let planned = options.plan(pack.manifest(), &weights)?;
        let source = open_source(path, options.chosen_io(planned.report.residency)).map_err(|error| {
            ModelError::new(ErrorKind::Residency, "the pack cannot be read").caused_by(error)
        })?;
        Model::build(pack, source, weights, planned, &options)
    }

    /// What [`Model::open`] would do with the memory. Nothing but the pack's manifest is read.
    ///
    /// # Errors
    /// The file cannot be read or is no pack, the pack does not hold a whole RWKV-7 model, or the weights do not fit.
    pub fn plan(path: impl AsRef<Path>, options: &ModelOptions) -> Result<MemoryPlan> {
        let pack = open_pack(path.as_ref())?;
        Ok(options.plan(pack.manifest(), &resolve(&pack)?)?.report)
    }

    /// What [`Model::open`] would do with the memory for a pack of this manifest, which need not exist:
    /// [`manifest_of`](crate::manifest_of) makes one from sizes.
    ///
    /// # Errors
    /// The manifest does not describe a whole model, or the weights do not fit.
    pub fn plan_manifest(manifest: &Manifest, options: &ModelOptions) -> Result<MemoryPlan> {
        Ok(options.plan(manifest, &Weights::resolve(manifest)?)?.report)
    }

    /// Opens a pack whose bytes come from a source of the caller's, such as one that fails on purpose.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn from_source(pack: Pack, source: Arc<dyn Source>, options: ModelOptions) -> Result<Model> {
        let weights = resolve(&pack)?;
        let planned = options.plan(pack.manifest(), &weights)?;
        Model::build(pack, source, weights, planned, &options)
    }

    fn build(
        pack: Pack,
        source: Arc<dyn Source>,
        weights: Weights,
        planned: Planned,
        options: &ModelOptions,
    ) -> Result<Model> {
        let isa = match options.isa {
            Some(isa) => isa,
            None => Isa::from_env()
                .map_err(|error| ModelError::new(ErrorKind::Parameter, format!("RWKV_ISA: {error}")))?,
        };
        let manifest = pack.manifest().clone();
        let memory_plan = planned.report.clone();
        let mut cache_options = CacheOptions::default().read_ahead(options.read_ahead);
        if let Some(CacheObserver(observer)) = &options.cache_observer {
            cache_options = cache_options.observer(Arc::clone(observer));
        }
        let residence =
            Residence::open(pack, source, &weights, planned, cache_options, options.verify_reads)?;
        residence.load()?;
        let identity = Identity::new(weights.config.clone(), manifest.source.xxh3.to_string());
        let residency = memory_plan.residency;
        tracing::debug!(isa = isa.name(), threads = options.threads, ?residency, "model opened");
        let (layers, run) = (weights.config.layers, weights.config.active_layers());
        if run < layers {
            tracing::warn!(layers, run, "blocks after the last attention block are not run");
        }
        Ok(Model {
            residence,
            identity: Arc::new(identity),
            team: Team::new(options.threads),
            isa,
            chunk_rows: memory_plan.chunk_rows,
            scratch: Scratch::default(),
            logits: Vec::new(),
            counters: StepCounters::default(),
            kv_budget: Budget::new(memory_plan.kv_bytes.unwrap_or(u64::MAX)),
            observer: None,
            attention: options.attention,
            kv_format: options.kv_format,
            swept_bytes: swept_bytes(&manifest, &weights),
            manifest,
            memory_plan,
            weights,
        })
    }

    /// The sizes.
    pub fn config(&self) -> &Config {
        &self.weights.config
    }

    /// Which model this is; its states carry the same.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What the pack says about itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Threads that compute, the caller included.
    pub fn threads(&self) -> usize {
        self.team.threads()
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The most rows that share one sweep.
    pub fn chunk_rows(&self) -> usize {
        self.chunk_rows
    }

    /// Bytes of the weights that a sweep goes over: all blocks, and the head if logits are wanted; skipped columns
    /// included.
    pub fn swept_bytes(&self, with_logits: bool) -> u64 {
        let [blocks, head] = self.swept_bytes;
        if with_logits { blocks + head } else { blocks }
    }

    /// What the steps have done so far.
    pub fn counters(&self) -> StepCounters {
        self.counters
    }

    /// What is where, and what that costs.
    pub fn memory_plan(&self) -> &MemoryPlan {
        &self.memory_plan
    }

    /// What the cache of the weights has done so far.
    pub fn cache_stats(&self) -> CacheStats {
        self.residence.stats()
    }

    /// Says who is told what the next steps do, and returns who was told so far. By default it is nobody.
    pub fn observe(&mut self, observer: Option<Box<dyn Observer>>) -> Option<Box<dyn Observer>> {
        std::mem::replace(&mut self.observer, observer)
    }

    /// A new session's state.
    pub fn new_state(&self) -> State {
        let budget = Arc::clone(&self.kv_budget);
        State::new(Arc::clone(&self.identity), self.attention, self.kv_format, budget)
    }

    /// Bytes that the key/value caches of all states take now.
    pub fn kv_bytes(&self) -> u64 {
        self.kv_budget.used()
    }

    /// What the key/value caches of states are held against.
    pub(crate) fn kv_limits(&self) -> KvLimits {
        KvLimits {
            identity: Arc::clone(&self.identity),
            attention: self.attention,
            format: self.kv_format,
            budget: Arc::clone(&self.kv_budget),
        }
    }

    /// Reads a state of this model from a file: [`State::load`].
    ///
    /// # Errors
    /// As [`State::load`].
    pub fn load_state(&self, path: impl AsRef<Path>) -> Result<State> {
        State::load(path, &self.identity)
    }

    pub(crate) fn check_token(&self, token: u32) -> Result<()> {
        let vocab = self.config().vocab;
        if token as usize >= vocab {
            bail!(Token, "token {token} is not in the model's vocabulary of {vocab}");
        }
        Ok(())
    }
}

fn open_pack(path: &Path) -> Result<Pack> {
    Pack::open(path)
        .map_err(|error| ModelError::new(ErrorKind::Pack, "the pack cannot be opened").caused_by(error))
}

fn resolve(pack: &Pack) -> Result<Weights> {
    Weights::resolve(pack.manifest())
        .map_err(|error| ModelError::new(error.kind(), format!("pack {}: {error}", pack.path().display())))
}

fn swept_bytes(manifest: &Manifest, weights: &Weights) -> [u64; 2] {
    let is_head = |index: usize| weights.head.iter().any(|part| part.group.index() == index);
    let mut bytes = [0, 0];
    for (index, group) in manifest.groups.iter().enumerate().filter(|(_, group)| group.swept) {
        bytes[usize::from(is_head(index))] += group.tensors.iter().map(|tensor| tensor.len).sum::<u64>();
    }
    bytes
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("config", self.config())
            .field("threads", &self.threads())
            .field("isa", &self.isa)
            .finish_non_exhaustive()
    }
}
