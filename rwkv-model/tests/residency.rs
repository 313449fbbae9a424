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
    let total = fs::metadata(&packed.path).unwrap().len();
    let (mut worked, mut refused) = (0, 0);
    for weight_bytes in (0..=total).step_by(total as usize / 12) {
        for read_ahead in [ReadAhead::Off, ReadAhead::Next, ReadAhead::Adaptive] {
            match open(Residency::Stream { weight_bytes }, None, read_ahead) {
                Ok(mut model) => {
                    worked += 1;
                    assert!(run(&mut model) == expected, "{weight_bytes} bytes, {read_ahead:?}");
                    assert_eq!(run(&mut model).0, expected.0, "{weight_bytes} bytes, {read_ahead:?}, again");
                }
                Err(error) => {
                    refused += 1;
                    assert_eq!(error.kind(), ErrorKind::Residency, "{error}");
                    let cause = std::error::Error::source(&error).expect("a cause").to_string();
                    assert!(cause.contains("the smallest that can is"), "{cause}");
                }
            }
        }
    }
    assert!(worked >= 9 && refused >= 3, "{worked} budgets worked, {refused} were refused");
    let streamed = Residency::Stream { weight_bytes: total / 3 };
    for io in [Io::Auto, Io::Buffered, Io::Mapped] {
        assert!(run(&mut open(streamed, Some(io), ReadAhead::Next).unwrap()) == expected, "{io}");
    }
}

#[test]
fn the_head_is_not_read_when_no_logits_are_wanted() {
    let config = config(2, 2, 32);
    let (_, packed) = random_pack(&config, 62, Codec::U8);
    let total = fs::metadata(&packed.path).unwrap().len();
    let options = ModelOptions::default().threads(1).residency(Residency::Stream { weight_bytes: total / 3 });
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
    let total = fs::metadata(&packed.path).unwrap().len();
    let bytes = fs::read(&packed.path).unwrap();
    let expected = run(&mut Model::open(&packed.path, ModelOptions::default().threads(1)).unwrap());
    let groups = Pack::open(&packed.path).unwrap().manifest().groups.clone();
    let mut failures = 0;
    for group in groups.iter().filter(|group| group.name != "vectors") {
        let source = Arc::new(FaultSource::new(bytes.clone()));
        let options = ModelOptions::default().threads(1).read_ahead(ReadAhead::Off);
        let options = options.residency(Residency::Stream { weight_bytes: total / 3 });
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
