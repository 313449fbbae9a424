//! What an observer is told is true, and being observed changes no bit.

mod support;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rwkv_cache::Found;
use rwkv_kernels::{Codec, KvFormat};
use rwkv_model::{
    Attention, AttentionWeights, Block, Compression, Embeddings, Feed, Interest, Logits, Model, ModelOptions,
    Observer, Residency, Side, Stage, StageKind, State, SweepRows, TopK,
};
use support::random::{Numbers, config, hybrid};
use support::reference::Reference;
use support::{Packed, random_pack};

/// One stage: kind, block, group, begin and end.
type Seen = (StageKind, Option<Block>, Option<String>, Instant, Instant);

/// By attention block, feed and position: visible rows, and the weights of each head.
type Weights = BTreeMap<(usize, usize, u64), (Vec<Range<usize>>, Vec<Vec<f32>>)>;

/// Everything that was told.
#[derive(Default)]
struct Told {
    /// Rows, rows with logits, begin, end.
    sweeps: Vec<(usize, usize, Instant, Option<Instant>)>,
    stages: Vec<Seen>,
    /// By block, side, feed and position.
    embeddings: BTreeMap<(Block, bool, usize, u64), Vec<f32>>,
    attention: Weights,
}

struct Recorder {
    interest: Interest,
    told: Arc<Mutex<Told>>,
}

impl Recorder {
    fn on(model: &mut Model, interest: Interest) -> Arc<Mutex<Told>> {
        let told = Arc::<Mutex<Told>>::default();
        model.observe(Some(Box::new(Recorder { interest, told: Arc::clone(&told) })));
        told
    }
}

impl Observer for Recorder {
    fn interest(&self) -> Interest {
        self.interest
    }

    fn sweep_begin(&mut self, at: Instant, sweep: &SweepRows<'_>) {
        let rows: usize = sweep.feeds.iter().map(|feed| feed.rows.len()).sum();
        assert_eq!(rows, sweep.rows, "every row is some feed's");
        self.told.lock().unwrap().sweeps.push((sweep.rows, sweep.logit_rows, at, None));
    }

    fn sweep_end(&mut self, at: Instant) {
        self.told.lock().unwrap().sweeps.last_mut().expect("it began").3 = Some(at);
    }

    fn stage(&mut self, stage: &Stage<'_>) {
        let Stage { kind, block, group, begin, end } = *stage;
        let group = group.map(|group| {
            assert!(group.bytes > 0, "{}", group.name);
            group.name.to_owned()
        });
        self.told.lock().unwrap().stages.push((kind, block, group, begin, end));
    }

    fn embeddings(&mut self, embeddings: &Embeddings<'_>) {
        let &Embeddings { block, side, rows, feeds } = embeddings;
        let width = rows.len() / feeds.iter().map(|feed| feed.rows.len()).sum::<usize>();
        let mut told = self.told.lock().unwrap();
        for feed in feeds {
            for (row, position) in feed.rows.clone().zip(feed.first_position..) {
                let key = (block, side == Side::Output, feed.feed, position);
                let before = told.embeddings.insert(key, rows[row * width..][..width].to_vec());
                assert!(before.is_none(), "{key:?} is told once");
            }
        }
    }

    fn attention(&mut self, weights: &AttentionWeights<'_>) {
        let &AttentionWeights { block, feed, position, visible, heads } = weights;
        let told = &mut self.told.lock().unwrap().attention;
        let before = told.insert((block, feed, position), (visible.to_vec(), heads.to_vec()));
        assert!(before.is_none(), "block {block}, feed {feed}, position {position} is told once");
    }
}

fn options(attention: Attention) -> ModelOptions {
    ModelOptions::default().threads(2).chunk_rows(32).attention(attention).kv_format(KvFormat::F32)
}

fn open(packed: &Packed, options: ModelOptions) -> Model {
    Model::open(&packed.path, options).expect("the pack opens")
}

/// Logits as bits of several feeds at once, in pieces of so many tokens, and the states after them.
fn run(model: &mut Model, prompts: &[Vec<u32>], piece: usize) -> (Vec<u32>, Vec<State>) {
    let mut states: Vec<State> = prompts.iter().map(|_| model.new_state()).collect();
    let mut bits = Vec::new();
    let longest = prompts.iter().map(Vec::len).max().unwrap();
    for begin in (0..longest).step_by(piece) {
        let part = |prompt: &'_ Vec<u32>| begin.min(prompt.len())..(begin + piece).min(prompt.len());
        let mut feeds: Vec<Feed<'_>> = states
            .iter_mut()
            .zip(prompts)
            .map(|(state, prompt)| Feed::new(state, &prompt[part(prompt)], Logits::Last))
            .collect();
        let output = model.step(&mut feeds).expect("the step succeeds");
        bits.extend((0..prompts.len()).flat_map(|feed| output.logits(feed)).map(|logit| logit.to_bits()));
    }
    (bits, states)
}

fn policies() -> [Attention; 4] {
    let top_k = TopK { short_rows: 11, ..TopK::new(8, 2) };
    let compression = Some(Compression { above: 40, keep: 24, window: 6 });
    [
        Attention::Full,
        Attention::Window(20),
        Attention::TopK(top_k),
        Attention::TopK(TopK { compression, ..top_k }),
    ]
}

#[test]
fn being_observed_changes_no_bit() {
    for (config, attention) in [(config(2, 2, 32), Attention::Full)]
        .into_iter()
        .chain(policies().map(|attention| (hybrid(4, 2, 128, 32), attention)))
    {
        let (_, packed) = random_pack(&config, 31, Codec::U8);
        let prompts = [3, 90, 1].map(|len| Numbers::new(len).tokens(len as usize, config.vocab));
        let expected = run(&mut open(&packed, options(attention)), &prompts, 40);
        let budget_bytes =
            Model::plan(&packed.path, &options(attention).sessions(3)).unwrap().smallest_budget;
        for residency in [Residency::Resident, Residency::Mapped, Residency::Stream { budget_bytes }] {
            let mut model = open(&packed, options(attention).sessions(3).residency(residency));
            let told = Recorder::on(&mut model, Interest::ALL);
            assert!(run(&mut model, &prompts, 40) == expected, "{attention}, {residency:?}");
            assert!(!told.lock().unwrap().stages.is_empty());
            assert!(model.observe(None).is_some());
            told.lock().unwrap().stages.clear();
            assert!(run(&mut model, &prompts, 40) == expected, "{attention}, {residency:?}, no longer");
            assert!(told.lock().unwrap().stages.is_empty(), "nothing more is told");
        }
    }
}

/// The documented order of a block's stages; waits left out.
fn order(block: Block) -> Vec<StageKind> {
    let find = StageKind::Find(Found::Pinned);
    let mix: &[StageKind] = match block {
        Block::Rwkv(_) => &[StageKind::TimeMix, StageKind::SaveState],
        Block::Attention(_) => &[StageKind::Attention, StageKind::SaveState, StageKind::Attention],
    };
    let mut stages = vec![StageKind::Norm, find, StageKind::Bind];
    stages.extend(mix);
    stages.extend([StageKind::Release, StageKind::Norm, find, StageKind::Bind, StageKind::ChannelMix]);
    stages.extend([StageKind::Release, find, StageKind::Bind, StageKind::ChannelMix, StageKind::SaveState]);
    stages.push(StageKind::Release);
    stages
}

#[test]
fn stages_come_in_order_and_agree_with_the_cache() {
    let config = hybrid(4, 2, 64, 32);
    let (_, packed) = random_pack(&config, 32, Codec::U8);
    let options = || options(Attention::Full).chunk_rows(16);
    let budget_bytes = Model::plan(&packed.path, &options()).unwrap().smallest_budget;
    for residency in [Residency::Resident, Residency::Stream { budget_bytes }] {
        let mut model = open(&packed, options().residency(residency));
        let told = Recorder::on(&mut model, Interest::STAGES);
        let before = model.cache_stats().total;
        run(&mut model, &[Numbers::new(1).tokens(40, config.vocab)], 40);
        let cache = model.cache_stats().total - before;
        let told = told.lock().unwrap();
        let sweeps: Vec<_> = told.sweeps.iter().map(|&(rows, logit_rows, ..)| (rows, logit_rows)).collect();
        assert_eq!(sweeps, [(16, 0), (16, 0), (8, 1)]);

        let mut expected = Vec::new();
        for sweep in 0..3 {
            expected.push((StageKind::Embed, None));
            for block in config.blocks() {
                expected.extend(order(block).into_iter().map(|kind| (kind, Some(block))));
            }
            expected.push((StageKind::Norm, None));
            for _ in 0..if sweep == 2 { model.manifest().groups.len() - 2 - 3 * 6 } else { 0 } {
                let part =
                    [StageKind::Find(Found::Pinned), StageKind::Bind, StageKind::Head, StageKind::Release];
                expected.extend(part.map(|kind| (kind, None)));
            }
        }
        let same_find = |kind: StageKind| match kind {
            StageKind::Find(_) => StageKind::Find(Found::Pinned),
            other => other,
        };
        let found: Vec<_> = told
            .stages
            .iter()
            .filter(|(kind, ..)| *kind != StageKind::Wait)
            .map(|&(kind, block, ..)| (same_find(kind), block))
            .collect();
        assert_eq!(found, expected);

        let count = |found| told.stages.iter().filter(|(kind, ..)| *kind == StageKind::Find(found)).count();
        let finds =
            [Found::Pinned, Found::Ready, Found::Late, Found::Absent].map(|found| count(found) as u64);
        assert_eq!(finds, [cache.hits, cache.ready, cache.late, cache.absent]);
        let waits = told.stages.iter().filter(|(kind, ..)| *kind == StageKind::Wait);
        let waited: Duration = waits.map(|(_, _, _, begin, end)| *end - *begin).sum();
        assert_eq!(waited, cache.wait);

        for pair in told.stages.windows(2) {
            assert!(pair[0].4 <= pair[1].3, "{:?} overlaps {:?}", pair[0], pair[1]);
        }
        for (kind, _, group, begin, end) in &told.stages {
            assert!(begin <= end, "{kind:?}");
            let without = matches!(kind, StageKind::Embed | StageKind::Norm);
            assert_eq!(group.is_none(), without, "{kind:?} of {group:?}");
            let inside = |sweep: &&(usize, usize, Instant, Option<Instant>)| {
                sweep.2 <= *begin && *end <= sweep.3.expect("every sweep ended")
            };
            assert_eq!(told.sweeps.iter().filter(inside).count(), 1, "{kind:?} is in one sweep");
        }
        let groups: Vec<&String> = told
            .stages
            .iter()
            .filter(|(kind, ..)| *kind == StageKind::Release)
            .map(|(_, _, group, ..)| group.as_ref().expect("a group is released"))
            .collect();
        let swept = |head| {
            let groups = model.manifest().groups.iter().filter(|group| group.swept);
            groups.map(|group| &group.name).filter(move |name| head || !name.starts_with("head"))
        };
        let expected: Vec<&String> = swept(false).chain(swept(false)).chain(swept(true)).collect();
        assert_eq!(groups, expected);
    }
}

#[test]
fn what_is_not_wanted_is_not_told() {
    let config = hybrid(2, 1, 64, 32);
    let (_, packed) = random_pack(&config, 33, Codec::U8);
    let mut model = open(&packed, options(Attention::Full));
    let prompts = [Numbers::new(1).tokens(9, config.vocab)];
    for bits in 0..8 {
        let [stages, embeddings, attention] = [1, 2, 4].map(|bit| bits & bit != 0);
        let told = Recorder::on(&mut model, Interest { stages, embeddings, attention });
        run(&mut model, &prompts, 9);
        let told = told.lock().unwrap();
        assert_eq!([told.sweeps.is_empty(), told.stages.is_empty()], [!stages, !stages]);
        assert_eq!([told.embeddings.is_empty(), told.attention.is_empty()], [!embeddings, !attention]);
    }
}

fn off(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    pairs
        .map(|(&a, b)| (f64::from(a) - b).abs())
        .fold(0.0, |worst, d| if d > worst || d.is_nan() { d } else { worst })
}

#[test]
fn embeddings_and_weights_agree_with_the_formulas_whatever_the_split() {
    let config = hybrid(5, 2, 128, 32);
    let (weights, packed) = random_pack(&config, 34, Codec::F32);
    let prompts = [5, 100].map(|len| Numbers::new(len).tokens(len as usize, config.vocab));
    for policy in policies() {
        let mut model = open(&packed, options(policy));
        let told = Recorder::on(&mut model, Interest::ALL);
        run(&mut model, &prompts, 100);
        let reference = Reference::attending(&weights, policy);
        {
            let told = told.lock().unwrap();
            let blocks: Vec<Block> = config.blocks().collect();
            let rows = prompts.iter().map(Vec::len).sum::<usize>();
            assert_eq!(told.embeddings.len(), rows * 2 * blocks.len());
            assert_eq!(told.attention.len(), rows * config.attention);
            for (feed, prompt) in prompts.iter().enumerate() {
                let mut memory = reference.memory();
                for (position, &token) in (0..).zip(prompt) {
                    let expected = reference.trace(&mut memory, token);
                    for (index, &block) in blocks.iter().enumerate() {
                        for (is_output, expected) in expected.embeddings[index..][..2].iter().enumerate() {
                            let key = (block, is_output == 1, feed, position);
                            let worst = off(&told.embeddings[&key], expected);
                            assert!(worst < 2e-4, "{policy}, {key:?}: off by {worst:e}");
                        }
                    }
                    for (block, expected) in expected.attention.iter().enumerate() {
                        let (visible, heads) = &told.attention[&(block, feed, position)];
                        let seen: usize = visible.iter().map(ExactSizeIterator::len).sum();
                        for (head, expected) in heads.iter().zip(expected) {
                            assert_eq!(head.len(), seen, "a weight per row that is seen");
                            let worst = off(head, expected);
                            assert!(worst < 1e-4, "{policy}, token {position}: weights off by {worst:e}");
                            let sum: f32 = head.iter().sum();
                            assert!((sum - 1.0).abs() < 1e-5, "{policy}, token {position}: sum {sum}");
                        }
                        let last = visible.last().expect("a token sees itself");
                        if policy.to_string() != "top-k:8,2" {
                            assert_eq!(last.end as u64, position + 1, "{policy}: rows are positions");
                        }
                    }
                }
            }
        }
        let expected = told.lock().unwrap();
        for piece in [1, 7, 33] {
            let told = Recorder::on(&mut model, Interest::ALL);
            run(&mut model, &prompts, piece);
            let told = told.lock().unwrap();
            assert!(told.embeddings == expected.embeddings, "{policy}: embeddings in pieces of {piece}");
            assert!(told.attention == expected.attention, "{policy}: weights in pieces of {piece}");
        }
    }
}
