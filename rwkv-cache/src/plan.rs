//! What stays in memory and what streams: a pure function of sizes and a budget.
//!
//! Groups are used in a cycle, sweep after sweep. That is the worst case of every policy that keeps what
//! was used last: below the full size an LRU cache never hits, because it drops each group just before
//! its next use. Keeping a fixed subset and letting the others pass through a small ring hits exactly
//! the share that is kept, and no policy can hit more. So the decision is made once, before anything
//! runs:
//!
//! ```text
//! memory = always-kept groups + pinned groups + slots * (the largest group that is not pinned)
//!
//! the ladder, from the smallest plan to the largest:
//!   1. as many slots as leases are held at once, nothing pinned
//!   2. the small groups pinned, one after another, smallest first   (a read each that is mostly latency)
//!   3. more slots, up to the number that lets the disk work without a pause
//!   4. the large groups pinned, one after another, each the one farthest from those already pinned
//!
//! plan(budget) = the highest rung whose memory is within the budget
//! ```
//!
//! A rung keeps everything that the rungs below it keep, so a larger budget never reads more. "Farthest"
//! is counted in bytes along the cycle; it spreads the pinned groups evenly at every rung, so that the
//! disk fills slots while the consumer works on pinned groups.

use crate::group::{Group, GroupId};

/// What memory is rounded up to, in bytes: groups and slots begin at a page.
const PAGE: u64 = 4096;

/// A swept group is small when this many of it weigh no more than the largest one.
const SMALL_SHARE: u64 = 4;

/// How many ring slots a plan should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingShape {
    /// The most leases of groups that are not pinned which are held at the same time. No plan has fewer
    /// slots, unless fewer groups stream. At least 1.
    pub leases: usize,
    /// The number of slots from which on the budget is better spent on pinned groups.
    pub slots: usize,
}

impl Default for RingShape {
    /// One lease at a time and three slots: one leased, one being read, and one next in line, so that
    /// the disk always has something to do.
    fn default() -> Self {
        RingShape { leases: 1, slots: 3 }
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The budget is smaller than what the smallest plan takes.
    #[error("a budget of {budget} bytes cannot work, the smallest that can is {smallest} bytes")]
    BudgetTooSmall {
        /// The budget that was asked for, in bytes.
        budget: u64,
        /// The smallest budget that has a plan, in bytes.
        smallest: u64,
    },
    /// The sizes of the groups do not add up in 64 bits.
    #[error("group {group}: {len} bytes are more than can be counted in 64 bits with the groups before it")]
    TooLarge {
        /// The group at which the sum overflowed.
        group: String,
        /// Its length in bytes.
        len: u64,
    },
}

/// Which groups are pinned, and the ring for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    lens: Vec<u64>,
    pinned: Vec<bool>,
    slots: usize,
    slot_bytes: u64,
    pinned_bytes: u64,
    sweep_bytes: u64,
    mapped: bool,
}

/// Plans for `budget` bytes with the default [`RingShape`].
///
/// # Errors
/// [`PlanError::BudgetTooSmall`] names the smallest budget that works; [`PlanError::TooLarge`] refuses
/// sizes that overflow.
pub fn plan(groups: &[Group], budget: u64) -> Result<Plan, PlanError> {
    plan_with(groups, budget, RingShape::default())
}

/// Plans for `budget` bytes.
///
/// # Errors
/// As [`plan`].
///
/// # Panics
/// When `shape.leases` is 0.
pub fn plan_with(groups: &[Group], budget: u64, shape: RingShape) -> Result<Plan, PlanError> {
    assert!(shape.leases >= 1, "a ring for {} leases", shape.leases);
    checked_total(groups)?;
    let ladder = Ladder::new(groups, shape);
    let mut best = None;
    let mut smallest = u64::MAX;
    for rung in ladder.rungs() {
        smallest = smallest.min(rung.memory);
        if rung.memory <= budget {
            best = Some(rung);
        }
    }
    let rung = best.ok_or(PlanError::BudgetTooSmall { budget, smallest })?;
    let mut plan = Plan::resident(groups)?;
    for &index in &ladder.order[rung.pinned..] {
        plan.pinned[index] = false;
        plan.pinned_bytes -= round_up(plan.lens[index]);
    }
    plan.slots = rung.slots;
    plan.slot_bytes = rung.slot_bytes;
    Ok(plan)
}

impl Plan {
    /// The plan that pins everything.
    ///
    /// # Errors
    /// [`PlanError::TooLarge`] refuses sizes that overflow.
    pub fn resident(groups: &[Group]) -> Result<Plan, PlanError> {
        let pinned_bytes = checked_total(groups)?;
        Ok(Plan {
            lens: groups.iter().map(|group| group.extent.len).collect(),
            pinned: vec![true; groups.len()],
            slots: 0,
            slot_bytes: 0,
            pinned_bytes,
            sweep_bytes: groups.iter().filter(|group| !group.always).map(|group| group.extent.len).sum(),
            mapped: false,
        })
    }

    /// The plan that copies nothing: leases are slices of the source's map, and the system decides what
    /// stays in memory. It has no budget. A file that is cut while it is mapped kills the process with
    /// SIGBUS at the next touch of the missing bytes; the other plans report an error instead.
    ///
    /// # Errors
    /// [`PlanError::TooLarge`] refuses sizes that overflow.
    pub fn mapped(groups: &[Group]) -> Result<Plan, PlanError> {
        let plan = Plan::resident(groups)?;
        Ok(Plan { pinned: vec![false; groups.len()], pinned_bytes: 0, mapped: true, ..plan })
    }

    /// Whether the group stays in memory.
    ///
    /// # Panics
    /// When the plan was made without a group of this id.
    pub fn is_pinned(&self, group: GroupId) -> bool {
        self.pinned[group.index()]
    }

    /// Whether leases are slices of the source's map.
    pub fn is_mapped(&self) -> bool {
        self.mapped
    }

    /// The groups that stay in memory, in sweep order.
    pub fn pinned(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.pinned.iter().enumerate().filter(|&(_, &pinned)| pinned).map(|(index, _)| GroupId::new(index))
    }

    /// How many groups the plan was made for.
    pub fn groups(&self) -> usize {
        self.lens.len()
    }

    /// How many ring slots there are: the most leases of groups that are not pinned at the same time.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// The size of a ring slot, in bytes.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// The memory of the pinned groups, in bytes.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes
    }

    /// All the memory that the cache takes for groups, in bytes: pinned groups and ring slots, each
    /// rounded up to whole pages of 4096 bytes. Never more than the budget.
    pub fn memory_bytes(&self) -> u64 {
        self.pinned_bytes + self.slots as u64 * self.slot_bytes
    }

    /// What one sweep over all groups reads from the source once the pinned groups are loaded, in bytes.
    pub fn bytes_per_sweep(&self) -> u64 {
        if self.mapped {
            return 0;
        }
        self.lens.iter().zip(&self.pinned).filter(|&(_, &pinned)| !pinned).map(|(&len, _)| len).sum()
    }

    /// What one sweep would read if nothing but the always-kept groups were pinned, in bytes.
    pub fn sweep_bytes(&self) -> u64 {
        self.sweep_bytes
    }

    /// How many leases of a sweep over all groups need no read.
    pub fn hits_per_sweep(&self) -> usize {
        if self.mapped { self.pinned.len() } else { self.pinned().count() }
    }

    pub(crate) fn len_of(&self, index: usize) -> u64 {
        self.lens[index]
    }
}

/// One possible plan.
struct Rung {
    /// How many groups of the ladder's order are pinned.
    pinned: usize,
    slots: usize,
    slot_bytes: u64,
    memory: u64,
}

struct Ladder {
    /// The swept groups in the order in which they get pinned.
    order: Vec<usize>,
    small: usize,
    /// Memory per group of `order`.
    costs: Vec<u64>,
    always_bytes: u64,
    leases: usize,
    slots: usize,
}

impl Ladder {
    fn new(groups: &[Group], shape: RingShape) -> Self {
        let always = |group: &Group| group.always || group.extent.len == 0;
        let cost = |index: usize| round_up(groups[index].extent.len);
        let (fixed, swept): (Vec<usize>, Vec<usize>) =
            (0..groups.len()).partition(|&index| always(&groups[index]));
        let largest = swept.iter().map(|&index| cost(index)).max().unwrap_or(0);
        let (mut order, large): (Vec<usize>, Vec<usize>) =
            swept.iter().partition(|&&index| cost(index) <= largest / SMALL_SHARE);
        order.sort_by_key(|&index| (cost(index), index));
        let small = order.len();
        order.extend(spread(groups, &large));
        // More places than groups are none.
        let [leases, slots] = [shape.leases, shape.slots].map(|places| places.min(order.len().max(1)));
        Ladder {
            costs: order.iter().map(|&index| cost(index)).collect(),
            order,
            small,
            always_bytes: fixed.iter().map(|&index| cost(index)).sum(),
            leases,
            slots: slots.max(leases),
        }
    }

    fn rungs(&self) -> impl Iterator<Item = Rung> + '_ {
        let fewest = (0..=self.small).map(|pinned| (pinned, self.leases));
        let wider = (self.leases + 1..=self.slots).map(|slots| (self.small, slots));
        let longer = (self.small + 1..=self.order.len()).map(|pinned| (pinned, self.slots));
        fewest.chain(wider).chain(longer).filter_map(|(pinned, slots)| self.rung(pinned, slots))
    }

    /// `None` when the memory does not fit 64 bits, which no budget allows.
    fn rung(&self, pinned: usize, slots: usize) -> Option<Rung> {
        let (kept, streamed) = self.costs.split_at(pinned);
        let slots = slots.min(streamed.len());
        let slot_bytes = streamed.iter().copied().max().unwrap_or(0);
        let ring = slot_bytes.checked_mul(slots as u64)?;
        let memory = kept.iter().sum::<u64>().checked_add(self.always_bytes)?.checked_add(ring)?;
        Some(Rung { pinned, slots, slot_bytes, memory })
    }
}

/// Orders the groups `large` so that every prefix of the order is spread over the sweep: each next one
/// is the farthest from all before it, in bytes along the cycle; of equals the first.
fn spread(groups: &[Group], large: &[usize]) -> Vec<usize> {
    let total: u64 = large.iter().map(|&index| groups[index].extent.len).sum();
    let mut begin = 0;
    // Where each group begins on the cycle, and how far it is from the nearest one taken.
    let mut rest: Vec<(usize, u64, u64)> = Vec::with_capacity(large.len());
    for &index in large {
        rest.push((index, begin, u64::MAX));
        begin += groups[index].extent.len;
    }
    let mut order = Vec::with_capacity(large.len());
    while let Some(far) = rest.iter().map(|&(.., distance)| distance).max() {
        let place = rest.iter().position(|&(.., distance)| distance == far).expect("the maximum is there");
        let (index, taken, _) = rest.remove(place);
        order.push(index);
        for (_, begin, distance) in &mut rest {
            let apart = begin.abs_diff(taken);
            *distance = (*distance).min(apart).min(total - apart);
        }
    }
    order
}

/// The memory of all groups together.
fn checked_total(groups: &[Group]) -> Result<u64, PlanError> {
    let mut total = 0u64;
    for group in groups {
        let len = group.extent.len;
        total = len
            .checked_next_multiple_of(PAGE)
            .and_then(|cost| total.checked_add(cost))
            .ok_or_else(|| PlanError::TooLarge { group: group.name.clone(), len })?;
    }
    Ok(total)
}

/// Only for lengths that `checked_total` has accepted.
fn round_up(len: u64) -> u64 {
    len.next_multiple_of(PAGE)
}
