//! Known prefixes: what goes on from one is the same text, and what is kept is bounded, in memory and on disk.

mod support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use rwkv_kernels::Codec;
use rwkv_model::{Model, ModelOptions, Request, SamplerParams, Scheduler, SchedulerOptions};
use support::random::{Numbers, Weights, config, weights};
use support::sessions::{Heard, alone, options, run, submit};
use support::{Packed, pack};

struct Lab {
    packed: Packed,
    weights: Weights,
    vocab: usize,
}

impl Lab {
    fn new() -> Lab {
        let weights = weights(&config(2, 2, 16), 73);
        let dir = tempfile::tempdir().unwrap();
        let packed = pack(&weights.save(dir.path()), Codec::U8);
        Lab { packed, vocab: weights.config.vocab, weights }
    }

    fn open(&self) -> Model {
        Model::open(&self.packed.path, ModelOptions::default().threads(1).chunk_rows(16)).unwrap()
    }

    fn start(&self, options: SchedulerOptions) -> Scheduler {
        Scheduler::start(self.open(), options).unwrap()
    }

    fn tokens(&self, seed: u64, count: usize) -> Vec<u32> {
        Numbers::new(seed).tokens(count, self.vocab)
    }

    /// Runs a request, and asserts that the text is that of the request alone.
    fn same(&self, scheduler: &Scheduler, request: &Request) -> Heard {
        let heard = run(scheduler, request.clone());
        let expected = alone(&mut self.open(), request);
        assert_eq!((&heard.tokens, &heard.text), (&expected.0, &expected.1), "{request:?}");
        assert_eq!(heard.reused, Some(heard.end().reused_tokens));
        heard
    }
}

fn keeping(bytes: u64) -> SchedulerOptions {
    SchedulerOptions { prefix_cache_bytes: bytes, ..options() }
}

fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    let params = SamplerParams { seed: Some(9), ..SamplerParams::default() };
    Request { params, max_tokens: Some(max_tokens), stop_tokens: Vec::new(), ..Request::new(prompt) }
}

#[test]
fn the_same_prompt_is_not_fed_again() {
    let lab = Lab::new();
    let scheduler = lab.start(keeping(1 << 20));
    let request = request(lab.tokens(1, 50), 6);
    assert_eq!(lab.same(&scheduler, &request).reused, Some(0));
    let again = lab.same(&scheduler, &request);
    assert_eq!((again.reused, again.prefill.len()), (Some(50), 0), "with its logits, all of it is known");
    // Without a token to generate, too.
    let read = run(&scheduler, Request { max_tokens: Some(0), ..request.clone() });
    assert_eq!((read.reused, read.prefill.len()), (Some(50), 0));
    let stats = scheduler.stats().prefix;
    assert_eq!((stats.hits, stats.misses, stats.reused_tokens), (2, 1, 100));
    // Who does not want that neither uses nor leaves anything.
    let entries = scheduler.stats().prefix.entries;
    let apart = Request { reuse: false, ..request };
    assert_eq!(lab.same(&scheduler, &apart).reused, Some(0));
    let other = Request { reuse: false, ..self::request(lab.tokens(2, 50), 6) };
    lab.same(&scheduler, &other);
    assert_eq!(scheduler.stats().prefix.entries, entries);
    // An embedding needs every token.
    let embedding = Request { embedding: true, max_tokens: Some(0), ..apart };
    assert_eq!(run(&scheduler, Request { reuse: true, ..embedding }).reused, Some(0));
}

#[test]
fn the_next_turn_of_a_chat_goes_on() {
    let lab = Lab::new();
    let scheduler = lab.start(keeping(1 << 20));
    let mut prompt = lab.tokens(3, 30);
    for turn in 0..4 {
        let before = prompt.len();
        let heard = lab.same(&scheduler, &request(prompt.clone(), 45));
        assert_eq!(heard.reused, Some(if turn == 0 { 0 } else { before - 13 }), "turn {turn}");
        // The state has not seen the last token.
        prompt.extend(heard.tokens);
        prompt.extend(lab.tokens(turn, 12));
    }
    // The end of the answer in other tokens: all but a few of it are known.
    let heard = lab.same(&scheduler, &request(lab.tokens(4, 30), 45));
    let mut respelled = lab.tokens(4, 30);
    respelled.extend(&heard.tokens[..41]);
    respelled.extend(lab.tokens(5, 9));
    let reused = lab.same(&scheduler, &request(respelled, 5)).reused.unwrap();
    assert!((30 + 41 - 16..=30 + 41).contains(&reused), "{reused}");
}

#[test]
fn a_preamble_is_known_once_two_prompts_have_shared_it() {
    let lab = Lab::new();
    let scheduler = lab.start(keeping(1 << 20));
    let preamble = lab.tokens(6, 77);
    let reused: Vec<usize> = (0..4)
        .map(|i| {
            let prompt = [&preamble[..], &[i], &lab.tokens(10 + u64::from(i), 20)].concat();
            lab.same(&scheduler, &request(prompt, 3)).reused.unwrap()
        })
        .collect();
    assert_eq!(reused, [0, 0, 77, 77]);
}

#[test]
fn what_is_kept_is_bounded_and_the_oldest_goes() {
    let lab = Lab::new();
    let state = lab.open().new_state().bytes();
    // Room for four states with 40 tokens, of which some have logits.
    let limit = 4 * (state + 4 * (40 + lab.vocab as u64));
    let scheduler = lab.start(keeping(limit));
    for seed in 0..6 {
        lab.same(&scheduler, &request(lab.tokens(20 + seed, 40), 2));
        // The first one stays in use.
        lab.same(&scheduler, &request(lab.tokens(20, 40), 2));
        let stats = scheduler.stats().prefix;
        assert!(stats.bytes <= limit && stats.entries <= 5, "{stats:?}");
    }
    let reused = |seed| lab.same(&scheduler, &request(lab.tokens(seed, 40), 2)).reused.unwrap();
    assert_eq!([reused(20), reused(25), reused(21)], [40, 40, 0]);
    assert!(scheduler.stats().prefix.evicted > 4);
    let nothing = lab.start(keeping(state));
    lab.same(&nothing, &request(lab.tokens(20, 40), 2));
    assert_eq!(nothing.stats().prefix.entries, 0, "a state is too large");
}

#[test]
fn a_budget_counts_what_is_kept() {
    let lab = Lab::new();
    let options = ModelOptions::default().threads(1).chunk_rows(16);
    let smallest = Model::plan(&lab.packed.path, &options).unwrap().smallest_budget;
    for (reserved, limit) in [(0, 0), (50_000, 50_000), (200_000, 100_000)] {
        let residency = rwkv_model::Residency::Stream { budget_bytes: smallest + 4 * reserved };
        let model = Model::open(&lab.packed.path, options.clone().residency(residency).reserve(reserved));
        let scheduler = Scheduler::start(model.unwrap(), keeping(100_000)).unwrap();
        lab.same(&scheduler, &request(lab.tokens(1, 40), 2));
        assert_eq!(scheduler.stats().prefix.limit_bytes, limit);
    }
}

fn spilling(lab: &Lab, dir: &Path, states: u64) -> SchedulerOptions {
    let state = lab.open().new_state().bytes() + 4 * (60 + lab.vocab as u64);
    SchedulerOptions { spill: Some(dir.to_owned()), ..keeping(states * state) }
}

fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn what_goes_from_memory_comes_back_from_disk() {
    let lab = Lab::new();
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("states");
    let prompts: Vec<Request> = (0..6).map(|seed| request(lab.tokens(30 + seed, 50), 5)).collect();
    let scheduler = lab.start(spilling(&lab, &place, 2));
    prompts.iter().for_each(|request| drop(lab.same(&scheduler, request)));
    scheduler.clone().shutdown(Duration::from_secs(60));
    assert!(files(&place).len() >= 6, "at the end all go to the disk that are still there");
    let known = |scheduler: &Scheduler| {
        prompts.iter().map(|request| lab.same(scheduler, request).reused.unwrap()).collect::<Vec<_>>()
    };
    // The disk may have been too busy for some, but the last ones were waited for.
    let scheduler = lab.start(spilling(&lab, &place, 2));
    let reused = known(&scheduler);
    assert_eq!(reused[5], 50, "{reused:?}");
    let restored = scheduler.stats().prefix;
    assert_eq!(restored.restored, reused.iter().filter(|&&reused| reused > 0).count() as u64);
    assert!(restored.files >= 6 && restored.file_bytes > 0, "{restored:?}");
    scheduler.shutdown(Duration::from_secs(60));

    // Files that are damaged, cut, or of another kind change no text, and the bad ones go.
    for (index, file) in files(&place).into_iter().enumerate() {
        let mut bytes = fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        match index % 3 {
            0 => bytes[middle] ^= 1,
            1 => bytes.truncate(middle),
            _ => bytes.clear(),
        }
        fs::write(&file, bytes).unwrap();
    }
    fs::write(place.join("notes.txt"), "not ours").unwrap();
    fs::write(place.join("prefix-0123456789abcdef.state"), "not ours either").unwrap();
    let scheduler = lab.start(spilling(&lab, &place, 2));
    assert_eq!(known(&scheduler), [0; 6]);
    assert_eq!(scheduler.stats().prefix.restored, 0);
    scheduler.shutdown(Duration::from_secs(60));
    assert_eq!(fs::read_to_string(place.join("notes.txt")).unwrap(), "not ours");
}

#[test]
fn files_of_another_pack_are_left_alone() {
    let lab = Lab::new();
    let dir = tempfile::tempdir().unwrap();
    let request = request(lab.tokens(40, 50), 5);
    let scheduler = lab.start(spilling(&lab, dir.path(), 2));
    lab.same(&scheduler, &request);
    scheduler.shutdown(Duration::from_secs(60));
    let before = files(dir.path());
    assert!(!before.is_empty());
    // The same checkpoint, and states that it would take; but not its bits.
    let checkpoint = tempfile::tempdir().unwrap();
    let other = Lab {
        packed: pack(&lab.weights.save(checkpoint.path()), Codec::F16),
        weights: lab.weights.clone(),
        vocab: lab.vocab,
    };
    let scheduler = other.start(SchedulerOptions { spill_bytes: 1, ..spilling(&other, dir.path(), 2) });
    assert_eq!(other.same(&scheduler, &request).reused, Some(0));
    scheduler.shutdown(Duration::from_secs(60));
    assert_eq!(files(dir.path()), before, "nothing fits into one byte, and nothing else was touched");
    let scheduler = lab.start(spilling(&lab, dir.path(), 2));
    assert_eq!(lab.same(&scheduler, &request).reused, Some(50));
}

#[test]
fn files_are_bounded() {
    let lab = Lab::new();
    let dir = tempfile::tempdir().unwrap();
    let options = || SchedulerOptions { spill_bytes: 60_000, ..spilling(&lab, dir.path(), 1) };
    let scheduler = lab.start(options());
    (0..8).for_each(|seed| drop(lab.same(&scheduler, &request(lab.tokens(50 + seed, 50), 3))));
    scheduler.shutdown(Duration::from_secs(60));
    let bytes: u64 = files(dir.path()).iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(bytes > 0 && bytes <= 60_000, "{bytes}");
}

#[test]
fn a_directory_that_cannot_be_is_an_error() {
    let lab = Lab::new();
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = SchedulerOptions { spill: Some(file.path().join("below")), ..keeping(1 << 20) };
    let error = Scheduler::start(lab.open(), options).unwrap_err();
    assert_eq!(error.kind(), rwkv_model::ErrorKind::Io);
    assert!(error.to_string().contains("below"), "{error}");
}

#[test]
fn sessions_beside_each_other_share_what_is_known() {
    let lab = Lab::new();
    let scheduler = lab.start(SchedulerOptions { sessions: 4, ..keeping(200_000) });
    let preambles = [lab.tokens(60, 30), lab.tokens(61, 41)];
    let requests: Vec<Request> = (0..24)
        .map(|i| {
            let tail = lab.tokens(70 + i % 5, 3 + i as usize % 4);
            request([&preambles[i as usize % 2][..], &tail].concat(), 4 + i as usize % 9)
        })
        .collect();
    let running: Vec<_> =
        requests.iter().map(|request| submit(&scheduler, request.clone()).unwrap()).collect();
    let mut model = lab.open();
    let mut reused = 0;
    for (request, running) in requests.iter().zip(running) {
        let heard = running.wait();
        assert_eq!(heard.tokens, alone(&mut model, request).0);
        reused += heard.end().reused_tokens;
    }
    assert!(reused > 300, "{reused}");
}
