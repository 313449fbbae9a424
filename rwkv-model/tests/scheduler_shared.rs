//! Prompts that begin alike are read once, and each text is still that of the request alone.

mod support;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rwkv_kernels::Codec;
use rwkv_model::{
    ErrorKind, Feed, FinishReason, Logits, Model, ModelOptions, Request, SamplerParams, Scheduler,
    SchedulerOptions, SessionEvent, Sink, State, SweepReport,
};
use support::random::{Numbers, config, hybrid};
use support::sessions::{Heard, Running, alone, options, submit};
use support::{Packed, random_pack};

/// A scheduler that stops after its first sweep, so that what is submitted meanwhile comes together.
struct Lab {
    packed: Packed,
    vocab: usize,
    scheduler: Scheduler,
    swept: Receiver<()>,
    go: Sender<()>,
}

impl Lab {
    fn of(config: &rwkv_model::Config, options: SchedulerOptions) -> Lab {
        let (_, packed) = random_pack(config, 75, Codec::U8);
        let (sweep, swept) = channel();
        let (go, gone) = channel::<()>();
        let gate = std::sync::Mutex::new((sweep, gone));
        let on_sweep = move |_: &Model, _: &SweepReport| {
            let gate = gate.lock().unwrap();
            // Without a test that waits, nobody holds it up.
            if gate.0.send(()).is_ok() {
                let _ = gate.1.recv();
            }
        };
        let options = SchedulerOptions { on_sweep: Some(Arc::new(on_sweep)), ..options };
        let scheduler = Scheduler::start(open(&packed), options).unwrap();
        Lab { packed, vocab: config.vocab, scheduler, swept, go }
    }

    fn new(prefix_cache_bytes: u64) -> Lab {
        Lab::of(&config(2, 2, 16), SchedulerOptions { prefix_cache_bytes, ..options() })
    }

    fn tokens(&self, seed: u64, count: usize) -> Vec<u32> {
        Numbers::new(seed).tokens(count, self.vocab)
    }

    /// Submits the requests while the first one is in its first sweep, and lets the engine go after `then`.
    fn together(self, requests: &[Request], then: impl FnOnce(&[Running])) -> (Vec<Heard>, Scheduler) {
        let mut running = vec![submit(&self.scheduler, requests[0].clone()).unwrap()];
        self.swept.recv().unwrap();
        running.extend(requests[1..].iter().map(|request| submit(&self.scheduler, request.clone()).unwrap()));
        then(&running);
        let Lab { packed, scheduler, swept, go, .. } = self;
        drop((swept, go));
        let heard: Vec<Heard> = running.into_iter().map(Running::wait).collect();
        let mut model = open(&packed);
        for (index, (heard, request)) in heard.iter().zip(requests).enumerate() {
            let expected = alone(&mut model, request);
            let end = heard.end();
            if end.reason == FinishReason::Cancelled {
                assert!(expected.0.starts_with(&heard.tokens), "request {index}");
            } else {
                assert_eq!((&heard.tokens, &heard.text), (&expected.0, &expected.1), "request {index}");
            }
            assert_eq!(end.prompt_tokens, request.prompt.len());
        }
        scheduler.clone().shutdown(Duration::from_secs(60));
        (heard, scheduler)
    }
}

fn open(packed: &Packed) -> Model {
    Model::open(&packed.path, ModelOptions::default().threads(1).chunk_rows(16)).unwrap()
}

fn request(prompt: Vec<u32>, seed: u64) -> Request {
    let params = SamplerParams { seed: Some(seed), ..SamplerParams::default() };
    Request { params, max_tokens: Some(9), stop_tokens: Vec::new(), ..Request::new(prompt) }
}

fn reused(heard: &[Heard]) -> Vec<usize> {
    heard.iter().map(|heard| heard.end().reused_tokens).collect()
}

#[test]
fn a_prompt_of_many_sessions_is_read_once() {
    for prefix_cache_bytes in [0, 1 << 20] {
        let lab = Lab::new(prefix_cache_bytes);
        let prompt = lab.tokens(1, 300);
        let requests: Vec<Request> = (0..8).map(|seed| request(prompt.clone(), seed)).collect();
        let (heard, scheduler) = lab.together(&requests, |_| {});
        assert_eq!(reused(&heard), [0, 300, 300, 300, 300, 300, 300, 300]);
        let stats = scheduler.stats();
        assert_eq!((stats.prompt_tokens, stats.shared_tokens, stats.completed), (300, 7 * 300, 8));
        assert_eq!(heard[3].prefill, [300], "it hears when it goes on");
    }
}

#[test]
fn keys_and_values_are_shared_too() {
    let lab = Lab::of(&hybrid(4, 2, 64, 16), options());
    let prompt = lab.tokens(1, 100);
    let requests: Vec<Request> = (0..3).map(|seed| request(prompt.clone(), seed)).collect();
    let (heard, _) = lab.together(&requests, |_| {});
    assert_eq!(reused(&heard), [0, 100, 100]);
}

#[test]
fn keys_and_values_are_not_shared_beyond_their_limit() {
    let config = hybrid(4, 2, 64, 16);
    let (_, packed) = random_pack(&config, 75, Codec::U8);
    let prompt = Numbers::new(1).tokens(100, config.vocab);
    let mut free = open(&packed);
    let mut state = free.new_state();
    free.step(&mut [Feed::new(&mut state, &prompt, Logits::None)]).unwrap();
    // Room for two of the four.
    let limit = 2 * free.kv_bytes();
    let options = ModelOptions::default().threads(1).chunk_rows(16).kv_bytes(limit);
    let most = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&most);
    let on_sweep = move |model: &Model, _: &SweepReport| {
        seen.fetch_max(model.kv_bytes(), Ordering::Relaxed);
    };
    let chosen = SchedulerOptions { on_sweep: Some(Arc::new(on_sweep)), ..support::sessions::options() };
    let scheduler = Scheduler::start(Model::open(&packed.path, options).unwrap(), chosen).unwrap();
    let requests: Vec<Request> = (0..4).map(|seed| request(prompt.clone(), seed)).collect();
    let running: Vec<Running> =
        requests.iter().map(|request| submit(&scheduler, request.clone()).unwrap()).collect();
    let heard: Vec<Heard> = running.into_iter().map(Running::wait).collect();
    let mut good = 0;
    for (heard, request) in heard.iter().zip(&requests) {
        match &heard.failed {
            Some(error) => assert_eq!(error.kind(), ErrorKind::Budget),
            None => {
                assert_eq!(heard.tokens, alone(&mut free, request).0);
                good += 1;
            }
        }
    }
    assert!(good >= 1, "there is room for one at least");
    let most = most.load(Ordering::Relaxed);
    assert!(most <= limit, "{most} bytes of {limit}");
}

#[test]
fn choices_from_one_state_are_read_once() {
    let (_, packed) = random_pack(&config(2, 2, 16), 75, Codec::U8);
    let mut model = open(&packed);
    let vocab = model.config().vocab;
    let mut after = |seed| {
        let mut state = model.new_state();
        let tokens = Numbers::new(seed).tokens(20, vocab);
        model.step(&mut [Feed::new(&mut state, &tokens, Logits::None)]).unwrap();
        state
    };
    let (state, other) = (after(1), after(2));
    let prompt = Numbers::new(3).tokens(60, vocab);
    let with = |state: &State, seed| Request { state: Some(state.clone()), ..request(prompt.clone(), seed) };
    let requests =
        [with(&state, 0), with(&other, 1), with(&state, 2), request(prompt.clone(), 3), with(&state, 4)];
    let cached = SchedulerOptions { prefix_cache_bytes: 1 << 20, ..options() };
    let scheduler = Scheduler::start(open(&packed), cached).unwrap();
    let (sinks, events): (Vec<Sink>, Vec<Receiver<SessionEvent>>) = requests
        .iter()
        .map(|_| {
            let (sender, events) = channel();
            let sink = move |event| match sender.send(event) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            };
            (Box::new(sink) as Sink, events)
        })
        .unzip();
    let tickets = scheduler.submit_all(requests.iter().cloned().zip(sinks)).unwrap();
    let running = tickets.into_iter().zip(events).map(|(ticket, events)| Running { ticket, events });
    let heard: Vec<Heard> = running.map(Running::wait).collect();
    for (heard, request) in heard.iter().zip(&requests) {
        assert_eq!(heard.tokens, alone(&mut model, request).0);
    }
    assert_eq!(reused(&heard), [0, 0, 60, 0, 60]);
    assert_eq!(scheduler.stats().prompt_tokens, 3 * 60);
    // What follows on a state is no prefix for a new session.
    let again = submit(&scheduler, request(prompt.clone(), 9)).unwrap().wait();
    assert_eq!(again.tokens, alone(&mut model, &request(prompt.clone(), 9)).0);
}

#[test]
fn prompts_part_where_they_differ() {
    let lab = Lab::new(1 << 20);
    let preamble = lab.tokens(2, 120);
    let with = |tail: u64, len: usize| [&preamble[..], &lab.tokens(tail, len)].concat();
    let (long, other) = (with(10, 50), with(11, 40));
    let requests = [
        request(long.clone(), 0),
        request(other.clone(), 1),
        // The same as the second, which follows the first: both go on together.
        request(other.clone(), 2),
        // Its end is where the first one does not stop to choose.
        request(preamble[..100].to_vec(), 3),
        // It chooses nothing.
        Request { max_tokens: Some(0), ..request(preamble[..90].to_vec(), 4) },
        // What needs all of its prompt, or wants nothing of others, reads it.
        Request { prompt_logprobs: Some(0), ..request(other.clone(), 5) },
        Request { reuse: false, ..request(other, 6) },
        request(preamble[..4].to_vec(), 7),
    ];
    let (heard, scheduler) = lab.together(&requests, |_| {});
    assert_eq!(reused(&heard), [0, 120, 160, 99, 90, 0, 0, 0]);
    assert_eq!(scheduler.stats().prompt_tokens, 170 + 40 + 1 + 160 + 160 + 4);
}

#[test]
fn who_reads_may_leave() {
    let lab = Lab::new(0);
    let prompt = lab.tokens(3, 200);
    let requests: Vec<Request> = (0..4).map(|seed| request(prompt.clone(), seed)).collect();
    let (heard, scheduler) = lab.together(&requests, |running| {
        running[0].ticket.cancel();
        running[2].ticket.cancel();
    });
    let reasons: Vec<bool> =
        heard.iter().map(|heard| heard.end().reason == FinishReason::Cancelled).collect();
    assert_eq!(reasons, [true, false, true, false]);
    // The second goes on where the first one was, after a sweep.
    assert_eq!(reused(&heard), [0, 16, 0, 200]);
    assert_eq!(scheduler.stats().prompt_tokens, 200);
}
