//! Streaming changes no bit: every budget from the smallest that works to one that holds all, in steps, with every read-ahead and
//! every way to read a file. For small random models, those of the oracle, and a random model of an official size.
//!
//! The last with every combination takes minutes, and is asked for:
//!
//! ```text
//! cargo test -p rwkv-model --test streamed -- --ignored
//! ```

mod support;

use std::path::Path;

use rwkv_cache::ReadAhead;
use rwkv_cache::source::{DirectFile, Io};
use rwkv_kernels::Codec;
use rwkv_model::{
    Config, ConvertOptions, Feed, Logits, MemoryPlan, Model, ModelOptions, Residency, State, Synthetic,
    convert,
};
use support::random::{Numbers, config, hybrid};
use support::{oracle, pack, random_pack};

/// Budgets between the smallest and the largest.
const STEPS: u64 = 5;
const READ_AHEADS: [ReadAhead; 3] = [ReadAhead::Off, ReadAhead::Next, ReadAhead::Adaptive];

fn options() -> ModelOptions {
    ModelOptions::default().threads(2).chunk_rows(16)
}

fn stream(budget_bytes: u64) -> ModelOptions {
    options().residency(Residency::Stream { budget_bytes })
}

fn plan(path: &Path, budget_bytes: u64) -> MemoryPlan {
    Model::plan(path, &stream(budget_bytes)).expect("the budget works")
}

/// Budgets from the smallest that works to the smallest that holds all weights.
fn budgets(path: &Path) -> Vec<u64> {
    let smallest = Model::plan(path, &options()).expect("a plan").smallest_budget;
    let holds_all = |budget| {
        let plan = plan(path, budget);
        plan.pinned_groups == plan.swept_groups
    };
    let (mut low, mut high) = (smallest, 2 * smallest);
    while !holds_all(high) {
        (low, high) = (high, 2 * high);
    }
    assert!(!holds_all(smallest), "the smallest budget streams something");
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        (low, high) = if holds_all(middle) { (low, middle) } else { (middle, high) };
    }
    (0..=STEPS).map(|i| smallest + (high - smallest) * i / STEPS).collect()
}

/// The ways in which a file can be read here.
fn ways(path: &Path) -> Vec<Io> {
    let mut ways = vec![Io::Auto, Io::Buffered, Io::Mapped];
    match DirectFile::open(path) {
        Ok(_) => ways.push(Io::Direct),
        #[allow(clippy::print_stderr, reason = "a skipped test must be seen")]
        Err(error) => eprintln!("SKIPPED: direct reads of {}: {error}", path.display()),
    }
    ways
}

/// Logits as bits after each token of a prompt, a step without logits, and tokens one by one; and the state after them.
fn run(model: &mut Model, tokens: &[u32]) -> (Vec<u32>, State) {
    let mut state = model.new_state();
    let mut bits = Vec::new();
    let mut step = |tokens: &[u32], logits| {
        let output = model.step(&mut [Feed::new(&mut state, tokens, logits)]).expect("the step succeeds");
        bits.extend(output.logits(0).iter().map(|logit| logit.to_bits()));
    };
    let (prompt, rest) = tokens.split_at(tokens.len() / 2);
    let (quiet, single) = rest.split_at(rest.len() / 2);
    step(prompt, Logits::All);
    step(quiet, Logits::None);
    single.iter().for_each(|token| step(std::slice::from_ref(token), Logits::Last));
    (bits, state)
}

/// A pack, and what its model says when all weights are in memory.
struct Resident<'a> {
    path: &'a Path,
    name: &'a str,
    tokens: Vec<u32>,
    expected: (Vec<u32>, State),
}

impl Resident<'_> {
    fn new<'a>(path: &'a Path, name: &'a str, tokens: usize) -> Resident<'a> {
        let mut model = Model::open(path, options()).expect("the pack opens");
        let tokens = Numbers::new(17).tokens(tokens, model.config().vocab);
        let expected = run(&mut model, &tokens);
        Resident { path, name, tokens, expected }
    }

    fn check(&self, options: ModelOptions, how: &str) {
        let mut model = Model::open(self.path, options).expect("the pack opens");
        assert!(run(&mut model, &self.tokens) == self.expected, "{}: {how}", self.name);
    }

    fn streamed(&self, budget_bytes: u64, read_ahead: ReadAhead, io: Io) {
        let options = stream(budget_bytes).read_ahead(read_ahead).io(io);
        self.check(options, &format!("{budget_bytes} bytes, read-ahead {read_ahead}, {io}"));
    }

    /// Every combination.
    fn all(&self) {
        let mut pinned = Vec::new();
        for budget in budgets(self.path) {
            pinned.push(plan(self.path, budget).pinned_groups);
            for read_ahead in READ_AHEADS {
                for io in ways(self.path) {
                    self.streamed(budget, read_ahead, io);
                }
            }
        }
        pinned.dedup();
        assert!(pinned.is_sorted() && pinned.len() > 2, "{}: {pinned:?} groups stay", self.name);
        self.check(options().residency(Residency::Mapped), "mapped");
    }
}

#[test]
fn random_models() {
    for (name, config) in [("RWKV-7", config(3, 2, 32)), ("RWKV-X", hybrid(4, 2, 128, 32))] {
        let (_, packed) = random_pack(&config, 61, Codec::U8);
        Resident::new(&packed.path, name, 48).all();
    }
}

#[test]
fn models_of_the_oracle() {
    let models = [
        "models/rwkv7-tiny",
        "models/rwkv7-odd",
        "models/rwkvcpp-tiny-7v0-834K",
        "models/rwkvx-tiny",
        "models/rwkvx-single",
        "models/rwkvx-remainder",
        "trained/sotu-x",
    ];
    for (name, codec) in models.into_iter().zip([Codec::F32, Codec::U8, Codec::U4].into_iter().cycle()) {
        let Some(checkpoint) = oracle(&format!("{name}.safetensors")) else { return };
        let packed = pack(&checkpoint, codec);
        Resident::new(&packed.path, name, 32).all();
    }
}

fn official_size(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("0.1b.rwkv");
    let config = Config::official("0.1b").expect("an official size");
    assert_eq!((config.layers, config.width, config.vocab), (12, 768, 65536));
    convert(&Synthetic::new(config, 1), &path, ConvertOptions::new(Codec::U8)).expect("a pack");
    path
}

#[test]
fn an_official_size() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = official_size(dir.path());
    let resident = Resident::new(&path, "0.1b", 8);
    let budgets = budgets(&path);
    for (i, io) in ways(&path).into_iter().enumerate() {
        let budget = budgets[i * STEPS as usize / 3];
        resident.streamed(budget, READ_AHEADS[i % 3], io);
    }
}

#[test]
#[ignore = "takes minutes"]
fn an_official_size_in_every_combination() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = official_size(dir.path());
    Resident::new(&path, "0.1b", 8).all();
}
