//! Many sessions: each one's text is that of the same request alone, and each ends as it should.

mod support;

use std::ops::ControlFlow;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use rwkv_kernels::Codec;
use rwkv_model::{
    Config, ErrorKind, Feed, FinishReason, Logits, Model, ModelOptions, Request, SamplerParams, Scheduler,
    SchedulerOptions, SessionEvent, SubmitError,
};
use support::random::{Numbers, config};
use support::sessions::{Heard, alone, options, run, submit};
use support::{Packed, random_pack};

fn small() -> Config {
    config(2, 2, 16)
}

fn pack() -> Packed {
    random_pack(&small(), 71, Codec::U8).1
}

fn open(packed: &Packed) -> Model {
    Model::open(&packed.path, ModelOptions::default().threads(2).chunk_rows(16)).unwrap()
}

fn start(packed: &Packed, options: SchedulerOptions) -> Scheduler {
    Scheduler::start(open(packed), options).unwrap()
}

/// Requests of all kinds: long and short, greedy and by chance, with stops and without.
fn mix(vocab: usize) -> Vec<Request> {
    let mut numbers = Numbers::new(3);
    let lengths = [1, 40, 7, 16, 17, 90, 2, 33];
    let request = |(i, len): (usize, usize)| {
        let seeded = SamplerParams {
            seed: Some(i as u64),
            temperature: 0.5 + i as f32 / 4.0,
            top_p: 0.95,
            top_k: 40 * (i % 2),
            ..SamplerParams::default()
        };
        Request {
            params: if i % 3 == 0 { SamplerParams::greedy() } else { seeded },
            max_tokens: Some(5 + 4 * i),
            stop_strings: if i % 2 == 0 { vec![b"zz".to_vec(), b"abc".to_vec()] } else { Vec::new() },
            ..Request::new(numbers.tokens(len, vocab))
        }
    };
    lengths.into_iter().enumerate().map(request).collect()
}

#[test]
fn each_text_is_that_of_the_request_alone() {
    let packed = pack();
    let mut model = open(&packed);
    let requests = mix(model.config().vocab);
    let expected: Vec<_> = requests.iter().map(|request| alone(&mut model, request)).collect();
    for (sessions, rows, prefix_cache_bytes) in
        [(1, None, 0), (3, None, 0), (8, None, 1 << 20), (8, Some(8), 0), (4, Some(5), 1 << 20)]
    {
        let scheduler = start(&packed, SchedulerOptions { sessions, rows, prefix_cache_bytes, ..options() });
        for round in 0..3 {
            let running: Vec<_> =
                requests.iter().map(|request| submit(&scheduler, request.clone()).unwrap()).collect();
            for (i, (running, expected)) in running.into_iter().zip(&expected).enumerate() {
                let heard = running.wait();
                let what = format!("request {i}, round {round}, {sessions} sessions, rows {rows:?}");
                assert_eq!((&heard.tokens, &heard.text), (&expected.0, &expected.1), "{what}");
                assert_eq!(heard.end().completion_tokens, expected.0.len(), "{what}");
                assert_eq!(heard.end().prompt_tokens, requests[i].prompt.len(), "{what}");
            }
        }
        scheduler.clone().shutdown(Duration::from_secs(60));
        let stats = scheduler.stats();
        assert_eq!((stats.submitted, stats.completed, stats.running), (24, 24, 0));
        assert_eq!(stats.prefix.hits > 0, prefix_cache_bytes > 0);
    }
}

#[test]
fn states_come_and_go() {
    let packed = pack();
    let mut model = open(&packed);
    let vocab = model.config().vocab;
    let prompt = Numbers::new(4).tokens(50, vocab);
    let params = SamplerParams::greedy();
    let whole = Request {
        params: params.clone(),
        max_tokens: Some(12),
        stop_tokens: Vec::new(),
        ..Request::new(prompt.clone())
    };
    let (expected, _) = alone(&mut model, &whole);
    let scheduler = start(&packed, SchedulerOptions { prefix_cache_bytes: 1 << 20, ..options() });
    let first = run(&scheduler, Request { max_tokens: Some(5), keep_state: true, ..whole.clone() });
    let end = first.finished.unwrap();
    assert_eq!((end.reason, end.reused_tokens), (FinishReason::Length, 0));
    let (state, unfed) = (end.state.unwrap(), end.unfed.unwrap());
    let mut fed = model.new_state();
    let seen = [&prompt[..], &expected[..4]].concat();
    model.step(&mut [Feed::new(&mut fed, &seen, Logits::None)]).unwrap();
    assert!(state == fed, "the state has seen the prompt and all tokens but the last");
    let go_on = Request { state: Some(state), prompt: vec![unfed], max_tokens: Some(7), ..whole.clone() };
    let second = run(&scheduler, go_on.clone());
    assert_eq!([first.tokens, second.tokens].concat(), expected);
    // Without a token to generate, the prompt is read.
    let read = run(&scheduler, Request { max_tokens: Some(0), keep_state: true, ..go_on });
    let end = read.finished.unwrap();
    model.step(&mut [Feed::new(&mut fed, &[unfed], Logits::None)]).unwrap();
    assert!(end.state.unwrap() == fed && end.unfed.is_none() && read.tokens.is_empty());
}

#[test]
fn embeddings_are_means_that_no_split_changes() {
    let packed = pack();
    let vocab = small().vocab;
    let prompt = Numbers::new(5).tokens(61, vocab);
    let request = Request { embedding: true, max_tokens: Some(0), ..Request::new(prompt.clone()) };
    let embed = |rows: Option<usize>, chunk| {
        let model = Model::open(&packed.path, ModelOptions::default().threads(1).chunk_rows(chunk)).unwrap();
        let scheduler = Scheduler::start(model, SchedulerOptions { rows, ..options() }).unwrap();
        run(&scheduler, request.clone()).finished.unwrap().embedding.unwrap()
    };
    let whole = embed(None, 64);
    assert_eq!(whole, embed(Some(7), 64));
    assert_eq!(whole, embed(None, 1));
    // By the definition: one token after another.
    let mut model = open(&packed);
    let mut state = model.new_state();
    let mut mean = vec![0.0f64; model.config().width];
    for token in prompt {
        let mut hidden = vec![0.0f64; mean.len()];
        let tokens = [token];
        let feed = Feed { hidden_sum: Some(&mut hidden), ..Feed::new(&mut state, &tokens, Logits::None) };
        model.step(&mut [feed]).unwrap();
        mean.iter_mut().zip(hidden).for_each(|(mean, x)| *mean += x);
    }
    let mean: Vec<f32> = mean.iter().map(|sum| (sum / 61.0) as f32).collect();
    assert_eq!(whole, mean);
}

#[test]
fn logprobs_are_those_of_the_logits() {
    let packed = pack();
    let mut model = open(&packed);
    let prompt = Numbers::new(6).tokens(40, model.config().vocab);
    let request = Request {
        max_tokens: Some(3),
        params: SamplerParams::greedy(),
        stop_tokens: Vec::new(),
        logprobs: Some(2),
        prompt_logprobs: Some(1),
        ..Request::new(prompt.clone())
    };
    let heard = run(&start(&packed, options()), request);
    let all = [&prompt[..], &heard.tokens].concat();
    let mut state = model.new_state();
    let output = model.step(&mut [Feed::new(&mut state, &all, Logits::All)]).unwrap();
    let vocab = output.logits(0).len() / all.len();
    let found: Vec<_> = heard.end().prompt_logprobs.iter().chain(&heard.logprobs).collect();
    assert_eq!(found.len(), all.len() - 1);
    for ((found, &token), logits) in found.iter().zip(&all[1..]).zip(output.logits(0).chunks_exact(vocab)) {
        let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let expected = f64::from(logits[token as usize]) - total.ln();
        assert_eq!(found.token, token);
        assert!((f64::from(found.logprob) - expected).abs() < 1e-4, "{found:?}, expected {expected}");
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(logits[found.top[0].0 as usize], best);
    }
    assert!(
        heard.logprobs.iter().all(|logprobs| logprobs.top.len() == 2 && logprobs.top[0].0 == logprobs.token)
    );
}

#[test]
fn wrong_requests_are_refused_before_they_wait() {
    let packed = pack();
    let scheduler = start(&packed, options());
    let vocab = small().vocab as u32;
    let other = random_pack(&config(1, 2, 16), 72, Codec::U8).1;
    let foreign = open(&other).new_state();
    let good = Request::new(vec![1]);
    let nan = SamplerParams { temperature: f32::NAN, ..SamplerParams::default() };
    for (request, kind) in [
        (Request::new(vec![]), ErrorKind::Parameter),
        (Request::new(vec![1, vocab]), ErrorKind::Token),
        (Request { params: nan, ..good.clone() }, ErrorKind::Parameter),
        (Request { stop_strings: vec![Vec::new()], ..good.clone() }, ErrorKind::Parameter),
        (Request { state: Some(foreign), ..good.clone() }, ErrorKind::State),
        (Request { embedding: true, max_tokens: Some(0), ..Request::new(vec![]) }, ErrorKind::Parameter),
    ] {
        let what = format!("{request:?}");
        match submit(&scheduler, request) {
            Err(SubmitError::Invalid(error)) => assert_eq!(error.kind(), kind, "{what}: {error}"),
            Ok(_) | Err(_) => panic!("{what} was taken"),
        }
    }
    assert_eq!(scheduler.stats().submitted, 0);
    let nothing = run(&scheduler, Request { max_tokens: Some(0), ..Request::new(vec![]) });
    assert_eq!(nothing.end().reason, FinishReason::Length);
}

/// A scheduler of one session, which is busy until the sender is dropped or sends something: it waits in its sink.
fn busy(packed: &Packed, queue: usize) -> (Scheduler, std::sync::mpsc::Sender<()>) {
    let scheduler = start(packed, SchedulerOptions { queue, sessions: 1, ..options() });
    let (go_on, wait) = channel::<()>();
    let (started, is_started) = channel();
    let sink = move |_| {
        let _ = started.send(());
        match wait.recv_timeout(Duration::from_secs(120)) {
            Err(RecvTimeoutError::Disconnected) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    };
    scheduler.submit(Request { stop_tokens: Vec::new(), ..Request::new(vec![1]) }, Box::new(sink)).unwrap();
    is_started.recv().unwrap();
    (scheduler, go_on)
}

#[test]
fn a_full_queue_refuses_and_a_closed_one_too() {
    let packed = pack();
    let (scheduler, go_on) = busy(&packed, 2);
    let short = || Request { max_tokens: Some(2), stop_tokens: Vec::new(), ..Request::new(vec![2]) };
    let waiting = [(); 2].map(|()| submit(&scheduler, short()).unwrap());
    assert!(matches!(submit(&scheduler, short()), Err(SubmitError::QueueFull)));
    let stats = scheduler.stats();
    assert_eq!((stats.queued, stats.submitted, stats.refused), (2, 3, 1));
    scheduler.close();
    assert!(matches!(submit(&scheduler, short()), Err(SubmitError::Closed)));
    assert!(!scheduler.stats().is_open);
    drop(go_on);
    for heard in waiting.map(|running| running.wait()) {
        assert_eq!((heard.end().reason, heard.tokens.len()), (FinishReason::Length, 2));
    }
    scheduler.shutdown(Duration::from_secs(60));
}

#[test]
fn who_waits_is_cancelled_and_times_out() {
    let packed = pack();
    let (scheduler, go_on) = busy(&packed, 9);
    let cancelled = submit(&scheduler, Request::new(vec![2])).unwrap();
    let late = Request { queue_limit: Some(Duration::ZERO), ..Request::new(vec![2]) };
    let late = submit(&scheduler, late).unwrap();
    cancelled.ticket.cancel();
    // It starts, has read its prompt, and has a token; then comes the next sweep.
    (0..3).for_each(|_| go_on.send(()).unwrap());
    let (cancelled, late) = (cancelled.wait(), late.wait());
    assert_eq!((cancelled.end().reason, cancelled.reused), (FinishReason::Cancelled, None));
    assert_eq!((late.end().reason, late.reused), (FinishReason::QueueLimit, None));
    drop(go_on);
    scheduler.clone().shutdown(Duration::from_secs(60));
    let stats = scheduler.stats();
    assert_eq!((stats.cancelled, stats.timed_out, stats.running), (2, 1, 0));
}

/// A request without an end.
fn endless(prompt: Vec<u32>) -> Request {
    Request { stop_tokens: Vec::new(), params: SamplerParams::greedy(), ..Request::new(prompt) }
}

#[test]
fn who_runs_is_cancelled_and_runs_out_of_time() {
    let packed = pack();
    let scheduler = start(&packed, options());
    let running = submit(&scheduler, endless(vec![1, 2])).unwrap();
    let mut heard = Heard::default();
    while heard.tokens.len() < 5 {
        heard.push(running.next());
    }
    running.ticket.cancel();
    while !heard.push(running.next()) {}
    assert_eq!(heard.end().reason, FinishReason::Cancelled);
    assert_eq!(heard.end().unfed, heard.tokens.last().copied());
    let late = run(&scheduler, Request { time_limit: Some(Duration::ZERO), ..endless(vec![1, 2]) });
    assert_eq!((late.end().reason, late.tokens.len()), (FinishReason::TimeLimit, 0));
    let limited = Request { time_limit: Some(Duration::from_millis(50)), ..endless(vec![1, 2]) };
    let limited = run(&scheduler, limited);
    assert_eq!(limited.end().reason, FinishReason::TimeLimit);
    assert!(heard.tokens.starts_with(&limited.tokens) || limited.tokens.starts_with(&heard.tokens));
}

#[test]
fn a_sink_that_breaks_or_panics_ends_its_own_session_alone() {
    let packed = pack();
    let scheduler = start(&packed, options());
    let beside = submit(&scheduler, Request { max_tokens: Some(40), ..endless(vec![7]) }).unwrap();
    for panics in [false, true] {
        let (sender, events) = channel();
        let sink = move |event| {
            let is_token = matches!(event, SessionEvent::Token { .. });
            sender.send(event).unwrap();
            assert!(!(is_token && panics), "as it was asked to");
            if is_token { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        scheduler.submit(endless(vec![1, 2]), Box::new(sink)).unwrap();
        let heard: Vec<_> = events.iter().collect();
        assert_eq!(heard.len(), 3, "nothing after the break: {heard:?}");
    }
    let mut model = open(&packed);
    let expected = alone(&mut model, &Request { max_tokens: Some(40), ..endless(vec![7]) });
    assert_eq!(beside.wait().tokens, expected.0);
    scheduler.clone().shutdown(Duration::from_secs(60));
    assert_eq!((scheduler.stats().cancelled, scheduler.stats().completed), (2, 1));
}

#[test]
fn a_shutdown_lets_run_what_ends_in_time_and_cancels_the_rest() {
    let packed = pack();
    let scheduler = start(&packed, SchedulerOptions { sessions: 2, ..options() });
    let endless: Vec<_> = (0..4).map(|i| submit(&scheduler, endless(vec![i])).unwrap()).collect();
    let SessionEvent::Started { .. } = endless[0].next() else { panic!("it starts first") };
    scheduler.clone().shutdown(Duration::from_millis(20));
    for running in endless {
        assert_eq!(running.wait().end().reason, FinishReason::Cancelled);
    }
    assert!(matches!(submit(&scheduler, Request::new(vec![1])), Err(SubmitError::Closed)));
    let scheduler = start(&packed, options());
    let short = submit(&scheduler, Request { max_tokens: Some(30), ..Request::new(vec![1]) }).unwrap();
    scheduler.shutdown(Duration::from_secs(60));
    let reason = short.wait().end().reason;
    assert!(matches!(reason, FinishReason::Length | FinishReason::StopToken(0)), "{reason:?}");
    // The last handle that is dropped closes it, and the engine ends by itself.
    let scheduler = start(&packed, options());
    let short = submit(&scheduler, Request { max_tokens: Some(3), ..Request::new(vec![1]) }).unwrap();
    drop(scheduler);
    assert!(short.wait().finished.is_some());
}
