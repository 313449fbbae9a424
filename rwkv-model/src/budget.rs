//! What a model takes of a budget of memory, and what is left of it for weights.
//!
//! ```text
//! budget = vectors + pinned groups + ring slots      the cache's plan
//!        + buffers of a sweep's rows                 at most an eighth, but 16 rows at least
//!        + states + logits                           for as many sessions as the caller has
//!        + what the caller reserves                  at most a quarter of what is beyond the smallest budget
//!        + keys and values, and what attends to them an eighth, but 256 tokens for each session at least; and what
//!                                                    is left when all weights are in memory
//! ```
//!
//! Keys and values grow with every token. The weights have their memory from the beginning, so the room for keys and values
//! is a number that is fixed then, too.

use rwkv_cache::{Extent, Group, GroupId, Plan, PlanError, plan};
use rwkv_kernels::KvFormat;
use rwkv_pack::Manifest;

use crate::attention::Attention;
use crate::available::available_memory;
use crate::config::Config;
use crate::error::{ErrorKind, ModelError, Result, bail};
use crate::kv::Room;
use crate::residency::Residency;
use crate::step::HEAD_BUFFERS;
use crate::weights::Weights;

/// The rows of a sweep that a small budget still has room for, unless fewer are asked for.
const FEWEST_ROWS: usize = 16;
/// The share of a budget that the rows of a sweep may take: one of so many parts.
const ROWS_SHARE: u64 = 8;
/// The share of a budget beyond the smallest that a caller can reserve: one of so many parts.
const RESERVED_SHARE: u64 = 4;
/// The tokens whose keys and values the smallest budget still has room for, in each session.
const FEWEST_TOKENS: usize = 256;
/// The share of a budget that keys and values may take while weights stream: one of so many parts.
const KV_SHARE: u64 = 8;
/// What the process takes beside what is counted here: the program, its threads' stacks, a tokenizer.
const PROCESS_BYTES: u64 = 64 << 20;

/// What is where while a model runs, and what that costs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryPlan {
    /// Where the weights are: never [`Residency::Auto`], but what was chosen.
    pub residency: Residency,
    /// The memory that the process can take, in bytes, if [`Residency::Auto`] had to ask for it.
    pub available_bytes: Option<u64>,
    /// Groups of weights that a sweep goes over.
    pub swept_groups: usize,
    /// Of those, the groups that stay in memory.
    pub pinned_groups: usize,
    /// Memory of all weights that stay, vectors and a resident embedding included.
    pub pinned_bytes: u64,
    /// Slots of the ring through which the others pass.
    pub slots: usize,
    /// Memory of a slot.
    pub slot_bytes: u64,
    /// The most rows that share a sweep.
    pub chunk_rows: usize,
    /// Memory of the buffers of a sweep of so many rows.
    pub scratch_bytes: u64,
    /// Sessions that are counted.
    pub sessions: usize,
    /// Memory of their states.
    pub state_bytes: u64,
    /// Memory of a row of logits for each.
    pub logits_bytes: u64,
    /// What the caller [reserves](crate::ModelOptions::reserve) for itself.
    pub reserved_bytes: u64,
    /// The most that keys and values of all sessions may take, in bytes; none if there is no limit, or no attention.
    pub kv_bytes: Option<u64>,
    /// Memory of the weights with which attention goes over so many keys and values.
    pub attention_bytes: u64,
    /// Bytes of the keys and values of a token.
    pub kv_bytes_per_token: u64,
    /// What a sweep with logits goes over, in bytes.
    pub bytes_per_sweep: u64,
    /// What is read for a token once everything that stays is loaded, in bytes: the groups that stream, and a row of the
    /// embedding.
    pub read_bytes_per_token: u64,
    /// The smallest budget with which this model streams, in bytes.
    pub smallest_budget: u64,
}

impl MemoryPlan {
    /// All of it together, in bytes. Weights that are mapped are not counted: the system keeps what it likes.
    pub fn memory_bytes(&self) -> u64 {
        let parts = [
            self.pinned_bytes,
            self.slots as u64 * self.slot_bytes,
            self.scratch_bytes,
            self.state_bytes,
            self.logits_bytes,
            // What callers say may be anything.
            self.reserved_bytes,
            self.kv_bytes.unwrap_or(0),
            self.attention_bytes,
        ];
        parts.into_iter().fold(0, u64::saturating_add)
    }
}

/// What a plan is made from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub residency: Residency,
    /// The most rows of a sweep.
    pub chunk_rows: usize,
    pub sessions: usize,
    pub reserved_bytes: u64,
    /// Whether every row may want logits.
    pub all_logits: bool,
    pub attention: Attention,
    pub kv_format: KvFormat,
    /// The most bytes of keys and values, if that is decided already.
    pub kv_bytes: Option<u64>,
}

/// A plan that can be carried out.
#[derive(Debug)]
pub(crate) struct Planned {
    pub groups: Vec<Group>,
    pub plan: Plan,
    pub report: MemoryPlan,
}

impl Planned {
    /// Decides.
    pub fn new(manifest: &Manifest, weights: &Weights, request: Request) -> Result<Planned> {
        Planner { manifest, weights, request }.decide(available_memory)
    }
}

struct Planner<'a> {
    manifest: &'a Manifest,
    weights: &'a Weights,
    request: Request,
}

impl Planner<'_> {
    fn decide(&self, available: impl FnOnce() -> Option<u64>) -> Result<Planned> {
        let smallest = self.smallest_budget()?;
        match self.request.residency {
            Residency::Resident => self.resident(smallest),
            Residency::Mapped => self.mapped(smallest),
            Residency::Stream { budget_bytes } => self.streamed(budget_bytes, smallest),
            Residency::Auto => {
                let Some(available) = available() else { return self.resident(smallest) };
                let mut resident = self.resident(smallest)?;
                let other = resident.report.memory_bytes().saturating_add(PROCESS_BYTES);
                let room = self.kv_share(available, available);
                let fits = other.saturating_add(room) <= available;
                let mut planned = if fits {
                    if self.request.kv_bytes.is_none() {
                        self.give_room(&mut resident.report, available - other);
                    }
                    resident
                } else {
                    // A budget that leaves room for others, if one does.
                    self.streamed((available / 4 * 3).max(smallest.min(available)), smallest)?
                };
                planned.report.available_bytes = Some(available);
                Ok(planned)
            }
        }
    }

    fn resident(&self, smallest: u64) -> Result<Planned> {
        let groups = self.groups(false);
        let plan = Plan::resident(&groups).map_err(refused)?;
        Ok(self.planned(Residency::Resident, groups, plan, self.request.chunk_rows, smallest))
    }

    fn mapped(&self, smallest: u64) -> Result<Planned> {
        let groups = self.groups(false);
        let plan = Plan::mapped(&groups).map_err(refused)?;
        Ok(self.planned(Residency::Mapped, groups, plan, self.request.chunk_rows, smallest))
    }

    fn streamed(&self, budget_bytes: u64, smallest: u64) -> Result<Planned> {
        if budget_bytes < smallest {
            bail!(
                Residency,
                "a budget of {budget_bytes} bytes cannot work, the smallest that can is {smallest} bytes"
            );
        }
        // The smallest budget holds the fewest rows; of what is beyond it, some goes to more of them. What is left for weights must
        // not shrink when the budget grows, so the share is not rounded to whole rows.
        let reserved = self.request.reserved_bytes.min((budget_bytes - smallest) / RESERVED_SHARE);
        let budget = budget_bytes - reserved;
        let beyond = (budget - smallest) / if self.has_attention() { 2 } else { 1 };
        let kv = self.kv_share(budget, beyond);
        let row_bytes = self.row_bytes();
        let fewest = self.fewest_rows();
        let most = row_bytes * self.request.chunk_rows as u64;
        let least = row_bytes * fewest as u64;
        let share = (budget / ROWS_SHARE).min(least + beyond).min(most).max(least);
        let rows = (share / row_bytes) as usize;
        let groups = self.groups(true);
        let others = self.beside_weights(0) + share + kv;
        let plan = plan(&groups, budget - others).map_err(refused)?;
        let mut planned = self.planned(Residency::Stream { budget_bytes }, groups, plan, rows, smallest);
        let report = &mut planned.report;
        report.reserved_bytes = reserved;
        self.give_room(report, kv);
        if self.request.kv_bytes.is_none() {
            let has = report.kv_bytes.unwrap_or(0) + report.attention_bytes;
            self.give_room(report, has + (budget_bytes - report.memory_bytes()));
        }
        Ok(planned)
    }

    fn smallest_budget(&self) -> Result<u64> {
        let weights = match plan(&self.groups(true), 0) {
            Ok(plan) => plan.memory_bytes(),
            Err(PlanError::BudgetTooSmall { smallest, .. }) => smallest,
            Err(error) => return Err(refused(error)),
        };
        weights
            .checked_add(self.beside_weights(self.fewest_rows()))
            .and_then(|bytes| bytes.checked_add(self.least_kv()))
            .ok_or_else(|| ModelError::new(ErrorKind::Residency, "the memory cannot be counted in 64 bits"))
    }

    fn has_attention(&self) -> bool {
        self.weights.config.attention > 0
    }

    fn room(&self) -> Room<'_> {
        let Request { attention, kv_format, chunk_rows, .. } = self.request;
        Room::new(&self.weights.config, attention, kv_format, chunk_rows)
    }

    /// Memory for keys and values, attention's weights included, in the smallest budget.
    fn least_kv(&self) -> u64 {
        let room = self.room();
        match self.request.kv_bytes {
            _ if !self.has_attention() => 0,
            Some(bytes) => room.memory_of(bytes),
            None => {
                room.memory_of(room.session_bytes(FEWEST_TOKENS)).saturating_mul(self.request.sessions as u64)
            }
        }
    }

    /// Memory for keys and values of a budget of which so much is beyond the smallest.
    fn kv_share(&self, budget_bytes: u64, beyond: u64) -> u64 {
        let least = self.least_kv();
        if !self.has_attention() || self.request.kv_bytes.is_some() {
            return least;
        }
        (budget_bytes / KV_SHARE).min(least.saturating_add(beyond)).min(self.most_kv()).max(least)
    }

    /// Memory that keys and values of all sessions can take at most.
    fn most_kv(&self) -> u64 {
        let room = self.room();
        room.memory_of(room.session_bytes(usize::MAX)).saturating_mul(self.request.sessions as u64)
    }

    /// Gives keys and values so much of the memory, as far as they can ever use it.
    fn give_room(&self, report: &mut MemoryPlan, bytes: u64) {
        if self.has_attention() {
            let bytes = bytes.min(self.most_kv());
            let kv_bytes = self.request.kv_bytes.unwrap_or_else(|| self.room().within(bytes));
            report.kv_bytes = Some(kv_bytes);
            report.attention_bytes = self.room().memory_of(kv_bytes) - kv_bytes;
        }
    }

    /// The buffers of one row of a sweep.
    fn row_bytes(&self) -> u64 {
        let logits = if self.request.all_logits {
            logit_bytes(&self.weights.config) + self.head_row_bytes()
        } else {
            0
        };
        row_bytes(&self.weights.config) + logits
    }

    /// A row of logits of the largest part of the head.
    fn head_row_bytes(&self) -> u64 {
        4 * self.weights.head.iter().map(|part| part.tiles.rows).max().unwrap_or(0) as u64
    }

    /// The buffers of a sweep of so many rows, of which one at least wants logits.
    fn scratch_bytes(&self, rows: usize) -> u64 {
        rows as u64 * self.row_bytes() + self.head_row_bytes()
    }

    fn fewest_rows(&self) -> usize {
        self.request.chunk_rows.min(FEWEST_ROWS)
    }

    /// Memory of everything that is no weight.
    fn beside_weights(&self, rows: usize) -> u64 {
        let config = &self.weights.config;
        let sessions = self.request.sessions as u64;
        let sessions = sessions.saturating_mul(config.state_bytes() + logit_bytes(config));
        self.scratch_bytes(rows).saturating_add(sessions)
    }

    /// The cache's groups. An embedding that is fetched by row is empty there.
    fn groups(&self, by_row: bool) -> Vec<Group> {
        let group = |(index, group): (usize, &rwkv_pack::Group)| {
            let id = GroupId::new(index);
            let is_embedding = id == self.weights.embedding.group;
            let len = if is_embedding && by_row { 0 } else { group.len };
            let extent = Extent { offset: group.offset, len };
            Group { name: group.name.clone(), extent, always: is_embedding || id == self.weights.vectors }
        };
        self.manifest.groups.iter().enumerate().map(group).collect()
    }

    fn planned(
        &self,
        residency: Residency,
        groups: Vec<Group>,
        plan: Plan,
        chunk_rows: usize,
        smallest_budget: u64,
    ) -> Planned {
        let config = &self.weights.config;
        let sessions = self.request.sessions;
        let row = match residency {
            Residency::Stream { .. } => self.weights.embedding.row_bytes as u64,
            _ => 0,
        };
        let is_swept = |id: &GroupId| !groups[id.index()].always;
        let report = MemoryPlan {
            residency,
            available_bytes: None,
            swept_groups: groups.iter().filter(|group| !group.always).count(),
            pinned_groups: plan.pinned().filter(is_swept).count(),
            pinned_bytes: plan.pinned_bytes(),
            slots: plan.slots(),
            slot_bytes: plan.slot_bytes(),
            chunk_rows,
            scratch_bytes: self.scratch_bytes(chunk_rows),
            sessions,
            state_bytes: sessions as u64 * config.state_bytes(),
            logits_bytes: sessions as u64 * logit_bytes(config),
            reserved_bytes: self.request.reserved_bytes,
            kv_bytes: self.request.kv_bytes.filter(|_| self.has_attention()),
            attention_bytes: 0,
            kv_bytes_per_token: config.kv_row_bytes(self.request.kv_format),
            bytes_per_sweep: plan.sweep_bytes(),
            read_bytes_per_token: plan.bytes_per_sweep() + row,
            smallest_budget,
        };
        Planned { groups, plan, report }
    }
}

/// The buffers of one row of a sweep: see `Scratch`.
fn row_bytes(config: &Config) -> u64 {
    let Config { width, ffn, rank_w, rank_a, rank_v, rank_g, .. } = *config;
    // Activations as floats, as codes in groups with four numbers for each, and as codes of a row with two.
    let input = |cols: usize| cols.next_multiple_of(64) * 6 + cols.div_ceil(64) * 16 + 8;
    let residual = 3 * 4 * width;
    let inputs = 7 * input(width);
    let heads = 5 * 4 * width;
    let hidden: usize = [rank_w, rank_a, rank_v, rank_g].map(|rank| 4 * rank + input(rank)).iter().sum();
    // What tasks have for themselves, with no more threads than heads: rows of the heads or hidden rows of the channel mix, and
    // sums of its value matrix.
    let tasks = (HEAD_BUFFERS * 4 * width).max(4 * ffn) + 4 * width;
    // Entries of the hidden rows that are not zero: place, value, starts, order, active.
    let entries = ffn.div_ceil(128) * (128 * 5 + 2 * 4 + 12 + 16);
    (residual + inputs + heads + hidden + tasks + entries) as u64
}

fn logit_bytes(config: &Config) -> u64 {
    4 * config.vocab as u64
}

fn refused(error: PlanError) -> ModelError {
    ModelError::new(ErrorKind::Residency, "the weights do not fit").caused_by(error)
}

#[cfg(test)]
mod tests {
    use rwkv_kernels::Codec;
    use rwkv_pack::Pack;

    use super::*;
    use crate::{ConvertOptions, Synthetic, convert};

    #[test]
    fn auto_streams_what_does_not_fit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pack");
        let mut config = Config::official("0.1b").unwrap();
        (config.layers, config.vocab) = (2, 512);
        convert(&Synthetic::new(config, 1), &path, ConvertOptions::new(Codec::F16)).unwrap();
        let pack = Pack::open(&path).unwrap();
        let manifest = pack.manifest();
        let weights = Weights::resolve(manifest).unwrap();
        let request = Request {
            residency: Residency::Auto,
            chunk_rows: 256,
            sessions: 1,
            reserved_bytes: 0,
            all_logits: false,
            attention: Attention::Full,
            kv_format: KvFormat::F16,
            kv_bytes: None,
        };
        let planner = Planner { manifest, weights: &weights, request };
        let decide = |available| planner.decide(|| available);
        let unknown = decide(None).unwrap().report;
        assert_eq!((unknown.residency, unknown.available_bytes), (Residency::Resident, None));
        let need = unknown.memory_bytes() + PROCESS_BYTES;
        let enough = decide(Some(need)).unwrap().report;
        assert_eq!((enough.residency, enough.available_bytes), (Residency::Resident, Some(need)));
        let smallest = unknown.smallest_budget;
        for (available, budget_bytes) in
            [(need - 1, (need - 1) / 4 * 3), (smallest * 2, smallest * 2 / 4 * 3), (smallest, smallest)]
        {
            assert!(available < need, "{available} of {need}");
            let less = decide(Some(available)).unwrap().report;
            assert_eq!(less.residency, Residency::Stream { budget_bytes });
            assert!(less.memory_bytes() <= budget_bytes);
        }
        let refused = decide(Some(smallest - 1)).unwrap_err().to_string();
        assert!(refused.ends_with(&format!("the smallest that can is {smallest} bytes")), "{refused}");
    }
}
