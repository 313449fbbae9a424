//! Generation: limits, stop tokens and strings, cancellation, and sessions that end and go on.

mod support;

use std::ops::ControlFlow;

use rwkv_kernels::Codec;
use rwkv_model::{
    ErrorKind, Event, Feed, FinishReason, GenerateOptions, Generated, Logits, Model, ModelError,
    ModelOptions, Sampler, SamplerParams, State,
};
use support::random::{Numbers, config};
use support::{Packed, random_pack};

fn setup() -> (Packed, Model) {
    let config = config(2, 2, 16);
    let (_, packed) = random_pack(&config, 41, Codec::U8);
    let model = Model::open(&packed.path, ModelOptions::default().threads(1).chunk_rows(4)).unwrap();
    (packed, model)
}

/// Every token is two letters, so that a text is as long as its tokens say.
fn letters(token: u32, out: &mut Vec<u8>) {
    out.extend([b'a' + (token / 26) as u8, b'a' + (token % 26) as u8]);
}

fn text_of(tokens: &[u32]) -> Vec<u8> {
    let mut text = Vec::new();
    tokens.iter().for_each(|&token| letters(token, &mut text));
    text
}

fn options(max_tokens: Option<usize>) -> GenerateOptions<'static> {
    GenerateOptions { max_tokens, stop_tokens: Vec::new(), ..GenerateOptions::new(&letters) }
}

/// A sampler that never repeats itself for long, without chance.
fn sampler(model: &Model) -> Sampler {
    let params = SamplerParams { presence: 2.0, frequency: 2.0, ..SamplerParams::greedy() };
    Sampler::new(params, model.config().vocab).unwrap()
}

/// Generates, and returns what the callback saw as text.
fn generate(
    model: &mut Model,
    state: &mut State,
    prompt: &[u32],
    options: &GenerateOptions<'_>,
) -> Result<(Generated, Vec<u8>), ModelError> {
    let mut text = Vec::new();
    let mut sampler = sampler(model);
    let generated = model.generate(state, prompt, &mut sampler, options, &mut |event| {
        if let Event::Token { bytes, .. } | Event::Rest { bytes } = event {
            text.extend_from_slice(bytes);
        }
        ControlFlow::Continue(())
    })?;
    Ok((generated, text))
}

const PROMPT: [u32; 7] = [5, 9, 33, 2, 2, 60, 1];

#[test]
fn the_limit_is_kept_and_the_state_says_what_it_saw() {
    let (_packed, mut model) = setup();
    for limit in [1, 2, 9] {
        let mut state = model.new_state();
        let (generated, text) = generate(&mut model, &mut state, &PROMPT, &options(Some(limit))).unwrap();
        assert_eq!((generated.tokens.len(), generated.finish), (limit, FinishReason::Length));
        assert_eq!(generated.unfed, generated.tokens.last().copied());
        assert_eq!(state.tokens(), (PROMPT.len() + limit - 1) as u64);
        assert_eq!(text, text_of(&generated.tokens));
    }
}

#[test]
fn going_on_with_the_unfed_token_is_going_on() {
    let (_packed, mut model) = setup();
    let run = |model: &mut Model, state: &mut State, prompt: &[u32], limit: usize, sampler: &mut Sampler| {
        let mut go_on = |_: Event<'_>| ControlFlow::Continue(());
        model.generate(state, prompt, sampler, &options(Some(limit)), &mut go_on).unwrap()
    };
    let mut whole_state = model.new_state();
    let mut one = sampler(&model);
    let whole = run(&mut model, &mut whole_state, &PROMPT, 12, &mut one).tokens;
    let mut state = model.new_state();
    let mut two = sampler(&model);
    let first = run(&mut model, &mut state, &PROMPT, 5, &mut two);
    let second = run(&mut model, &mut state, &[first.unfed.unwrap()], 7, &mut two);
    assert_eq!([first.tokens, second.tokens].concat(), whole);
    assert!(state == whole_state);
}

#[test]
fn a_limit_of_zero_only_feeds_the_prompt() {
    let (_packed, mut model) = setup();
    let mut state = model.new_state();
    let (generated, text) = generate(&mut model, &mut state, &PROMPT, &options(Some(0))).unwrap();
    assert_eq!(generated.finish, FinishReason::Length);
    assert!(generated.tokens.is_empty() && generated.unfed.is_none() && text.is_empty());
    let mut fed = model.new_state();
    model.step(&mut [Feed::new(&mut fed, &PROMPT, Logits::None)]).unwrap();
    assert!(state == fed);
    let (generated, _) = generate(&mut model, &mut state, &[], &options(Some(0))).unwrap();
    assert_eq!(generated.finish, FinishReason::Length);
    assert!(state == fed, "an empty prompt feeds nothing");
}

#[test]
fn a_huge_limit_allocates_nothing_for_it() {
    let (_packed, mut model) = setup();
    let mut state = model.new_state();
    let first = generate(&mut model, &mut state, &PROMPT, &options(Some(4))).unwrap().0.tokens;
    for limit in [None, Some(usize::MAX), Some(u32::MAX as usize)] {
        let options = GenerateOptions { stop_tokens: vec![first[3]], ..options(limit) };
        let mut state = model.new_state();
        let (generated, _) = generate(&mut model, &mut state, &PROMPT, &options).unwrap();
        assert_eq!(generated.tokens, first[..3]);
        assert_eq!(generated.finish, FinishReason::StopToken(first[3]));
        assert_eq!(generated.unfed, None);
        assert_eq!(state.tokens(), (PROMPT.len() + 3) as u64);
    }
}

#[test]
fn stop_strings_are_found_across_tokens_and_never_sent() {
    let (_packed, mut model) = setup();
    let mut state = model.new_state();
    let tokens = generate(&mut model, &mut state, &PROMPT, &options(Some(8))).unwrap().0.tokens;
    let text = text_of(&tokens);
    // From the middle of one token to the middle of the token after the next.
    let stop = text[5..10].to_vec();
    assert_eq!(text.windows(5).position(|window| window == stop), Some(5), "the stop string is unique");
    let with = |stops: Vec<Vec<u8>>| GenerateOptions { stop_strings: stops, ..options(Some(8)) };
    let mut state = model.new_state();
    let (generated, sent) =
        generate(&mut model, &mut state, &PROMPT, &with(vec![b"never".to_vec(), stop.clone()])).unwrap();
    assert_eq!(generated.finish, FinishReason::StopString(1));
    assert_eq!(sent, text[..5]);
    assert_eq!(generated.tokens, tokens[..5]);
    assert_eq!(generated.unfed, Some(tokens[4]));
    // Held back at the end, and then sent after all.
    let mut longer = text[13..].to_vec();
    longer.push(b'!');
    let mut state = model.new_state();
    let (generated, sent) = generate(&mut model, &mut state, &PROMPT, &with(vec![longer])).unwrap();
    assert_eq!((generated.finish, sent), (FinishReason::Length, text));
    let mut state = model.new_state();
    let error = generate(&mut model, &mut state, &PROMPT, &with(vec![Vec::new()])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Parameter);
    assert!(state == model.new_state(), "nothing was fed");
}

#[test]
fn the_callback_ends_it_at_any_event() {
    let (_packed, mut model) = setup();
    let mut state = model.new_state();
    let whole = generate(&mut model, &mut state, &PROMPT, &options(Some(6))).unwrap().0.tokens;
    // The prompt of 7 tokens is fed in sweeps of 4 rows: events 0 and 1; then come the tokens.
    for stop_at in 0..6 {
        let mut state = model.new_state();
        let mut sampler = sampler(&model);
        let mut events = 0;
        let generated = model
            .generate(&mut state, &PROMPT, &mut sampler, &options(Some(6)), &mut |event| {
                if events < 2 {
                    let done = [4, 7][events];
                    assert_eq!(event, Event::Prefill { done, total: 7 });
                }
                events += 1;
                if events > stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        assert_eq!(events, stop_at + 1, "no event after the break");
        assert_eq!(generated.finish, FinishReason::Cancelled);
        assert_eq!(generated.tokens, whole[..(stop_at + 1).saturating_sub(2)]);
        let fed = [4, 7, 7, 8, 9, 10][stop_at];
        assert_eq!(state.tokens(), fed as u64, "cancelled at event {stop_at}");
        // The model is not disturbed by it.
        let mut again = model.new_state();
        assert_eq!(generate(&mut model, &mut again, &PROMPT, &options(Some(6))).unwrap().0.tokens, whole);
    }
}

#[test]
fn bad_requests_are_refused_before_anything_is_fed() {
    let (_packed, mut model) = setup();
    let vocab = model.config().vocab as u32;
    let mut state = model.new_state();
    for (prompt, kind) in [
        (vec![], ErrorKind::Parameter),
        (vec![1, 2, 3, 4, 5, vocab], ErrorKind::Token),
        (vec![65535, 1], ErrorKind::Token),
        (vec![u32::MAX], ErrorKind::Token),
    ] {
        for limit in [Some(3), None] {
            let error = generate(&mut model, &mut state, &prompt, &options(limit)).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
        }
        assert!(state == model.new_state(), "untouched by {prompt:?}");
    }
    let mut other = Sampler::new(SamplerParams::default(), vocab as usize + 1).unwrap();
    let mut go_on = |_: Event<'_>| ControlFlow::Continue(());
    let error = model.generate(&mut state, &PROMPT, &mut other, &options(None), &mut go_on).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Parameter, "a tokenizer's vocabulary is not the model's");
    assert!(state == model.new_state());
}

#[test]
fn chance_in_one_session_does_not_touch_another() {
    let (_packed, mut model) = setup();
    let seeded = |seed: u64| SamplerParams { seed: Some(seed), temperature: 1.5, ..SamplerParams::default() };
    let vocab = model.config().vocab;
    let prompts = [Numbers::new(5).tokens(3, vocab), Numbers::new(6).tokens(9, vocab)];
    let params = [SamplerParams::greedy(), seeded(77)];
    let mut alone = Vec::new();
    for (prompt, params) in prompts.iter().zip(&params) {
        let mut sampler = Sampler::new(params.clone(), vocab).unwrap();
        let mut state = model.new_state();
        let mut go_on = |_: Event<'_>| ControlFlow::Continue(());
        alone.push(
            model.generate(&mut state, prompt, &mut sampler, &options(Some(10)), &mut go_on).unwrap().tokens,
        );
    }
    let mut samplers = params.map(|params| Sampler::new(params, vocab).unwrap());
    let mut states = [model.new_state(), model.new_state()];
    let mut next = prompts.clone();
    let mut together = [Vec::new(), Vec::new()];
    for _ in 0..10 {
        let mut feeds: Vec<Feed<'_>> = states
            .iter_mut()
            .zip(&next)
            .map(|(state, tokens)| Feed::new(state, tokens, Logits::Last))
            .collect();
        let output = model.step(&mut feeds).unwrap();
        for (i, sampler) in samplers.iter_mut().enumerate() {
            let token = sampler.sample(output.logits(i)).unwrap();
            sampler.accept(token);
            together[i].push(token);
            next[i] = vec![token];
        }
    }
    assert_eq!(together.to_vec(), alone);
}
