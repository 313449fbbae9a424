//! RWKV-X: the formulas of every attention policy, equal bits, states, names, and the limit of the cache.

mod support;

use rwkv_kernels::{Codec, Isa, KvFormat};
use rwkv_model::{
    Attention, Compression, Config, ErrorKind, Family, Feed, Logits, Model, ModelOptions, Residency, State,
    TopK,
};
use support::random::{Numbers, Weights, hybrid, weights};
use support::reference::Reference;
use support::{Packed, pack, random_pack};

/// Every policy, with numbers small enough to matter within 150 tokens.
fn policies() -> Vec<Attention> {
    let top_k = TopK { short_rows: 11, ..TopK::new(8, 2) };
    let compression = Some(Compression { above: 40, keep: 24, window: 6 });
    vec![
        Attention::Full,
        Attention::Window(1),
        Attention::Window(70),
        Attention::TopK(top_k),
        Attention::TopK(TopK { compression, ..top_k }),
        Attention::TopK(TopK { short_rows: 1000, compression, ..top_k }),
    ]
}

fn options(attention: Attention, format: KvFormat) -> ModelOptions {
    ModelOptions::default().threads(2).chunk_rows(32).attention(attention).kv_format(format)
}

fn open(packed: &Packed, options: ModelOptions) -> Model {
    Model::open(&packed.path, options).expect("the pack opens")
}

/// Logits of every token, as bits, and the state after them.
fn run(model: &mut Model, pieces: &[&[u32]]) -> (Vec<u32>, State) {
    let mut state = model.new_state();
    let mut bits = Vec::new();
    for piece in pieces {
        let output = model.step(&mut [Feed::new(&mut state, piece, Logits::All)]).expect("the step succeeds");
        bits.extend(output.logits(0).iter().map(|logit| logit.to_bits()));
    }
    (bits, state)
}

fn off(found: &[f32], expected: impl IntoIterator<Item = f64>) -> f64 {
    let pairs = found.iter().zip(expected);
    pairs
        .map(|(&a, b)| (f64::from(a) - b).abs())
        .fold(0.0, |worst, d| if d > worst || d.is_nan() { d } else { worst })
}

#[test]
fn logits_and_states_agree_with_the_formulas() {
    for (layers, attention, width, head_size) in [(2, 1, 64, 16), (5, 2, 128, 64)] {
        let config = hybrid(layers, attention, width, head_size);
        let (weights, packed) = random_pack(&config, 12, Codec::F32);
        let tokens = Numbers::new(5).tokens(100, config.vocab);
        for policy in policies() {
            let name = format!("{layers} + {attention} blocks, {policy:?}");
            let reference = Reference::attending(&weights, policy);
            let mut memory = reference.memory();
            let mut model = open(&packed, options(policy, KvFormat::F32));
            let mut state = model.new_state();
            let output = model.step(&mut [Feed::new(&mut state, &tokens, Logits::All)]).unwrap();
            for (row, &token) in output.logits(0).chunks(config.vocab).zip(&tokens) {
                let worst = off(row, reference.step(&mut memory, token));
                assert!(worst < 2e-4, "{name}: logits off by {worst:e}");
            }
            for (block, expected) in memory.attention.iter().enumerate() {
                let worst = off(state.attention_shift(block), expected.ffn_x.iter().copied());
                assert!(worst < 2e-4, "{name}: shift off by {worst:e}");
                let [keys, values] = state.keys_and_values(block);
                let rows = keys.len() / width;
                let skipped = expected.heads[0].len() - rows;
                assert!(skipped == 0 || matches!(policy, Attention::Window(_)), "{name}: {rows} rows");
                for head in 0..width / 64 {
                    for (row, (key, value)) in expected.heads[head][skipped..].iter().enumerate() {
                        let at = row * width + 64 * head;
                        let worst = off(&keys[at..][..64], key.iter().copied());
                        let worst = worst.max(off(&values[at..][..64], value.iter().copied()));
                        assert!(worst < 2e-4, "{name}: row {row} of head {head} off by {worst:e}");
                    }
                }
            }
        }
    }
}

#[test]
fn threads_instruction_sets_and_splits_change_no_bit() {
    let config = hybrid(4, 2, 128, 32);
    let (_, packed) = random_pack(&config, 13, Codec::U8);
    let tokens = Numbers::new(9).tokens(150, config.vocab);
    for (index, policy) in policies().into_iter().enumerate() {
        let format = if index % 2 == 0 { KvFormat::F16 } else { KvFormat::F32 };
        let expected =
            run(&mut open(&packed, options(policy, format).threads(1).isa(Isa::scalar())), &[&tokens]);
        for &isa in Isa::available() {
            for threads in 1..=3 {
                let mut model = open(&packed, options(policy, format).threads(threads).isa(isa));
                assert!(run(&mut model, &[&tokens]) == expected, "{policy}: {isa}, {threads} threads");
            }
        }
        let mut model = open(&packed, options(policy, format));
        for split in [1, 8, 12, 63, 64, 65, 149] {
            let (first, second) = tokens.split_at(split);
            assert!(run(&mut model, &[first, second]) == expected, "{policy}: split at {split}");
        }
        for size in [1, 7, 32, 33] {
            let pieces: Vec<&[u32]> = tokens.chunks(size).collect();
            assert!(run(&mut model, &pieces) == expected, "{policy}: pieces of {size}");
        }
        for rows in [1, 5, 256] {
            let mut model = open(&packed, options(policy, format).chunk_rows(rows));
            assert!(run(&mut model, &[&tokens]) == expected, "{policy}: sweeps of {rows} rows");
        }
    }
}

#[test]
fn company_and_residency_change_no_bit() {
    let config = hybrid(2, 2, 128, 32);
    let (_, packed) = random_pack(&config, 14, Codec::U8);
    let mut numbers = Numbers::new(10);
    let prompts: Vec<Vec<u32>> =
        [1, 5, 90, 17].iter().map(|&len| numbers.tokens(len, config.vocab)).collect();
    for policy in policies() {
        let options = || options(policy, KvFormat::F16).sessions(prompts.len());
        let mut model = open(&packed, options());
        let alone: Vec<(Vec<u32>, State)> = prompts.iter().map(|prompt| run(&mut model, &[prompt])).collect();
        let budget_bytes = Model::plan(&packed.path, &options()).unwrap().smallest_budget;
        let streamed = options().residency(Residency::Stream { budget_bytes });
        for mut model in [model, open(&packed, streamed)] {
            let mut states: Vec<State> = prompts.iter().map(|_| model.new_state()).collect();
            let mut feeds: Vec<Feed<'_>> = states
                .iter_mut()
                .zip(&prompts)
                .map(|(state, prompt)| Feed::new(state, prompt, Logits::All))
                .collect();
            let output = model.step(&mut feeds).expect("the step succeeds");
            for (place, (bits, _)) in alone.iter().enumerate() {
                let found: Vec<u32> = output.logits(place).iter().map(|logit| logit.to_bits()).collect();
                assert!(found == *bits, "{policy}: logits of prompt {place}");
            }
            assert!(states.iter().zip(&alone).all(|(state, (_, after))| state == after), "{policy}: states");
        }
    }
}

#[test]
fn a_restored_state_goes_on_with_the_same_bits() {
    let config = hybrid(4, 2, 128, 32);
    let (_, packed) = random_pack(&config, 15, Codec::U8);
    let tokens = Numbers::new(6).tokens(150, config.vocab);
    let path = packed.dir.path().join("state");
    for policy in policies() {
        for format in [KvFormat::F32, KvFormat::F16] {
            let mut model = open(&packed, options(policy, format));
            let (_, mut state) = run(&mut model, &[&tokens[..130]]);
            state.save(&path).unwrap();
            // The file knows how the session attends, whatever the model would choose.
            let mut other = open(&packed, options(Attention::Full, KvFormat::F32));
            let mut restored = other.load_state(&path).unwrap();
            assert!(restored == state && restored.clone() == state, "{policy}, {format}");
            assert_eq!((restored.attention(), restored.kv_format()), (policy, format));
            assert_eq!(restored.bytes(), state.bytes());
            let go_on = |model: &mut Model, state: &mut State| {
                model.step(&mut [Feed::new(state, &tokens[130..], Logits::Last)]).unwrap().logits(0).to_vec()
            };
            assert_eq!(go_on(&mut other, &mut restored), go_on(&mut model, &mut state), "{policy}, {format}");
            assert!(restored == state, "{policy}, {format}");
            state.reset();
            assert!(state == model.new_state(), "{policy}, {format}");
        }
    }
    // Another policy is another state.
    let mut full = open(&packed, options(Attention::Full, KvFormat::F16));
    let mut window = open(&packed, options(Attention::Window(200), KvFormat::F16));
    let (a, b) = (run(&mut full, &[&tokens]), run(&mut window, &[&tokens]));
    assert!(a.0 == b.0 && a.1 != b.1);
}

#[test]
fn damaged_caches_are_refused() {
    let config = hybrid(2, 1, 64, 16);
    let (_, packed) = random_pack(&config, 16, Codec::U8);
    let mut model = open(&packed, options(Attention::Window(70), KvFormat::F16));
    let path = packed.dir.path().join("state");
    run(&mut model, &[&Numbers::new(6).tokens(150, config.vocab)]).1.save(&path).unwrap();
    let good = std::fs::read(&path).unwrap();
    let length = u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(good[8..8 + length].to_vec()).unwrap();
    for (from, to, expected) in [
        ("\\\"rows\\\":86", "\\\"rows\\\":85", "tensor k_cache.0 is F16 [86, 64]; expected F16 [85, 64]"),
        ("\\\"dropped\\\":64", "\\\"dropped\\\":65", "has 65 dropped rows with attention window:70"),
        ("\\\"window\\\":70", "\\\"window\\\":0", "the attention's window is 0"),
        (
            "\\\"window\\\":70",
            "\\\"window\\\":150",
            "has dropped 64 rows, and its window sees them from 1 on",
        ),
        ("\\\"format\\\":\\\"f16", "\\\"format\\\":\\\"f61", "unknown format of a key/value cache \"f61\""),
        ("\"v_cache.0\"", "\"v_cache.1\"", "tensor v_cache.0 is missing"),
    ] {
        assert!(header.contains(from), "{from} in {header}");
        let mut header = header.replace(from, to).into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &good[8 + length..]].concat();
        std::fs::write(&path, bytes).unwrap();
        let error = model.load_state(&path).expect_err(expected);
        assert_eq!(error.kind(), ErrorKind::State, "{error}");
        assert!(error.to_string().contains(expected), "{error}; expected {expected}");
    }
}

#[test]
fn a_step_that_would_outgrow_the_limit_is_refused_before_it_begins() {
    let config = hybrid(2, 1, 64, 16);
    let (_, packed) = random_pack(&config, 17, Codec::U8);
    let row = config.kv_row_bytes(KvFormat::F16);
    assert_eq!(row, 64 * 2 * 2);
    let limit = 192 * row;
    let mut model = open(&packed, options(Attention::Full, KvFormat::F16).kv_bytes(limit));
    let tokens = Numbers::new(2).tokens(300, config.vocab);
    let (mut first, mut second) = (model.new_state(), model.new_state());
    let mut step = |state: &mut State, tokens: &[u32]| {
        let failed = model.step(&mut [Feed::new(state, tokens, Logits::None)]).err();
        (failed.map(|error| error.kind()), model.kv_bytes() / row)
    };
    assert_eq!(step(&mut first, &tokens[..193]), (Some(ErrorKind::Budget), 0));
    assert_eq!(step(&mut first, &tokens[..100]), (None, 128), "blocks of 64 rows");
    assert_eq!(first.bytes(), config.state_bytes() + 128 * row);
    assert_eq!(step(&mut second, &tokens[..65]), (Some(ErrorKind::Budget), 128));
    assert!(!second.is_poisoned() && second.tokens() == 0, "untouched");
    assert_eq!(step(&mut second, &tokens[..64]), (None, 192));
    let copy = first.clone();
    assert_eq!(step(&mut second, &tokens[..1]), (Some(ErrorKind::Budget), 320), "copies count");
    drop(copy);
    first.reset();
    assert_eq!(step(&mut second, &tokens[..1]), (None, 128));
    drop(first);
    drop(second);
    assert_eq!(model.kv_bytes(), 0);
    // A window's cache does not grow beyond it.
    let options = options(Attention::Window(64), KvFormat::F16).chunk_rows(16).kv_bytes(limit);
    let mut model = open(&packed, options);
    let mut state = model.new_state();
    model.step(&mut [Feed::new(&mut state, &tokens, Logits::None)]).unwrap();
    assert_eq!(model.kv_bytes(), 128 * row);
}

#[test]
fn a_budget_leaves_room_for_keys_and_values_and_bounds_them() {
    let config = hybrid(4, 2, 128, 32);
    let (_, packed) = random_pack(&config, 20, Codec::U8);
    for (policy, format) in [
        (Attention::Full, KvFormat::F16),
        (Attention::Full, KvFormat::F32),
        (Attention::Window(100), KvFormat::F16),
        (Attention::TopK(TopK::new(8, 2)), KvFormat::F16),
    ] {
        let options = || options(policy, format);
        let plan = |budget_bytes, sessions| {
            let options = options().sessions(sessions).residency(Residency::Stream { budget_bytes });
            Model::plan(&packed.path, &options)
        };
        let resident = Model::plan(&packed.path, &options()).unwrap();
        assert_eq!(resident.kv_bytes, None, "no budget, no limit");
        let (smallest, row) = (resident.smallest_budget, config.kv_row_bytes(format));
        let mut before = plan(smallest, 1).unwrap();
        assert!(before.kv_bytes.unwrap() >= 2 * row * 64, "{before:?}");
        for step in 0..=1000 {
            let budget = smallest + 4 * resident.memory_bytes() * step / 1000;
            let plan = plan(budget, 1).unwrap();
            assert!(plan.memory_bytes() <= budget, "{budget}: {plan:?}");
            assert!(plan.read_bytes_per_token <= before.read_bytes_per_token, "{budget}: {plan:?}");
            before = plan;
        }
        assert_eq!(before.pinned_groups, before.swept_groups);
        let window = match policy {
            Attention::Window(rows) => (rows as u64 + 64 + 32).next_multiple_of(64) * row,
            _ => u64::MAX,
        };
        let all = 3 * resident.memory_bytes();
        assert!(before.kv_bytes.unwrap() >= all.min(window), "what is left is theirs: {before:?}");
        assert!(
            before.kv_bytes.unwrap() <= window.saturating_add(row),
            "and no more than they can use: {before:?}"
        );
        assert!(plan(smallest, 2).is_err(), "every session has room");
    }
    // What a step needs is known before it begins, and fits to the last row.
    let budget_bytes =
        Model::plan(&packed.path, &options(Attention::Full, KvFormat::F16)).unwrap().smallest_budget;
    let streamed = Residency::Stream { budget_bytes };
    let mut model = open(&packed, options(Attention::Full, KvFormat::F16).residency(streamed));
    let limit = model.memory_plan().kv_bytes.unwrap();
    let fits = (limit / config.kv_row_bytes(KvFormat::F16) / 64 * 64) as usize;
    assert!(fits >= 256, "{fits} tokens");
    let tokens = Numbers::new(3).tokens(fits + 1, config.vocab);
    let mut state = model.new_state();
    let error = model.step(&mut [Feed::new(&mut state, &tokens, Logits::Last)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Budget);
    let wanted = (fits as u64 + 64) * config.kv_row_bytes(KvFormat::F16);
    let expected = format!("need {wanted} bytes more for this step, and {limit} of {limit} are left");
    assert!(error.to_string().contains(&expected), "{error}");
    assert!(!state.is_poisoned() && state.tokens() == 0, "untouched");
    model.step(&mut [Feed::new(&mut state, &tokens[..fits], Logits::Last)]).unwrap();
    assert!(model.kv_bytes() <= limit);
    // A limit of one's own is kept, and its memory taken from the weights.
    let own = options(Attention::Full, KvFormat::F16).kv_bytes(1 << 20);
    let plan = Model::plan(&packed.path, &own).unwrap();
    assert_eq!(plan.kv_bytes, Some(1 << 20));
    assert!(plan.smallest_budget > budget_bytes + (3 << 18), "{} and {budget_bytes}", plan.smallest_budget);
}

#[test]
fn logits_of_every_row_are_counted_where_they_are_wanted() {
    let (_, packed) = random_pack(&hybrid(2, 1, 64, 16), 21, Codec::U8);
    let plan = |all| {
        let options = options(Attention::Full, KvFormat::F16).all_logits(all);
        let smallest_budget = Model::plan(&packed.path, &options).unwrap().smallest_budget;
        let streamed = options.residency(Residency::Stream { budget_bytes: smallest_budget });
        Model::plan(&packed.path, &streamed).unwrap()
    };
    let (last, all) = (plan(false), plan(true));
    assert_eq!((last.chunk_rows, all.chunk_rows), (16, 16));
    let row = last.logits_bytes;
    assert!(all.scratch_bytes >= last.scratch_bytes + 16 * row, "{all:?} and {last:?}");
    assert_eq!(all.smallest_budget - last.smallest_budget, all.scratch_bytes - last.scratch_bytes);
}

/// The same weights in another spelling.
fn respelled(weights: &Weights, name: impl Fn(&str) -> String) -> Weights {
    let tensors = weights.tensors.iter().map(|(old, tensor)| (name(old), tensor.clone())).collect();
    Weights { config: weights.config.clone(), tensors }
}

#[test]
fn every_spelling_is_the_same_model() {
    let config = hybrid(2, 1, 64, 16);
    let plain = weights(&config, 18);
    let tokens = Numbers::new(2).tokens(9, config.vocab);
    let official = |name: &str| match name.strip_prefix("moba.") {
        Some(_) => name.to_owned(),
        None => format!("rwkv.{name}"),
    };
    let converted = |name: &str| match name.strip_prefix("moba.") {
        Some(rest) => format!("moba.blocks.{rest}"),
        None if name.starts_with("blocks.") => format!("rwkv.{name}"),
        None => name.to_owned(),
    };
    let mut found = Vec::new();
    for spelled in [plain.clone(), respelled(&plain, official), respelled(&plain, converted)] {
        let shapes = || spelled.tensors.iter().map(|(name, (shape, _))| (name.as_str(), shape.as_slice()));
        assert_eq!(Family::detect(shapes()).unwrap(), Family::RwkvX);
        assert_eq!(Config::from_shapes(shapes()).unwrap(), config);
        let dir = tempfile::tempdir().unwrap();
        let packed = pack(&spelled.save(dir.path()), Codec::U8);
        found.push(run(&mut open(&packed, options(Attention::Full, KvFormat::F16)), &[&tokens]).0);
    }
    assert!(found[0] == found[1] && found[0] == found[2]);
    let mut twice = plain.clone();
    twice.tensors.insert("moba.blocks.0.ln1.bias".into(), (vec![64], vec![0.0; 64]));
    let shapes = twice.tensors.iter().map(|(name, (shape, _))| (name.as_str(), shape.as_slice()));
    let error = Config::from_shapes(shapes).unwrap_err();
    assert!(error.to_string().contains("appears twice, in two spellings"), "{error}");
}

#[test]
fn blocks_that_never_run_are_not_packed() {
    let config = hybrid(5, 2, 64, 16);
    let (_, packed) = random_pack(&config, 19, Codec::U8);
    let note = "blocks 4 to 4: not packed, as only 4 of 5 run before 2 attention blocks";
    assert!(packed.report.notes.iter().any(|found| found == note), "{:?}", packed.report.notes);
    let model = open(&packed, ModelOptions::default());
    let groups: Vec<&str> = model.manifest().groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(groups[2..5], ["blocks.0.att", "blocks.0.key", "blocks.0.value"]);
    assert_eq!(groups[8..12], ["attention.0.att", "attention.0.key", "attention.0.value", "blocks.2.att"]);
    assert!(!groups.iter().any(|name| name.starts_with("blocks.4")));
    assert_eq!(model.config(), &config);
    let mut too_many = config.clone();
    too_many.attention = 6;
    let weights = weights(&too_many, 1);
    let shapes = weights.tensors.iter().map(|(name, (shape, _))| (name.as_str(), shape.as_slice()));
    assert!(Config::from_shapes(shapes).unwrap_err().to_string().contains("6 attention blocks"));
}
