//! The plan keeps its promises for every list of groups and every budget.

use proptest::prelude::*;
use rwkv_cache::{Extent, Group, GroupId, Plan, PlanError, RingShape, plan, plan_with};

fn group(index: usize, len: u64, always: bool) -> Group {
    Group { name: format!("group.{index}"), extent: Extent { offset: index as u64 * 4096, len }, always }
}

fn swept(lens: &[u64]) -> Vec<Group> {
    lens.iter().enumerate().map(|(index, &len)| group(index, len, false)).collect()
}

fn smallest(groups: &[Group], shape: RingShape) -> u64 {
    match plan_with(groups, 0, shape) {
        Ok(plan) => plan.memory_bytes(),
        Err(PlanError::BudgetTooSmall { smallest, .. }) => smallest,
        Err(error) => panic!("{error}"),
    }
}

fn pages(len: u64) -> u64 {
    len.next_multiple_of(4096)
}

prop_compose! {
    fn any_groups()(sizes in prop::collection::vec((0u64..=9, 0u64..60_000, 0u8..8), 0..40)) -> Vec<Group> {
        let group = |(index, &(scale, len, kind)): (usize, &(u64, u64, u8))| {
            // Equal sizes are as important as unequal ones.
            let len = if kind % 2 == 0 { scale * 8192 } else { len };
            group(index, len, kind == 7)
        };
        sizes.iter().enumerate().map(group).collect()
    }
}

proptest! {
    #[test]
    fn a_larger_budget_never_reads_more(
        groups in any_groups(), leases in 1usize..4, slots in 1usize..6, step in 1u64..5000,
    ) {
        let shape = RingShape { leases, slots };
        let smallest = smallest(&groups, shape);
        let all: u64 = groups.iter().map(|group| pages(group.extent.len)).sum();
        let mut last: Option<Plan> = None;
        for budget in (smallest..=all).step_by(step as usize * 7).chain([all]) {
            let plan = plan_with(&groups, budget, shape).expect("workable");
            prop_assert!(plan.memory_bytes() <= budget);
            if let Some(last) = last {
                prop_assert!(plan.bytes_per_sweep() <= last.bytes_per_sweep());
                prop_assert!(plan.hits_per_sweep() >= last.hits_per_sweep());
                prop_assert!(last.pinned().all(|id| plan.is_pinned(id)));
            }
            last = Some(plan);
        }
        let full = last.expect("at least one plan");
        prop_assert_eq!((full.bytes_per_sweep(), full.slots(), full.memory_bytes()), (0, 0, all));
    }

    #[test]
    fn the_parts_of_a_plan_agree(groups in any_groups(), leases in 1usize..4, slots in 1usize..6, over in 0u64..200_000) {
        let shape = RingShape { leases, slots };
        let smallest = smallest(&groups, shape);
        let plan = plan_with(&groups, smallest + over, shape).expect("workable");
        let pinned = |&(index, _): &(usize, &Group)| plan.is_pinned(GroupId::new(index));
        let (kept, streamed): (Vec<_>, Vec<_>) = groups.iter().enumerate().partition(pinned);
        prop_assert_eq!(plan.pinned_bytes(), kept.iter().map(|(_, group)| pages(group.extent.len)).sum::<u64>());
        prop_assert_eq!(plan.bytes_per_sweep(), streamed.iter().map(|(_, group)| group.extent.len).sum::<u64>());
        prop_assert!(groups.iter().enumerate().all(|(index, group)| !group.always || plan.is_pinned(GroupId::new(index))));
        prop_assert!(streamed.iter().all(|(_, group)| group.extent.len <= plan.slot_bytes()));
        prop_assert!(plan.slots() >= leases.min(streamed.len()));
        prop_assert_eq!(plan.memory_bytes(), plan.pinned_bytes() + plan.slots() as u64 * plan.slot_bytes());
        if smallest > 0 {
            let refused = plan_with(&groups, smallest - 1, shape);
            prop_assert_eq!(refused, Err(PlanError::BudgetTooSmall { budget: smallest - 1, smallest }));
        }
    }
}

#[test]
fn small_groups_come_first() {
    let groups = swept(&[40_000, 3_000, 40_000, 8_000, 40_000, 3_000, 40_000]);
    let budget = 2 * 40_960 + 2 * 4096;
    let plan = plan_with(&groups, budget, RingShape { leases: 2, slots: 2 }).expect("workable");
    assert_eq!(plan.pinned().map(GroupId::index).collect::<Vec<_>>(), [1, 5]);
    let plan = plan_with(&groups, budget + 8192, RingShape { leases: 2, slots: 2 }).expect("workable");
    assert_eq!(plan.pinned().map(GroupId::index).collect::<Vec<_>>(), [1, 3, 5]);
}

#[test]
fn pinned_groups_are_spread_over_the_sweep() {
    for count in [2, 3, 7, 16, 24, 37, 72, 100] {
        let groups = swept(&vec![65_536; count]);
        for pinned in 1..count - 1 {
            let slots = 1;
            let budget = (pinned + slots) as u64 * 65_536;
            let plan = plan_with(&groups, budget, RingShape { leases: 1, slots }).expect("workable");
            let at: Vec<usize> = plan.pinned().map(GroupId::index).collect();
            assert_eq!(at.len(), pinned, "{pinned} of {count}");
            let gaps = at.iter().zip(at.iter().cycle().skip(1)).map(|(a, b)| (b + count - a - 1) % count + 1);
            let (longest, shortest) = (gaps.clone().max().unwrap(), gaps.min().unwrap());
            assert!(longest <= 2 * shortest + 1, "{pinned} of {count}: {at:?}");
        }
    }
}

#[test]
fn half_the_groups_pinned_halve_the_bytes() {
    let groups = swept(&[1 << 20; 40]);
    let plan = plan(&groups, 23 << 20).expect("workable");
    assert_eq!((plan.hits_per_sweep(), plan.slots()), (20, 3));
    assert_eq!(plan.bytes_per_sweep() * 2, plan.sweep_bytes());
}

#[test]
fn what_fits_is_pinned() {
    let groups = swept(&[1 << 20; 40]);
    let fits = plan(&groups, 40 << 20).expect("workable");
    assert_eq!(fits, Plan::resident(&groups).expect("plan"));
    let almost = plan(&groups, (40 << 20) - 1).expect("workable");
    assert_eq!((almost.hits_per_sweep(), almost.slots()), (36, 3));
}

#[test]
fn a_refusal_names_the_smallest_budget() {
    let mut groups = swept(&[1 << 20; 4]);
    groups.push(group(4, 10_000, true));
    let error = plan(&groups, 1 << 20).expect_err("too small");
    assert_eq!(
        error.to_string(),
        "a budget of 1048576 bytes cannot work, the smallest that can is 1060864 bytes"
    );
    assert_eq!(plan(&groups, 1_060_864).expect("workable").memory_bytes(), 1_060_864);
}

#[test]
fn sizes_that_overflow_are_refused() {
    for lens in [vec![u64::MAX], vec![u64::MAX - 4094], vec![1 << 63, 1 << 63], vec![5, u64::MAX - 4100]] {
        let error = plan(&swept(&lens), u64::MAX).expect_err("too large");
        assert!(matches!(error, PlanError::TooLarge { .. }), "{lens:?}: {error}");
        assert!(Plan::mapped(&swept(&lens)).is_err(), "{lens:?}");
    }
    // The sum fits 64 bits, three slots of the largest do not.
    let large = swept(&[1 << 62, 1 << 62, 1 << 62]);
    assert!(
        matches!(plan(&large, 1 << 60), Err(PlanError::BudgetTooSmall { smallest, .. }) if smallest == 1 << 62)
    );
}

#[test]
fn nothing_needs_nothing() {
    let plan = plan(&[], 0).expect("workable");
    assert_eq!((plan.memory_bytes(), plan.bytes_per_sweep(), plan.slots()), (0, 0, 0));
    let empty = swept(&[0, 0]);
    assert_eq!(rwkv_cache::plan(&empty, 0).expect("workable").hits_per_sweep(), 2);
}
