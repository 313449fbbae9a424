//! Who gets how much of each sweep, counted in sweeps; and arrivals and cancellations at random.

mod support;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use rwkv_kernels::Codec;
use rwkv_model::{
    FinishReason, Model, ModelOptions, Request, SamplerParams, Scheduler, SchedulerOptions, Sink,
    SubmitError, SweepReport, Ticket,
};
use support::random::{Numbers, config};
use support::sessions::{alone, options, submit};
use support::{Packed, random_pack};

fn packed() -> Packed {
    random_pack(&config(1, 1, 16), 74, Codec::U8).1
}

fn open(packed: &Packed) -> Model {
    Model::open(&packed.path, ModelOptions::default().threads(1).chunk_rows(32)).unwrap()
}

/// A scheduler whose sweeps are written down.
fn watched(packed: &Packed, options: SchedulerOptions) -> (Scheduler, Arc<Mutex<Vec<SweepReport>>>) {
    let sweeps = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&sweeps);
    let on_sweep =
        Some(Arc::new(move |_: &Model, sweep: &SweepReport| log.lock().unwrap().push(sweep.clone()))
            as rwkv_model::OnSweep);
    (Scheduler::start(open(packed), SchedulerOptions { on_sweep, ..options }).unwrap(), sweeps)
}

fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    let params = SamplerParams::greedy();
    Request { params, max_tokens: Some(max_tokens), stop_tokens: Vec::new(), ..Request::new(prompt) }
}

#[test]
fn nobody_misses_a_sweep() {
    let packed = packed();
    let vocab = config(1, 1, 16).vocab;
    for rows in [Some(8), Some(32), None] {
        let (scheduler, sweeps) = watched(&packed, SchedulerOptions { rows, sessions: 6, ..options() });
        let mut numbers = Numbers::new(1);
        let lengths = [1, 700, 2, 300, 1, 40, 90, 1, 15];
        let running: Vec<_> = lengths
            .iter()
            .map(|&len| submit(&scheduler, request(numbers.tokens(len, vocab), 60)).unwrap())
            .collect();
        let ids: Vec<u64> = running.iter().map(|running| running.ticket.id()).collect();
        running.into_iter().for_each(|running| drop(running.wait()));
        scheduler.shutdown(Duration::from_secs(60));
        let sweeps = sweeps.lock().unwrap();
        let most = rows.unwrap_or(32);
        let mut of_session: HashMap<u64, Vec<u64>> = HashMap::new();
        for (number, sweep) in sweeps.iter().enumerate() {
            assert_eq!(sweep.number, number as u64);
            assert_eq!(sweep.rows, sweep.sessions.iter().map(|session| session.rows).sum::<usize>());
            assert!(sweep.rows <= most && sweep.sessions.len() <= 6, "{sweep:?}");
            let prompts = sweep.sessions.iter().filter(|session| session.prefill);
            let least = prompts.clone().map(|session| session.rows).min().unwrap_or(0);
            // Who gets more than another, beyond a remainder, does so because that one wants no more.
            for session in prompts {
                let is_last = |id| {
                    let next = sweeps.get(number + 1);
                    next.is_none_or(|next| !next.sessions.iter().any(|s| s.id == id && s.prefill))
                };
                let smallest = sweep.sessions.iter().filter(|s| s.prefill && !is_last(s.id));
                let smallest = smallest.map(|session| session.rows).min().unwrap_or(usize::MAX);
                assert!(session.rows <= smallest.saturating_add(1), "{sweep:?}, least {least}");
            }
            for session in &sweep.sessions {
                assert!(session.rows >= 1 && (session.prefill || session.rows == 1), "{sweep:?}");
                of_session.entry(session.id).or_default().push(sweep.number);
            }
        }
        for id in ids {
            let numbers = &of_session[&id];
            let gaps: Vec<u64> = numbers.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(gaps.iter().all(|&gap| gap == 1), "session {id} waited: {numbers:?}");
        }
    }
}

#[test]
fn a_long_prompt_is_read_beside_those_that_decode() {
    let packed = packed();
    let vocab = config(1, 1, 16).vocab;
    let (scheduler, sweeps) = watched(&packed, SchedulerOptions { rows: Some(8), ..options() });
    let decoding: Vec<_> = (0..3).map(|i| submit(&scheduler, request(vec![i], 400)).unwrap()).collect();
    let long = submit(&scheduler, request(Numbers::new(2).tokens(500, vocab), 1)).unwrap();
    let id = long.ticket.id();
    drop(long.wait());
    drop(decoding);
    scheduler.shutdown(Duration::from_secs(60));
    let sweeps = sweeps.lock().unwrap();
    let read = sweeps.iter().filter(|sweep| sweep.sessions.iter().any(|session| session.id == id)).count();
    // Five of eight rows at least.
    assert!((500usize.div_ceil(8)..=500 / 5 + 1).contains(&read), "{read} sweeps");
}

#[test]
fn what_is_submitted_together_begins_together() {
    let packed = packed();
    let (scheduler, sweeps) = watched(&packed, SchedulerOptions { queue: 1, sessions: 3, ..options() });
    let requests = |count: u32| {
        (0..count).map(|token| {
            let sink: Sink = Box::new(|_| ControlFlow::Continue(()));
            (request(vec![token], 3), sink)
        })
    };
    assert!(matches!(scheduler.submit_all(requests(5)), Err(SubmitError::QueueFull)));
    let wrong =
        scheduler.submit_all(requests(2).chain(requests(1).map(|(_, sink)| (request(vec![], 1), sink))));
    assert!(matches!(wrong, Err(SubmitError::Invalid(_))));
    let stats = scheduler.stats();
    assert_eq!((stats.submitted, stats.refused), (0, 5), "all of them or none");
    assert_eq!(scheduler.submit_all(requests(3)).unwrap().len(), 3);
    scheduler.clone().shutdown(Duration::from_secs(60));
    assert_eq!(scheduler.stats().completed, 3);
    let sizes: Vec<usize> = sweeps.lock().unwrap().iter().map(|sweep| sweep.sessions.len()).collect();
    assert_eq!(sizes, [3, 3, 3]);
}

#[test]
fn who_is_cancelled_is_in_no_further_sweep() {
    let packed = packed();
    let vocab = config(1, 1, 16).vocab;
    // While its prompt is read, and while it decodes.
    for prompt in [Numbers::new(3).tokens(700, vocab), vec![1]] {
        let (sender, ticket) = channel::<Ticket>();
        let ticket = Mutex::new(ticket);
        let last = 3;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let on_sweep = move |_: &Model, sweep: &SweepReport| {
            log.lock().unwrap().push(sweep.clone());
            if sweep.number == last {
                ticket.lock().unwrap().recv().unwrap().cancel();
            }
        };
        let options = SchedulerOptions { rows: Some(8), on_sweep: Some(Arc::new(on_sweep)), ..options() };
        let scheduler = Scheduler::start(open(&packed), options).unwrap();
        let cancelled = submit(&scheduler, request(prompt, 500)).unwrap();
        let beside = submit(&scheduler, request(vec![2], 30)).unwrap();
        let id = cancelled.ticket.id();
        sender.send(cancelled.ticket.clone()).unwrap();
        assert_eq!(cancelled.wait().end().reason, FinishReason::Cancelled);
        beside.wait();
        scheduler.shutdown(Duration::from_secs(60));
        let seen = seen.lock().unwrap();
        let of_it = seen.iter().filter(|sweep| sweep.sessions.iter().any(|session| session.id == id));
        assert_eq!(of_it.map(|sweep| sweep.number).max(), Some(last));
        assert!(seen.len() > 20, "the other one goes on");
    }
}

/// What happens to one request.
#[derive(Debug, Clone)]
struct Visit {
    prompt: usize,
    max_tokens: usize,
    stops: bool,
    /// Cancelled after so many events.
    cancel: Option<usize>,
    /// Its receiver is dropped after so many events instead.
    leaves: bool,
    reuse: bool,
}

fn visit() -> impl Strategy<Value = Visit> {
    let cancel = prop_oneof![2 => Just(None), 1 => (0usize..12).prop_map(Some)];
    (0usize..60, 0usize..30, any::<bool>(), cancel, any::<bool>(), any::<bool>()).prop_map(
        |(prompt, max_tokens, stops, cancel, leaves, reuse)| {
            let prompt = if max_tokens > 0 { prompt.max(1) } else { prompt };
            Visit { prompt, max_tokens, stops, cancel, leaves, reuse }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_and_goes_each_gets_its_text(
        visits in prop::collection::vec(visit(), 1..14),
        sessions in 1usize..5,
        rows in prop_oneof![Just(None), (4usize..20).prop_map(Some)],
        prefix_cache_bytes in prop_oneof![Just(0u64), Just(20_000), Just(1 << 20)],
    ) {
        let packed = packed();
        let mut model = open(&packed);
        let vocab = model.config().vocab;
        let chosen = SchedulerOptions { sessions, rows, prefix_cache_bytes, queue: 64, ..options() };
        let scheduler = Scheduler::start(open(&packed), chosen).unwrap();
        let requests: Vec<Request> = visits.iter().enumerate().map(|(i, visit)| Request {
            // Few seeds, so that some prompts begin alike.
            stop_strings: if visit.stops { vec![b"a".to_vec()] } else { Vec::new() },
            params: SamplerParams { seed: Some(i as u64), ..SamplerParams::default() },
            reuse: visit.reuse,
            ..request(Numbers::new(i as u64 % 3).tokens(visit.prompt, vocab), visit.max_tokens)
        }).collect();
        let running: Vec<_> =
            requests.iter().map(|request| submit(&scheduler, request.clone()).unwrap()).collect();
        let threads: Vec<_> = running.into_iter().zip(visits.clone()).map(|(running, visit)| {
            std::thread::spawn(move || {
                let mut heard = support::sessions::Heard::default();
                for event in 0.. {
                    if Some(event) == visit.cancel {
                        if visit.leaves {
                            return None;
                        }
                        running.ticket.cancel();
                    }
                    if heard.push(running.next()) {
                        break;
                    }
                }
                Some(heard)
            })
        }).collect();
        for ((thread, request), visit) in threads.into_iter().zip(&requests).zip(&visits) {
            let Some(heard) = thread.join().unwrap() else { continue };
            let (tokens, text) = alone(&mut model, request);
            let end = heard.end();
            if end.reason == FinishReason::Cancelled {
                prop_assert!(visit.cancel.is_some());
                prop_assert!(tokens.starts_with(&heard.tokens) && text.starts_with(&heard.text));
            } else {
                prop_assert_eq!((&heard.tokens, &heard.text), (&tokens, &text));
            }
            prop_assert_eq!(end.completion_tokens, heard.tokens.len());
        }
        scheduler.clone().shutdown(Duration::from_secs(60));
        let stats = scheduler.stats();
        prop_assert_eq!(stats.completed + stats.cancelled, visits.len() as u64);
        prop_assert_eq!((stats.running, stats.queued, stats.failed), (0, 0, 0));
    }
}
