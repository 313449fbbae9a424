//! The sampler against the reference pipeline's distributions, and every edge value.

mod support;

use rwkv_model::{ErrorKind, Sampler, SamplerParams, is_uncounted_text};
use support::oracle_json;

fn neutral() -> SamplerParams {
    SamplerParams { top_p: 1.0, presence: 0.0, frequency: 0.0, seed: Some(7), ..SamplerParams::default() }
}

fn sampler(params: SamplerParams, vocab: usize) -> Sampler {
    Sampler::new(params, vocab).expect("valid parameters")
}

#[test]
fn distributions_agree_with_the_reference_pipeline() {
    let Some(vectors) = oracle_json("sampler/vectors.json") else { return };
    let cases = vectors["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 192);
    let mut failures = Vec::new();
    for case in cases {
        let number = |name: &str| case[name].as_f64().unwrap();
        let logits: Vec<f32> =
            serde_json::from_value(vectors["logits"][case["logits"].as_str().unwrap()].clone()).unwrap();
        let params = SamplerParams {
            temperature: number("temperature") as f32,
            top_p: number("top_p") as f32,
            top_k: number("top_k") as usize,
            ..neutral()
        };
        let found = sampler(params, logits.len()).distribution(&logits).unwrap();
        let expected = case.get("intended").unwrap_or(&case["probs"]).as_object().unwrap();
        let agrees = found.len() == expected.len()
            && found.iter().all(|(token, p)| {
                expected.get(&token.to_string()).is_some_and(|e| (e.as_f64().unwrap() - p).abs() < 1e-5)
            });
        if !agrees {
            failures.push(format!("{case}: found {found:?}"));
        }
    }
    assert!(failures.is_empty(), "{} of 192 differ:\n{}", failures.len(), failures.join("\n"));
}

/// The definition, in f64 and with a full sort.
fn defined(logits: &[f32], temperature: f64, top_p: f64, top_k: usize) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    let mut p: Vec<f64> = logits.iter().map(|&l| f64::from(l - max).exp()).collect();
    let total: f64 = p.iter().sum();
    p.iter_mut().for_each(|p| *p /= total);
    let mut sorted = p.clone();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let mut least: f64 = 0.0;
    if top_p < 1.0 {
        let mut sum = 0.0;
        let reached = sorted.iter().find(|&&p| {
            sum += p;
            sum >= top_p
        });
        least = reached.copied().unwrap_or(0.0);
    }
    if top_k > 0 && top_k < p.len() {
        least = least.max(sorted[top_k - 1]);
    }
    p.iter_mut().for_each(|p| *p = if *p < least { 0.0 } else { p.powf(1.0 / temperature) });
    let total: f64 = p.iter().sum();
    p.iter_mut().for_each(|p| *p /= total);
    p
}

#[test]
fn partial_sorting_changes_nothing() {
    let vocab = 5000;
    let mut word = 1u64;
    let mut next = move || {
        word = word.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (word >> 40) as f32 / (1u64 << 24) as f32
    };
    for spread in [0.01, 1.0, 6.0, 30.0, 200.0] {
        let logits: Vec<f32> = (0..vocab).map(|_| (next() + next() + next() - 1.5) * spread).collect();
        for top_p in [0.1, 0.5, 0.9, 0.999, 1.0] {
            for top_k in [0, 2, 17, 1000, 4999, 5000, usize::MAX] {
                for temperature in [0.3, 1.0, 3.0] {
                    let params = SamplerParams { temperature, top_p, top_k, ..neutral() };
                    let found = sampler(params, vocab).distribution(&logits).unwrap();
                    let expected = defined(&logits, f64::from(temperature), f64::from(top_p), top_k);
                    let mut dense = vec![0.0; vocab];
                    found.iter().for_each(|&(token, p)| dense[token as usize] = p);
                    for (token, (found, expected)) in dense.iter().zip(&expected).enumerate() {
                        assert!(
                            (found - expected).abs() < 2e-5,
                            "spread {spread} top_p {top_p} top_k {top_k} t {temperature}: token {token} {found} {expected}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn edge_values_mean_what_is_documented() {
    let logits = [0.5, 2.0, 1.0, 2.0, -1.0];
    let greedy = [
        ("temperature 0", SamplerParams { temperature: 0.0, ..neutral() }),
        ("temperature 1e-30", SamplerParams { temperature: 1e-30, top_k: 1, ..neutral() }),
        ("top_p 0", SamplerParams { top_p: 0.0, ..neutral() }),
        ("top_k 1", SamplerParams { top_k: 1, ..neutral() }),
        ("temperature 0 wins over top_p", SamplerParams { temperature: 0.0, top_p: 1.0, ..neutral() }),
    ];
    for (name, params) in greedy {
        let mut sampler = sampler(params, 5);
        let chosen: Vec<u32> = (0..50).map(|_| sampler.sample(&logits).unwrap()).collect();
        assert_eq!(chosen, vec![1; 50], "{name}: the lowest of the likeliest");
    }
    let mut cold = sampler(SamplerParams { temperature: 1e-30, ..neutral() }, 5);
    let chosen: Vec<u32> = (0..50).map(|_| cold.sample(&logits).unwrap()).collect();
    assert!(chosen.iter().all(|token| [1, 3].contains(token)), "{chosen:?}");
    let hot = sampler(SamplerParams { temperature: 1e30, ..neutral() }, 5).distribution(&logits).unwrap();
    assert!(hot.iter().all(|(_, p)| (p - 0.2).abs() < 1e-6), "{hot:?}");
    for top_p in [1.0, 1.5, f32::MAX] {
        let all = sampler(SamplerParams { top_p, ..neutral() }, 5).distribution(&logits).unwrap();
        assert_eq!(all.len(), 5, "top_p {top_p} cuts nothing");
    }
    for top_k in [0, 5, 6, usize::MAX] {
        let all = sampler(SamplerParams { top_k, ..neutral() }, 5).distribution(&logits).unwrap();
        assert_eq!(all.len(), 5, "top_k {top_k} cuts nothing");
    }
}

#[test]
fn bad_parameters_are_refused() {
    let bad = [
        (
            "temperature is NaN; expected a finite number of at least 0",
            SamplerParams { temperature: f32::NAN, ..neutral() },
        ),
        (
            "temperature is -1; expected a finite number of at least 0",
            SamplerParams { temperature: -1.0, ..neutral() },
        ),
        (
            "temperature is inf; expected a finite number of at least 0",
            SamplerParams { temperature: f32::INFINITY, ..neutral() },
        ),
        ("top_p is -0.1; expected a finite number of at least 0", SamplerParams { top_p: -0.1, ..neutral() }),
        (
            "top_p is NaN; expected a finite number of at least 0",
            SamplerParams { top_p: f32::NAN, ..neutral() },
        ),
        (
            "presence penalty is NaN; expected a finite number",
            SamplerParams { presence: f32::NAN, ..neutral() },
        ),
        (
            "frequency penalty is -inf; expected a finite number",
            SamplerParams { frequency: f32::NEG_INFINITY, ..neutral() },
        ),
        ("penalty decay is 1.5; expected 0 to 1", SamplerParams { decay: 1.5, ..neutral() }),
        (
            "logit bias for token 5; expected tokens below 5",
            SamplerParams { logit_bias: vec![(5, 1.0)], ..neutral() },
        ),
        (
            "logit bias of token 4 is NaN; expected a finite number",
            SamplerParams { logit_bias: vec![(4, f32::NAN)], ..neutral() },
        ),
        (
            "banned token 4294967295; expected tokens below 5",
            SamplerParams { banned: vec![u32::MAX], ..neutral() },
        ),
    ];
    for (message, params) in bad {
        let error = Sampler::new(params, 5).expect_err(message);
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Parameter, message));
    }
}

#[test]
fn logits_that_allow_no_choice_are_errors() {
    let cases: [(&[f32], &str); 4] = [
        (&[0.0, f32::NAN], "logit of token 1 is NaN; expected a number"),
        (&[f32::INFINITY, 0.0], "logit of token 0 is inf; expected a number"),
        (&[f32::NEG_INFINITY; 2], "every token is banned or has a logit of -inf; expected one to choose"),
        (&[0.0; 3], "3 logits for a vocabulary of 2"),
    ];
    for (logits, message) in cases {
        for params in [neutral(), SamplerParams::greedy()] {
            assert_eq!(sampler(params, 2).sample(logits).unwrap_err().to_string(), message);
        }
    }
    let all = SamplerParams { banned: vec![0, 1], ..neutral() };
    assert_eq!(sampler(all, 2).sample(&[0.0; 2]).unwrap_err().kind(), ErrorKind::NonFinite);
}

#[test]
fn negative_infinity_is_never_drawn() {
    let mut sampler = sampler(SamplerParams { temperature: 1e30, ..neutral() }, 3);
    for _ in 0..200 {
        assert_ne!(sampler.sample(&[0.0, f32::NEG_INFINITY, -5.0]).unwrap(), 1);
    }
}

#[test]
fn bias_moves_one_token_and_leaves_the_others() {
    let logits = [1.0, 0.5, 0.0];
    let up = SamplerParams { logit_bias: vec![(2, 100.0)], ..neutral() };
    assert_eq!(sampler(up, 3).distribution(&logits).unwrap(), vec![(2, 1.0)]);
    let down = SamplerParams { logit_bias: vec![(0, -100.0)], ..neutral() };
    let left = sampler(down, 3).distribution(&logits).unwrap();
    let ratio = left.iter().find(|(t, _)| *t == 1).unwrap().1 / left.iter().find(|(t, _)| *t == 2).unwrap().1;
    assert!((ratio - 0.5f64.exp()).abs() < 1e-5, "{left:?}");
    let banned = SamplerParams { banned: vec![0], logit_bias: vec![(0, 1000.0)], ..neutral() };
    assert!(sampler(banned, 3).distribution(&logits).unwrap().iter().all(|(token, _)| *token != 0));
}

#[test]
fn penalties_lower_negative_logits_too() {
    let params = SamplerParams { presence: 1.0, frequency: 0.5, decay: 1.0, ..neutral() };
    let mut sampler = sampler(params, 2);
    sampler.accept(0);
    sampler.accept(1);
    sampler.accept(1);
    let logits = [-2.0f32, 3.0];
    let found = sampler.distribution(&logits).unwrap();
    let expected = [(-2.0 - 1.5f64).exp(), (3.0 - 2.0f64).exp()];
    let total: f64 = expected.iter().sum();
    for ((_, p), e) in found.iter().zip(expected) {
        assert!((p - e / total).abs() < 1e-6, "{found:?}");
    }
}

#[test]
fn spared_tokens_count_for_presence_only() {
    let params = SamplerParams { presence: 1.0, frequency: 10.0, ..neutral() };
    let mut sampler = sampler(params, 2).uncounted(|token| token == 0);
    for _ in 0..5 {
        sampler.accept(0);
    }
    let found = sampler.distribution(&[1.0, 0.0]).unwrap();
    assert!((found[0].1 - 0.5).abs() < 1e-6, "{found:?}");
}

#[test]
fn spared_texts_are_parts_of_blanks_and_digits() {
    for (text, spared) in [
        ("", true),
        (" ", true),
        ("\t", true),
        ("7", true),
        ("123", true),
        (" \t0", true),
        ("21", false),
        ("a", false),
        ("  ", false),
    ] {
        assert_eq!(is_uncounted_text(text.as_bytes()), spared, "{text:?}");
    }
}

#[test]
fn a_seed_fixes_the_tokens_for_good() {
    let logits: Vec<f32> = (0..40).map(|i| (i % 7) as f32 * 0.5).collect();
    let mut first = sampler(SamplerParams { seed: Some(42), ..neutral() }, 40);
    let drawn: Vec<u32> = (0..12).map(|_| first.sample(&logits).unwrap()).collect();
    let copy: Vec<u32> = {
        let mut again = sampler(SamplerParams { seed: Some(42), ..neutral() }, 40);
        (0..12).map(|_| again.sample(&logits).unwrap()).collect()
    };
    assert_eq!(drawn, copy);
    first.reset();
    assert_eq!(first.sample(&logits).unwrap(), drawn[0]);
    // Written down once: a later version must draw the same.
    assert_eq!(drawn, RECORDED);
    let mut other = sampler(SamplerParams { seed: None, ..neutral() }, 40);
    let mut replay = sampler(SamplerParams { seed: Some(other.seed()), ..neutral() }, 40);
    for _ in 0..20 {
        assert_eq!(other.sample(&logits).unwrap(), replay.sample(&logits).unwrap());
    }
}

const RECORDED: [u32; 12] = [33, 13, 39, 27, 32, 24, 6, 25, 10, 34, 20, 33];

#[test]
fn draws_follow_the_distribution() {
    let logits = [0.0, 1.0, 2.0];
    let mut sampler = sampler(neutral(), 3);
    let expected = sampler.distribution(&logits).unwrap();
    let mut counts = [0u32; 3];
    for _ in 0..30_000 {
        counts[sampler.sample(&logits).unwrap() as usize] += 1;
    }
    for (token, p) in expected {
        let share = f64::from(counts[token as usize]) / 30_000.0;
        assert!((share - p).abs() < 0.015, "token {token}: {share} of {p}");
    }
}
