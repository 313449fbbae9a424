//! Where the weights are changes no bit, and a source that fails leaves the model alive.

mod support;

use std::fs;
use std::sync::Arc;

use rwkv_cache::source::{Fault, FaultSource, Io, When};
use rwkv_cache::{ReadAhead, Source};
use rwkv_kernels::Codec;
use rwkv_model::{ErrorKind, Feed, Logits, Model, ModelOptions, Residency, State};
use rwkv_pack::Pack;
use support::random::{Numbers, config};
use support::random_pack;

/// Logits as bits of a prompt, a step without logits, and single tokens, and the state after them.
fn run(model: &mut Model) -> (Vec<u32>, State) {
    let vocab = model.config().vocab;
    let tokens = Numbers::new(1).tokens(50, vocab);
    let mut state = model.new_state();
    let mut bits = Vec::new();
    let mut step = |tokens: &[u32], logits| {
        let output = model.step(&mut [Feed::new(&mut state, tokens, logits)]).expect("the step succeeds");
        bits.extend(output.logits(0).iter().map(|logit| logit.to_bits()));
    };
    step(&tokens[..30], Logits::All);
    step(&tokens[30..40], Logits::None);
    tokens[40..].iter().for_each(|token| step(std::slice::from_ref(token), Logits::Last));
    (bits, state)
}

#[test]
fn streamed_and_mapped_equal_resident() {
    let config = config(3, 2, 32);
    let (_, packed) = random_pack(&config, 61, Codec::U8);
    let options = || ModelOptions::default().threads(2).chunk_rows(16);
    let expected = run(&mut Model::open(&packed.path, options()).unwrap());
    let open = |residency, io, read_ahead| {
        let options = options().residency(residency).read_ahead(read_ahead);
        Model::open(&packed.path, if let Some(io) = io { options.io(io) } else { options })
    };
    let mapped = Residency::Mapped;
    assert!(run(&mut open(mapped, None, ReadAhead::Adaptive).unwrap()) == expected);
    let resident = Model::plan(&packed.path, &options()).unwrap();
    let (smallest, most) = (resident.smallest_budget, resident.memory_bytes());
    assert!(smallest < most / 4 * 3, "{smallest} of {most}");
    for budget_bytes in (0..=8).map(|i| smallest + (most - smallest) * i / 8) {
        for read_ahead in [ReadAhead::Off, ReadAhead::Next, ReadAhead::Adaptive] {
            let mut model = open(Residency::Stream { budget_bytes }, None, read_ahead).unwrap();
            assert!(run(&mut model) == expected, "{budget_bytes} bytes, {read_ahead:?}");
            assert_eq!(run(&mut model).0, expected.0, "{budget_bytes} bytes, {read_ahead:?}, again");
        }
    }
    let streamed = Residency::Stream { budget_bytes: smallest };
    for io in [Io::Auto, Io::Buffered, Io::Mapped] {
        assert!(run(&mut open(streamed, Some(io), ReadAhead::Next).unwrap()) == expected, "{io}");
    }
}

#[test]
fn a_budget_is_a_bound_and_more_of_it_never_reads_more() {
    let config = config(4, 4, 32);
    let (_, packed) = random_pack(&config, 64, Codec::U8);
    let plan = |budget_bytes, sessions| {
        let options =
            ModelOptions::default().sessions(sessions).residency(Residency::Stream { budget_bytes });
        Model::plan(&packed.path, &options)
    };
    let resident = Model::plan(&packed.path, &ModelOptions::default()).unwrap();
    assert_eq!((resident.chunk_rows, resident.read_bytes_per_token, resident.slots), (256, 0, 0));
    let smallest = resident.smallest_budget;
    let most = resident.memory_bytes();
    let (mut before, mut rows) = (plan(smallest, 1).unwrap(), 0);
    assert_eq!((before.memory_bytes(), before.chunk_rows), (smallest, 16));
    assert!(before.read_bytes_per_token > 0);
    for i in 0..=2000 {
        let budget = smallest + most * i / 1000;
        let plan = plan(budget, 1).unwrap();
        assert!(plan.memory_bytes() <= budget, "{budget}: {plan:?}");
        assert!(
            plan.read_bytes_per_token <= before.read_bytes_per_token,
            "{budget}: {plan:?} after {before:?}"
        );
        assert!(plan.chunk_rows >= before.chunk_rows, "{budget}: {plan:?} after {before:?}");
        rows += usize::from(plan.chunk_rows > before.chunk_rows);
        before = plan;
    }
    assert!(rows > 5, "a larger budget has larger chunks");
    assert_eq!(before.pinned_groups, before.swept_groups);
    for budget in [0, smallest / 2, smallest - 1] {
        let error = plan(budget, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Residency);
        let expected =
            format!("a budget of {budget} bytes cannot work, the smallest that can is {smallest} bytes");
        assert_eq!(error.to_string(), expected);
    }
    let session = config.state_bytes() + 4 * config.vocab as u64;
    assert_eq!(plan(most, 5).unwrap().smallest_budget, smallest + 4 * session);
    // What the caller reserves comes out of the budget, and never makes it too small.
    let mut read = u64::MAX;
    for i in 0..=200 {
        let budget_bytes = smallest + (most - smallest) * i / 100;
        let options = ModelOptions::default().residency(Residency::Stream { budget_bytes }).reserve(40_000);
        let plan = Model::plan(&packed.path, &options).unwrap();
        assert_eq!(plan.reserved_bytes, 40_000.min((budget_bytes - smallest) / 4));
        assert!(plan.memory_bytes() <= budget_bytes && plan.read_bytes_per_token <= read, "{plan:?}");
        read = plan.read_bytes_per_token;
    }
}

#[test]
fn a_model_that_fits_is_resident_by_itself() {
    let config = config(2, 2, 32);
    let (_, packed) = random_pack(&config, 65, Codec::U8);
    let model =
        Model::open(&packed.path, ModelOptions::default().threads(1).residency(Residency::Auto)).unwrap();
    assert_eq!(model.memory_plan().residency, Residency::Resident);
    assert_eq!(model.memory_plan().pinned_bytes, model.cache_stats().pinned_bytes);
}

#[test]
fn the_head_is_not_read_when_no_logits_are_wanted() {
    let config = config(2, 2, 32);
    let (_, packed) = random_pack(&config, 62, Codec::U8);
    let options = ModelOptions::default().threads(1);
    let budget_bytes = Model::plan(&packed.path, &options).unwrap().smallest_budget;
    let options = options.residency(Residency::Stream { budget_bytes });
    let mut model = Model::open(&packed.path, options.read_ahead(ReadAhead::Off)).unwrap();
    let mut state = model.new_state();
    let leases = |model: &Model, name: &str| {
        let group = model.manifest().groups.iter().position(|group| group.name == name).unwrap();
        model.cache_stats().groups[group].counters.leases
    };
    for _ in 0..3 {
        model.step(&mut [Feed::new(&mut state, &[1, 2], Logits::None)]).unwrap();
    }
    assert_eq!((leases(&model, "blocks.1.key"), leases(&model, "head.0")), (3, 0));
    model.step(&mut [Feed::new(&mut state, &[1, 2], Logits::Last)]).unwrap();
    assert_eq!((leases(&model, "blocks.1.key"), leases(&model, "head.0")), (4, 1));
    let dense = 3 * model.swept_bytes(false) + model.swept_bytes(true);
    assert_eq!(model.counters().dense_bytes, dense);
    assert_eq!((model.counters().tokens, model.counters().sweeps), (8, 4));
    assert_eq!(model.cache_stats().row_reads, 8, "embedding rows come one by one");
}

#[test]
fn a_source_that_fails_and_recovers_leaves_the_model_alive() {
    let config = config(2, 2, 32);
    let (_, packed) = random_pack(&config, 63, Codec::U8);
    let budget_bytes = Model::plan(&packed.path, &ModelOptions::default()).unwrap().smallest_budget;
    let bytes = fs::read(&packed.path).unwrap();
    let expected = run(&mut Model::open(&packed.path, ModelOptions::default().threads(1)).unwrap());
    let groups = Pack::open(&packed.path).unwrap().manifest().groups.clone();
    let mut failures = 0;
    for group in groups.iter().filter(|group| group.name != "vectors") {
        let source = Arc::new(FaultSource::new(bytes.clone()));
        let options = ModelOptions::default().threads(1).read_ahead(ReadAhead::Off);
        let options = options.residency(Residency::Stream { budget_bytes });
        let pack = Pack::open(&packed.path).unwrap();
        let shared: Arc<dyn Source> = source.clone();
        let mut model = Model::from_source(pack, shared, options).unwrap();
        let (mut touched, mut bystander) = (model.new_state(), model.new_state());
        // Any token's row of the embedding, or the middle of the group.
        let at = if group.name == "emb" { group.offset } else { group.offset + group.len / 2 };
        source.inject(When::Byte(at), Fault::Os(5));
        let failed = model.step(&mut [
            Feed::new(&mut bystander, &[], Logits::Last),
            Feed::new(&mut touched, &[0, 1, 2], Logits::Last),
        ]);
        match failed {
            // Small groups are pinned, and were read when the model was opened.
            Ok(_) => assert_eq!(source.struck(), 0, "{}", group.name),
            Err(error) => {
                failures += 1;
                assert_eq!(error.kind(), ErrorKind::Residency, "{}", group.name);
                assert!(touched.is_poisoned() && !bystander.is_poisoned());
                let again = model.step(&mut [Feed::new(&mut touched, &[1], Logits::None)]).unwrap_err();
                assert_eq!(again.kind(), ErrorKind::State);
            }
        }
        source.recover();
        assert!(run(&mut model) == expected, "{}: after the recovery", group.name);
    }
    assert!(failures >= 3, "only {failures} groups were read when it failed");
}
