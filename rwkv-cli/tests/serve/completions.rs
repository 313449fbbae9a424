//! Text completions, whole.

use serde_json::{Value, json};

use crate::server::Server;
#[cfg(feature = "demo")]
use crate::support::Lab;

fn greedy(prompt: Value, more: Value) -> Value {
    let mut request = json!({
        "prompt": prompt, "max_tokens": 6, "temperature": 0,
        "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": { "0": -100 },
    });
    for (name, value) in more.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

#[test]
fn answers_end_where_keys_and_values_have_no_room() {
    let lab = crate::support::Lab::new();
    lab.hybrid("x.rwkv");
    let server = Server::of_model(lab, "x.rwkv --vocab tiny.vocab --sessions 3 --kv-ram 100KB");
    server.wait_for("ready: ");
    let path = "/v1/completions";
    let whole = server.post(path, greedy(json!("hello"), json!({ "max_tokens": null }))).ok();
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    let most = whole["usage"]["completion_tokens"].as_u64().expect("a number");
    assert!(most > 60, "{most} tokens");
    // Each of several gets as much, one after another.
    let all = server.post(path, greedy(json!("hello"), json!({ "max_tokens": null, "n": 3 }))).ok();
    for choice in all["choices"].as_array().expect("a list") {
        assert_eq!(
            (&choice["finish_reason"], &choice["text"]),
            (&"length".into(), &whole["choices"][0]["text"])
        );
    }
    let long = server.post(path, greedy(json!("a".repeat(5000)), json!({})));
    long.fails(400, None, "5000 tokens need 2588672 bytes of keys and values");
    assert_eq!(long.json()["error"]["code"], "context_length_exceeded");
}

#[test]
fn scores_of_prompts_have_a_limit() {
    let server = Server::start("");
    let more = json!({ "echo": true, "logprobs": 20, "max_tokens": 0 });
    let long = server.post("/v1/completions", greedy(json!(vec![98; 4000]), more.clone()));
    long.fails(400, Some("logprobs"), "84000 log probabilities of prompts are asked for");
    server.post("/v1/completions", greedy(json!(vec![98; 400]), more)).ok();
}

#[test]
fn a_completion_is_what_the_program_runs() {
    let server = Server::start("");
    let answer = server.post("/v1/completions", greedy(json!("hello"), json!({ "max_tokens": 12 }))).ok();
    assert_eq!(answer["object"], "text_completion");
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["index"], &choice["finish_reason"], &choice["logprobs"]),
        (&json!(0), &json!("length"), &Value::Null)
    );
    let run = "run tiny.rwkv --vocab tiny.vocab --prompt hello -n 12 --greedy --ban-token 0 --quiet";
    let text = server.lab.run(run).ok().stdout;
    assert_eq!(choice["text"], json!(String::from_utf8_lossy(&text).trim_end_matches('\n')));
    let again = server.post("/v1/completions", greedy(json!("other"), json!({}))).ok();
    assert_eq!(again["usage"]["prompt_tokens"], 5);
    let same = server.post("/v1/completions", greedy(json!("hello"), json!({ "max_tokens": 12 }))).ok();
    assert_eq!(same["choices"], answer["choices"], "sessions do not meet");
}

#[test]
fn prompts_of_every_kind() {
    let server = Server::start("");
    let texts = |prompt: Value, more: Value| -> Vec<String> {
        let answer = server.post("/v1/completions", greedy(prompt, more)).ok();
        let choices = answer["choices"].as_array().expect("choices").iter();
        choices.map(|choice| choice["text"].as_str().expect("text").to_owned()).collect()
    };
    let one = texts(json!("hello"), json!({}));
    assert_eq!(texts(json!(["hello"]), json!({})), one);
    let tokens = server.post("/tokenize", json!({ "content": "hello" })).ok()["tokens"].clone();
    assert_eq!(texts(tokens.clone(), json!({})), one);
    assert_eq!(texts(json!([tokens, tokens]), json!({})), [one.clone(), one.clone()].concat());
    let both = texts(json!(["hello", "other"]), json!({ "n": 2, "best_of": 2 }));
    assert_eq!(both.len(), 4);
    assert_eq!((&both[0], &both[1]), (&one[0], &one[0]));
    assert_eq!(both[2], both[3]);
    // Nothing is the beginning of a document, which is token 0.
    let nothing = texts(json!([0]), json!({}));
    for empty in [json!(""), json!([""]), Value::Null] {
        assert_eq!(texts(empty, json!({})), nothing);
    }
    server.post("/v1/completions", greedy(json!([]), json!({}))).fails(400, Some("prompt"), "empty list");
}

#[test]
fn the_prompt_is_repeated_and_scored() {
    let server = Server::start("");
    let more = json!({ "echo": true, "logprobs": 1, "max_tokens": 2 });
    let answer = server.post("/v1/completions", greedy(json!("hé"), more)).ok();
    let choice = &answer["choices"][0];
    let logprobs = &choice["logprobs"];
    let tokens = logprobs["tokens"].as_array().expect("tokens");
    // `h`, the two bytes of `é`, and two tokens more.
    assert_eq!(tokens.len(), 5);
    assert_eq!(tokens[..3], [json!("h"), json!("bytes:\\xc3"), json!("bytes:\\xa9")]);
    assert_eq!(logprobs["token_logprobs"][0], Value::Null);
    assert_eq!(logprobs["top_logprobs"][0], Value::Null);
    assert!(logprobs["token_logprobs"][1].as_f64().expect("a number") < 0.0);
    let offsets = logprobs["text_offset"].as_array().expect("offsets");
    assert_eq!(offsets[..4], [json!(0), json!(1), json!(2), json!(2)]);
    assert!(choice["text"].as_str().expect("text").starts_with("hé"));

    // What the harnesses of benchmarks ask for: the prompt alone, scored.
    let alone = json!({ "echo": true, "logprobs": 1, "max_tokens": 0 });
    let answer = server.post("/v1/completions", greedy(json!("hé"), alone)).ok();
    assert_eq!(answer["choices"][0]["text"], "hé");
    let scores = answer["choices"][0]["logprobs"]["token_logprobs"].as_array().expect("scores");
    assert_eq!(scores[..], logprobs["token_logprobs"].as_array().expect("scores")[..3]);
    let lines = server.lab.run_args(&["logits", "tiny.rwkv", "--vocab", "tiny.vocab", "-p", "h"]).ok().json();
    let row: Vec<f64> =
        lines["logits"][0].as_array().expect("a row").iter().filter_map(Value::as_f64).collect();
    let total: f64 = row.iter().map(|logit| logit.exp()).sum();
    // Token 196 is the byte C3.
    let expected = (row[196].exp() / total).ln();
    assert!((scores[1].as_f64().expect("a number") - expected).abs() < 1e-4);

    let echoed = server.post("/v1/completions", greedy(json!("hello"), json!({ "echo": true }))).ok();
    assert!(echoed["choices"][0]["text"].as_str().expect("text").starts_with("hello"));
    // A character that the prompt begins, and the answer ends: token 170 is the byte A9 of `é`.
    let cut = json!({ "echo": true, "max_tokens": 1, "logit_bias": { "170": 100 } });
    let answer = server.post("/v1/completions", greedy(json!([105, 196]), cut)).ok();
    assert_eq!(answer["choices"][0]["text"], "hé");
    let stream = json!({ "echo": true, "logprobs": 1, "stream": true });
    server.post("/v1/completions", greedy(json!("x"), stream)).fails(400, Some("logprobs"), "stream: false");
}

#[test]
fn numbers_of_tokens_need_no_memory_beforehand() {
    let server = Server::start("");
    let endless = json!({ "max_tokens": 4_294_967_295u64, "stop": "aa", "logit_bias": { "98": 100 } });
    let answer = server.post("/v1/completions", greedy(json!("x"), endless)).ok();
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let beyond =
        json!({ "max_tokens": 18_446_744_073_709_551_615u64, "stop": "aa", "logit_bias": { "98": 100 } });
    server.post("/v1/completions", greedy(json!("x"), beyond)).ok();
    server.post("/v1/completions", greedy(json!("x"), json!({ "max_tokens": -1 }))).fails(
        400,
        Some("max_tokens"),
        "-1",
    );
    let bounded = Server::start("--max-tokens 4");
    for most in [json!(null), json!(9), json!(4)] {
        let request = greedy(json!("x"), json!({ "max_tokens": most }));
        assert_eq!(bounded.post("/v1/completions", request).ok()["usage"]["completion_tokens"], 4);
    }
}

#[test]
fn a_bias_forbids_forces_and_leaves_the_rest() {
    let server = Server::start("");
    let text = |bias: Value| {
        let answer = server
            .post("/v1/completions", greedy(json!("hello"), json!({ "logit_bias": bias, "max_tokens": 1 })))
            .ok();
        answer["choices"][0]["text"].as_str().expect("text").to_owned()
    };
    assert_eq!(text(json!({ "262": 100 })), "    ");
    assert_eq!(text(json!({ "98": 100, "99": 80 })), "a");
    assert_eq!(text(json!({ "98": -100, "99": 80 })), "b");
}

#[test]
#[cfg(feature = "demo")]
fn the_demo_model_has_defaults_of_its_own() {
    let server = Server::of_model(Lab::empty(), "demo");
    server.wait_for("ready: ");
    let text = |more: Value| {
        let mut request = json!({ "prompt": "The state of the Union is", "max_tokens": 24, "seed": 3 });
        for (name, value) in more.as_object().expect("an object") {
            request[name] = value.clone();
        }
        server.post("/v1/completions", request).ok()["choices"][0]["text"].clone()
    };
    let run = "run --prompt The:state:of:the:Union:is -n 24 --seed 3 --quiet";
    let args: Vec<String> = run.split(' ').map(|arg| arg.replace(':', " ")).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let told = String::from_utf8(server.lab.run_args(&args).ok().stdout).expect("text");
    assert_eq!(text(json!({})), json!(told.trim_end_matches('\n')));
    let own = json!({ "top_p": 0.5, "presence_penalty": 0, "frequency_penalty": 0 });
    assert_eq!(text(own), text(json!({})));
    assert_ne!(
        text(json!({ "top_p": 1, "temperature": 2 })),
        text(json!({})),
        "what is asked for comes first"
    );
    let chat = json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 24, "seed": 3 });
    let mut explicit = chat.clone();
    (explicit["top_p"], explicit["presence_penalty"]) = (json!(0.5), json!(0));
    explicit["frequency_penalty"] = json!(0);
    let said = |request: Value| server.post("/v1/chat/completions", request).ok()["choices"].clone();
    assert_eq!(said(chat), said(explicit));
}
