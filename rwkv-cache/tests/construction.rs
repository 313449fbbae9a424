//! A cache refuses groups and plans that cannot be right.

use std::sync::Arc;

use rwkv_cache::{Cache, CacheOptions, ErrorKind, Extent, Group, Plan};

fn refusal(source_len: usize, groups: Vec<Group>, plan: Plan) -> (ErrorKind, String) {
    let error = Cache::new(Arc::new(vec![0u8; source_len]), groups, plan, CacheOptions::default())
        .expect_err("a refusal");
    (error.kind(), error.to_string())
}

#[test]
fn extents_lie_within_the_source() {
    for (offset, len) in [(0, 101), (100, 1), (50, 51), (u64::MAX, 1), (1 << 40, 1 << 40)] {
        let groups = vec![Group::swept("blocks.3", Extent { offset, len })];
        let plan = Plan::resident(&groups).expect("plan");
        let (kind, text) = refusal(100, groups, plan);
        assert_eq!(kind, ErrorKind::BadExtent);
        assert!(text.starts_with("group blocks.3: ") && text.contains("(100 bytes)"), "{text}");
    }
}

#[test]
fn a_plan_belongs_to_its_groups() {
    let group = |len| Group::swept("a", Extent { offset: 0, len });
    for groups in [vec![], vec![group(11)], vec![group(10), group(10)]] {
        let plan = Plan::resident(&[group(10)]).expect("plan");
        assert_eq!(refusal(100, groups, plan).0, ErrorKind::BadPlan);
    }
}

#[test]
fn mapped_leases_need_a_map_and_alignment() {
    let groups = vec![Group::swept("a", Extent { offset: 8, len: 8 })];
    let plan = Plan::mapped(&groups).expect("plan");
    assert_eq!(refusal(100, groups, plan).0, ErrorKind::BadExtent);

    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("file");
    std::fs::write(&path, [0; 100]).expect("written");
    let groups = vec![Group::swept("a", Extent { offset: 0, len: 8 })];
    let plan = Plan::mapped(&groups).expect("plan");
    let source = rwkv_cache::source::open(&path, rwkv_cache::source::Io::Buffered).expect("open");
    let error = Cache::new(source, groups, plan, CacheOptions::default()).expect_err("a refusal");
    assert_eq!(error.kind(), ErrorKind::BadPlan);
}

#[test]
#[should_panic(expected = "group 1 of 1")]
fn a_group_that_is_not_there_is_the_callers_mistake() {
    let groups = vec![Group::swept("a", Extent { offset: 0, len: 8 })];
    let plan = Plan::resident(&groups).expect("plan");
    let cache = Cache::new(Arc::new(vec![0u8; 8]), groups, plan, CacheOptions::default()).expect("cache");
    let _ = cache.lease(rwkv_cache::GroupId::new(1));
}
