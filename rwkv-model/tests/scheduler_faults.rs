//! What goes wrong with one session, or with all, leaves the others and the engine as they were.

mod support;

use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use rwkv_cache::source::{EIO, Fault, FaultSource, When};
use rwkv_cache::{ReadAhead, Source};
use rwkv_kernels::Codec;
use rwkv_model::{
    ErrorKind, Feed, FinishReason, Logits, Model, ModelOptions, Request, Residency, SamplerParams, Scheduler,
    SchedulerOptions, SessionEvent, State, SubmitError,
};
use rwkv_pack::Pack;
use support::random::{Numbers, config, hybrid};
use support::sessions::{alone, options, run, submit};
use support::{Packed, random_pack};

fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    let params = SamplerParams { seed: Some(5), ..SamplerParams::default() };
    Request { params, max_tokens: Some(max_tokens), stop_tokens: Vec::new(), ..Request::new(prompt) }
}

/// A state whose numbers are finite, but whose next ones are not.
fn exploding(model: &Model) -> State {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    model.new_state().save(&path).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for number in bytes[8 + header..].chunks_exact_mut(4) {
        number.copy_from_slice(&3e38f32.to_le_bytes());
    }
    fs::write(&path, bytes).unwrap();
    model.load_state(&path).unwrap()
}

#[test]
fn a_feed_that_fails_harms_no_other() {
    let config = config(2, 2, 16);
    let (_, packed) = random_pack(&config, 81, Codec::U8);
    let mut model = Model::open(&packed.path, ModelOptions::default().threads(2).chunk_rows(8)).unwrap();
    let tokens = Numbers::new(1).tokens(20, config.vocab);
    let mut expected = model.new_state();
    let logits =
        model.step(&mut [Feed::new(&mut expected, &tokens, Logits::All)]).unwrap().logits(0).to_vec();
    let other = Model::open(&random_pack(&config, 82, Codec::U8).1.path, ModelOptions::default()).unwrap();
    let outside = [1, config.vocab as u32];
    let mut bad = exploding(&model);
    let (mut good, mut untouched, mut foreign) = (model.new_state(), model.new_state(), other.new_state());
    let mut feeds = [
        Feed::new(&mut bad, &tokens[..9], Logits::All),
        Feed::new(&mut untouched, &outside, Logits::Last),
        Feed::new(&mut good, &tokens, Logits::All),
        Feed::new(&mut foreign, &tokens, Logits::None),
    ];
    let output = model.step_each(&mut feeds).unwrap();
    let kinds: Vec<_> = (0..4).map(|feed| output.error(feed).map(|error| error.kind())).collect();
    assert_eq!(kinds, [Some(ErrorKind::NonFinite), Some(ErrorKind::Token), None, Some(ErrorKind::State)]);
    assert!(output.logits(2) == logits);
    assert!(output.logits(1).is_empty() && output.logits(3).is_empty());
    assert!(output.error(0).unwrap().to_string().contains("time mix of block 0"), "{:?}", output.error(0));
    assert_eq!(feeds[1].tokens, outside, "what the caller gave is still there");
    assert!(bad.is_poisoned() && !untouched.is_poisoned() && untouched == model.new_state());
    assert!(good == expected);
    // A step stands or falls as one.
    let (mut bad, mut good) = (exploding(&model), model.new_state());
    let mut feeds = [Feed::new(&mut good, &tokens, Logits::None), Feed::new(&mut bad, &tokens, Logits::None)];
    assert_eq!(model.step(&mut feeds).unwrap_err().kind(), ErrorKind::NonFinite);
    assert!(good.is_poisoned() && bad.is_poisoned());
}

#[test]
fn a_session_that_is_not_finite_fails_alone() {
    let (_, packed) = random_pack(&config(2, 2, 16), 81, Codec::U8);
    let open = || Model::open(&packed.path, ModelOptions::default().threads(1).chunk_rows(8)).unwrap();
    let mut model = open();
    let good = request(vec![3, 4, 5, 6, 7, 8, 9, 10, 11], 40);
    let bad = Request { state: Some(exploding(&model)), ..request(vec![1; 20], 40) };
    let scheduler =
        Scheduler::start(open(), SchedulerOptions { prefix_cache_bytes: 1 << 20, ..options() }).unwrap();
    let (first, failed, second) = (
        submit(&scheduler, good.clone()).unwrap(),
        submit(&scheduler, bad).unwrap(),
        submit(&scheduler, good.clone()).unwrap(),
    );
    let error = failed.wait().failed.expect("it fails");
    assert_eq!(error.kind(), ErrorKind::NonFinite);
    let expected = alone(&mut model, &good);
    for heard in [first.wait(), second.wait()] {
        assert_eq!((heard.tokens, heard.text), expected);
    }
    assert_eq!(scheduler.stats().failed, 1);
}

struct Streamed {
    packed: Packed,
    source: Arc<FaultSource<Vec<u8>>>,
    scheduler: Scheduler,
}

/// A scheduler that reads everything that can stream for each token, through a source that fails as it is told.
fn streamed() -> Streamed {
    let (_, packed) = random_pack(&config(2, 2, 32), 83, Codec::U8);
    let source = Arc::new(FaultSource::new(fs::read(&packed.path).unwrap()));
    let options = ModelOptions::default().threads(1).sessions(4).read_ahead(ReadAhead::Off);
    let budget_bytes = Model::plan(&packed.path, &options).unwrap().smallest_budget;
    let options = options.residency(Residency::Stream { budget_bytes });
    let shared: Arc<dyn Source> = source.clone();
    let model = Model::from_source(Pack::open(&packed.path).unwrap(), shared, options).unwrap();
    let scheduler = Scheduler::start(model, support::sessions::options()).unwrap();
    Streamed { packed, source, scheduler }
}

impl Streamed {
    fn expected(&self, request: &Request) -> (Vec<u32>, Vec<u8>) {
        alone(&mut Model::open(&self.packed.path, ModelOptions::default().threads(1)).unwrap(), request)
    }
}

#[test]
fn a_read_that_fails_once_is_not_noticed() {
    let lab = streamed();
    let requests: Vec<Request> = (0..3).map(|i| request(vec![i + 1, i + 2, i + 3], 12)).collect();
    let running: Vec<_> = requests.iter().map(|r| submit(&lab.scheduler, r.clone()).unwrap()).collect();
    for reads in [5, 9, 30] {
        lab.source.inject_times(When::Read(lab.source.reads() + reads), Fault::Os(EIO), 1);
    }
    for (running, request) in running.into_iter().zip(&requests) {
        let heard = running.wait();
        assert!(heard.failed.is_none(), "{:?}", heard.failed);
        assert_eq!((heard.tokens, heard.text), lab.expected(request));
    }
    assert!(lab.source.struck() >= 2, "{} faults", lab.source.struck());
}

#[test]
fn a_source_that_fails_ends_the_sessions_of_its_sweep_and_not_the_engine() {
    let lab = streamed();
    let good = request(vec![1, 2, 3], 10);
    assert_eq!(run(&lab.scheduler, good.clone()).tokens, lab.expected(&good).0);
    let endless = Request { max_tokens: None, ..good.clone() };
    let running: Vec<_> = (0..3).map(|_| submit(&lab.scheduler, endless.clone()).unwrap()).collect();
    for running in &running {
        while !matches!(running.next(), SessionEvent::Token { .. }) {}
    }
    lab.source.inject(When::Always, Fault::Os(EIO));
    for running in running {
        let error = running.wait().failed.expect("it fails");
        assert_eq!(error.kind(), ErrorKind::Residency);
        assert!(std::error::Error::source(&error).is_some(), "it says why: {error}");
    }
    // As long as the source fails, so do new ones.
    assert!(run(&lab.scheduler, good.clone()).failed.is_some());
    lab.source.recover();
    for _ in 0..3 {
        let heard = run(&lab.scheduler, good.clone());
        assert_eq!((heard.tokens, heard.text), lab.expected(&good));
    }
    let stats = lab.scheduler.stats();
    assert!(stats.is_open && stats.failed == 4, "{} failed", stats.failed);
}

#[test]
fn a_panic_of_the_engine_ends_it_in_order() {
    let (_, packed) = random_pack(&config(2, 2, 16), 84, Codec::U8);
    let open = || Model::open(&packed.path, ModelOptions::default().threads(1)).unwrap();
    // What tokens are as text is the caller's, and called by the engine.
    let token_bytes = Arc::new(|token: u32, out: &mut Vec<u8>| {
        let is_engine = std::thread::current().name() == Some("rwkv-engine");
        assert!(!is_engine, "as it was asked to");
        support::sessions::letters(token, out);
    });
    let scheduler = Scheduler::start(open(), SchedulerOptions::new(token_bytes)).unwrap();
    let error = run(&scheduler, request(vec![1], 5)).failed.expect("it fails");
    assert_eq!(error.kind(), ErrorKind::Engine);
    let again = submit(&scheduler, request(vec![1], 5));
    assert!(matches!(again, Err(rwkv_model::SubmitError::Closed)));
    scheduler.shutdown(Duration::from_secs(60));
}

#[test]
fn a_session_that_outgrows_the_caches_fails_alone() {
    let config = hybrid(2, 1, 64, 16);
    let (_, packed) = random_pack(&config, 85, Codec::U8);
    let open = |kv_bytes| {
        let options = ModelOptions::default().threads(1).chunk_rows(32).kv_bytes(kv_bytes);
        Model::open(&packed.path, options).unwrap()
    };
    // As they grow by blocks of 64 rows: room for six blocks.
    let mut free = open(1 << 30);
    let mut state = free.new_state();
    free.step(&mut [Feed::new(&mut state, &[1], Logits::None)]).unwrap();
    let block = free.kv_bytes();
    drop(state);
    let prefix_cache_bytes = 1 << 20;
    let scheduler =
        Scheduler::start(open(6 * block), SchedulerOptions { prefix_cache_bytes, sessions: 4, ..options() })
            .unwrap();
    let too_long = request(Numbers::new(3).tokens(500, config.vocab), 1);
    match submit(&scheduler, too_long) {
        Err(SubmitError::Invalid(error)) => assert_eq!(error.kind(), ErrorKind::Budget, "{error}"),
        _ => panic!("a prompt that never fits is taken"),
    }
    let small = request(Numbers::new(1).tokens(20, config.vocab), 30);
    let expected = alone(&mut free, &small);
    let large = Request { max_tokens: None, ..request(Numbers::new(2).tokens(100, config.vocab), 0) };
    for _ in 0..2 {
        // Kept states take room, and give it back. Whoever finds none waits for it.
        let (large, small) =
            (submit(&scheduler, large.clone()).unwrap(), submit(&scheduler, small.clone()).unwrap());
        assert_eq!(small.wait().tokens, expected.0);
        let heard = large.wait();
        assert_eq!(heard.finished.expect("it ends").reason, FinishReason::Memory);
        assert!(heard.tokens.len() > 200, "{} tokens: all room was for it", heard.tokens.len());
    }
    scheduler.clone().shutdown(Duration::from_secs(60));
    assert!(scheduler.stats().kv_bytes <= 6 * block);
}

#[test]
fn a_sink_hears_of_the_end_whoever_causes_it() {
    let (_, packed) = random_pack(&config(2, 2, 16), 86, Codec::U8);
    let model = Model::open(&packed.path, ModelOptions::default().threads(1)).unwrap();
    let scheduler = Scheduler::start(model, options()).unwrap();
    let (sender, events) = channel();
    let sink = move |event| {
        if let SessionEvent::Finished(finished) = event {
            sender.send(finished.reason).unwrap();
        }
        ControlFlow::Continue(())
    };
    let endless = Request { max_tokens: None, ..request(vec![1], 0) };
    let ticket = scheduler.submit(endless, Box::new(sink)).unwrap();
    // A ticket outlives its scheduler's handles.
    drop(scheduler);
    ticket.cancel();
    ticket.clone().cancel();
    assert_eq!(events.recv_timeout(Duration::from_secs(120)).unwrap(), FinishReason::Cancelled);
}
