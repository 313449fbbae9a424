//! Sessions that share too little memory for their keys and values.

mod support;

use std::thread;
use std::time::Duration;

use rwkv_kernels::Codec;
use rwkv_model::{
    Attention, Feed, FinishReason, Logits, Model, ModelOptions, Request, SamplerParams, Scheduler,
    SchedulerOptions,
};
use support::random::{Numbers, hybrid};
use support::sessions::{Heard, Running, alone, options, run, submit};
use support::{Packed, random_pack};

/// A model whose caches grow by blocks of 64 rows.
struct Lab {
    packed: Packed,
    vocab: usize,
    /// Bytes of a block.
    block: u64,
}

impl Lab {
    fn new(seed: u64) -> Lab {
        let config = hybrid(2, 1, 64, 16);
        let (_, packed) = random_pack(&config, seed, Codec::U8);
        let mut lab = Lab { packed, vocab: config.vocab, block: 0 };
        let mut free = lab.open(None, Attention::Full);
        let mut state = free.new_state();
        free.step(&mut [Feed::new(&mut state, &[1], Logits::None)]).unwrap();
        lab.block = free.kv_bytes();
        lab
    }

    /// With room for so many blocks.
    fn open(&self, blocks: Option<u64>, attention: Attention) -> Model {
        let kv_bytes = blocks.map_or(1 << 30, |blocks| blocks * self.block);
        let options = ModelOptions::default().threads(1).chunk_rows(32).attention(attention);
        Model::open(&self.packed.path, options.kv_bytes(kv_bytes)).unwrap()
    }

    fn scheduler(&self, blocks: u64, chosen: SchedulerOptions) -> Scheduler {
        Scheduler::start(self.open(Some(blocks), Attention::Full), chosen).unwrap()
    }

    /// A request whose text has no other end than its length, and that of its memory.
    fn request(&self, seed: u64, prompt: usize, max_tokens: Option<usize>) -> Request {
        let params = SamplerParams { seed: Some(seed), banned: vec![0], ..SamplerParams::default() };
        let prompt = Numbers::new(seed).tokens(prompt, self.vocab);
        Request { params, max_tokens, ..Request::new(prompt) }
    }
}

fn reason(heard: &Heard) -> FinishReason {
    heard.end().reason
}

#[test]
fn prompts_that_do_not_fit_together_are_read_one_after_another() {
    let lab = Lab::new(91);
    let mut free = lab.open(None, Attention::Full);
    for (prefix_cache_bytes, reuse) in [(0, false), (1 << 20, true)] {
        // Four blocks each, of which there are six.
        let scheduler = lab.scheduler(6, SchedulerOptions { prefix_cache_bytes, sessions: 8, ..options() });
        let requests: Vec<Request> =
            (1..=4).map(|seed| Request { reuse, ..lab.request(seed, 150, Some(100)) }).collect();
        let running: Vec<Running> =
            requests.iter().map(|request| submit(&scheduler, request.clone()).unwrap()).collect();
        for (running, request) in running.into_iter().zip(&requests) {
            let heard = running.wait();
            assert_eq!(reason(&heard), FinishReason::Length);
            assert_eq!((heard.tokens, heard.text), alone(&mut free, request));
        }
    }
}

#[test]
fn those_that_write_get_all_of_it_in_turn() {
    let lab = Lab::new(92);
    let mut free = lab.open(None, Attention::Full);
    let scheduler = lab.scheduler(12, SchedulerOptions { sessions: 3, ..options() });
    let requests: Vec<Request> =
        (1..=3).map(|seed| Request { logprobs: Some(1), ..lab.request(seed, 10, None) }).collect();
    let running: Vec<Running> =
        requests.iter().map(|request| submit(&scheduler, request.clone()).unwrap()).collect();
    for (running, request) in running.into_iter().zip(requests) {
        let heard = running.wait();
        // The state has not seen the last token.
        let count = 12 * 64 - 10 + 1;
        assert_eq!((reason(&heard), heard.tokens.len()), (FinishReason::Memory, count));
        assert_eq!(heard.tokens, alone(&mut free, &Request { max_tokens: Some(count), ..request }).0);
    }
}

#[test]
fn what_is_read_again_is_scored_once() {
    let lab = Lab::new(96);
    let request = |seed| Request {
        embedding: true,
        prompt_logprobs: Some(2),
        reuse: false,
        ..lab.request(seed, 230, Some(20))
    };
    let alone: Vec<Heard> = (1..=3).map(|seed| run(&lab.scheduler(6, options()), request(seed))).collect();
    let scheduler = lab.scheduler(6, options());
    let running: Vec<Running> = (1..=3).map(|seed| submit(&scheduler, request(seed)).unwrap()).collect();
    for (running, alone) in running.into_iter().zip(alone) {
        let heard = running.wait();
        assert_eq!(heard.tokens, alone.tokens);
        assert_eq!(heard.end().embedding, alone.end().embedding);
        assert_eq!(heard.end().prompt_logprobs, alone.end().prompt_logprobs);
    }
}

#[test]
fn nobody_is_put_off_by_those_that_come_later() {
    let lab = Lab::new(97);
    let scheduler = lab.scheduler(6, SchedulerOptions { sessions: 3, ..options() });
    let request = |seed| Request { reuse: false, ..lab.request(seed, 200, Some(50)) };
    let first = submit(&scheduler, request(1)).unwrap();
    let second = submit(&scheduler, request(2)).unwrap();
    let others: Vec<Running> = (3..20).map(|seed| submit(&scheduler, request(seed)).unwrap()).collect();
    assert_eq!(reason(&first.wait()), FinishReason::Length);
    assert_eq!(reason(&second.wait()), FinishReason::Length);
    // Of the rest hardly any can have ended: they come after it.
    let ended = scheduler.stats().completed;
    assert!(ended <= 4, "{ended} have ended");
    for other in others {
        assert_eq!(reason(&other.wait()), FinishReason::Length);
    }
}

#[test]
fn prompts_that_begin_alike_are_read_though_they_do_not_fit_together() {
    let lab = Lab::new(98);
    let mut free = lab.open(None, Attention::Full);
    for (blocks, prefix_cache_bytes) in [(6, 0), (6, 1 << 20), (5, 1 << 20)] {
        let scheduler =
            lab.scheduler(blocks, SchedulerOptions { prefix_cache_bytes, sessions: 4, ..options() });
        let common = Numbers::new(50).tokens(120, lab.vocab);
        run(&scheduler, Request { prompt: common.clone(), ..lab.request(1, 1, Some(1)) });
        let requests: Vec<Request> = [(100, 30), (100, 40), (150, 5), (150, 0), (30, 60), (150, 0)]
            .into_iter()
            .zip(10..)
            .map(|((shared, own), seed)| {
                let mut prompt = common.clone();
                prompt.extend(Numbers::new(51).tokens(shared, lab.vocab));
                prompt.extend(Numbers::new(seed).tokens(own, lab.vocab));
                Request { prompt, ..lab.request(seed, 1, Some(20)) }
            })
            .collect();
        let running: Vec<Running> =
            requests.iter().map(|request| submit(&scheduler, request.clone()).unwrap()).collect();
        for (running, request) in running.into_iter().zip(&requests) {
            let heard = running.wait();
            assert_eq!(reason(&heard), FinishReason::Length, "{blocks} blocks");
            assert_eq!((heard.tokens, heard.text), alone(&mut free, request), "{blocks} blocks");
        }
    }
}

#[test]
fn memory_in_other_hands_is_waited_for() {
    let lab = Lab::new(93);
    let scheduler = lab.scheduler(6, options());
    let kept = Request { keep_state: true, ..lab.request(1, 100, Some(20)) };
    let state = run(&scheduler, kept).finished.expect("it ends").state.expect("a state");
    let running = submit(&scheduler, lab.request(2, 10, None)).unwrap();
    thread::sleep(Duration::from_millis(300));
    drop(state);
    assert_eq!(running.wait().tokens.len(), 6 * 64 - 10 + 1, "all of the room was its own");
    // Nobody waits forever.
    let state = run(&scheduler, Request { keep_state: true, ..lab.request(3, 100, Some(20)) }).finished;
    let heard = run(&scheduler, lab.request(4, 10, None));
    assert_eq!((reason(&heard), heard.tokens.len()), (FinishReason::Memory, 4 * 64 - 10 + 1));
    drop(state);
}

#[test]
fn states_on_their_way_to_the_disk_are_waited_for() {
    let lab = Lab::new(94);
    let dir = tempfile::tempdir().unwrap();
    let spill = Some(dir.path().to_owned());
    let chosen = SchedulerOptions { prefix_cache_bytes: 1 << 20, spill, ..options() };
    let scheduler = lab.scheduler(6, chosen);
    for seed in 1..=6 {
        let heard = run(&scheduler, Request { reuse: true, ..lab.request(seed, 120, None) });
        assert_eq!((reason(&heard), heard.tokens.len()), (FinishReason::Memory, 6 * 64 - 120 + 1), "{seed}");
    }
}

#[test]
fn a_window_with_just_enough_room_never_ends() {
    let lab = Lab::new(95);
    let model = lab.open(Some(3), Attention::Window(100));
    let scheduler = Scheduler::start(model, options()).unwrap();
    let heard = run(&scheduler, lab.request(1, 500, Some(700)));
    assert_eq!((reason(&heard), heard.tokens.len()), (FinishReason::Length, 700));
    let mut free = lab.open(None, Attention::Window(100));
    assert_eq!(heard.tokens, alone(&mut free, &lab.request(1, 500, Some(700))).0);
}

#[test]
fn the_next_turn_goes_on_from_a_state_that_has_all_the_memory() {
    let lab = Lab::new(99);
    let scheduler = lab.scheduler(6, SchedulerOptions { prefix_cache_bytes: 1 << 20, ..options() });
    let turn = lab.request(1, 120, Some(100));
    let heard = run(&scheduler, turn.clone());
    let mut prompt = [turn.prompt, heard.tokens].concat();
    prompt.extend(Numbers::new(2).tokens(10, lab.vocab));
    let heard = run(&scheduler, Request { prompt, ..lab.request(3, 1, Some(20)) });
    assert_eq!((reason(&heard), heard.reused), (FinishReason::Length, Some(219)));
    assert_eq!(scheduler.stats().prefix.hits, 1);
}

#[test]
fn what_was_waited_for_in_vain_is_forgotten_when_it_is_back() {
    let lab = Lab::new(100);
    let scheduler = lab.scheduler(6, options());
    let kept = |seed| {
        let request = Request { keep_state: true, ..lab.request(seed, 100, Some(20)) };
        run(&scheduler, request).finished.expect("it ends").state.expect("a state")
    };
    let state = kept(1);
    assert_eq!(run(&scheduler, lab.request(2, 10, None)).tokens.len(), 4 * 64 - 10 + 1);
    drop(state);
    run(&scheduler, lab.request(3, 10, Some(5)));
    let state = kept(4);
    let running = submit(&scheduler, lab.request(5, 10, None)).unwrap();
    thread::sleep(Duration::from_millis(300));
    drop(state);
    assert_eq!(running.wait().tokens.len(), 6 * 64 - 10 + 1);
}
