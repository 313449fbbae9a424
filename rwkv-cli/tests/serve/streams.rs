//! Streams, byte by byte.

use serde_json::{Value, json};

use crate::http::data;
use crate::server::Server;

fn chat(more: Value) -> Value {
    let mut request = json!({
        "messages": [{ "role": "user", "content": "hello" }], "stream": true, "max_tokens": 3, "temperature": 0,
        "logit_bias": { "98": 100 }, "presence_penalty": 0, "frequency_penalty": 0,
    });
    for (name, value) in more.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

fn parts(server: &Server, path: &str, request: Value) -> Vec<Value> {
    let response = server.post(path, request);
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.header("content-type"), Some("text/event-stream"));
    assert_eq!(response.header("cache-control"), Some("no-cache"));
    let mut events = data(response.text());
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    events.iter().map(|event| serde_json::from_str(event).expect("JSON")).collect()
}

#[test]
fn a_chat_says_who_speaks_then_the_text_then_why_it_ends() {
    let server = Server::start("");
    let parts = parts(&server, "/v1/chat/completions", chat(json!({})));
    let ids: Vec<&Value> = parts.iter().map(|part| &part["id"]).collect();
    assert!(ids.iter().all(|id| *id == ids[0]));
    assert!(parts.iter().all(|part| part["object"] == "chat.completion.chunk" && part["model"] == "tiny"));
    assert!(parts.iter().all(|part| part.get("usage").is_none()));
    let choices: Vec<&Value> = parts.iter().map(|part| &part["choices"][0]).collect();
    assert_eq!(choices[0]["delta"], json!({ "role": "assistant", "content": "" }));
    for choice in &choices[1..4] {
        assert_eq!(choice["delta"], json!({ "content": "a" }));
        assert_eq!(choice["finish_reason"], Value::Null);
    }
    assert_eq!(choices[4]["delta"], json!({}));
    assert_eq!(choices[4]["finish_reason"], "length");
    assert_eq!(choices.len(), 5);
}

#[test]
fn usage_comes_last_if_it_was_asked_for() {
    let server = Server::start("");
    let request = chat(json!({ "stream_options": { "include_usage": true }, "n": 2 }));
    let parts = parts(&server, "/v1/chat/completions", request);
    let (last, before) = parts.split_last().expect("parts");
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 6);
    assert!(before.iter().all(|part| part["usage"].is_null() && part.get("usage").is_some()));
    let of = |index: usize| before.iter().filter(move |part| part["choices"][0]["index"] == index);
    for index in 0..2 {
        let text: String =
            of(index).filter_map(|part| part["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(text, "aaa");
        assert_eq!(of(index).filter(|part| part["choices"][0]["finish_reason"] == "length").count(), 1);
    }
}

#[test]
fn a_stream_is_the_whole_answer_in_parts() {
    let server = Server::start("");
    let free = json!({ "prompt": "hello", "max_tokens": 40, "temperature": 1.5, "seed": 3, "logprobs": 1 });
    let whole = server.post("/v1/completions", free.clone()).ok();
    let mut request = free;
    request["stream"] = json!(true);
    let parts = parts(&server, "/v1/completions", request);
    let text: String = parts.iter().map(|part| part["choices"][0]["text"].as_str().expect("text")).collect();
    assert_eq!(json!(text), whole["choices"][0]["text"]);
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let joined: Vec<Value> = parts
            .iter()
            .filter_map(|part| part["choices"][0]["logprobs"][list].as_array())
            .flatten()
            .cloned()
            .collect();
        assert_eq!(json!(joined), whole["choices"][0]["logprobs"][list], "{list}");
    }
    let (last, before) = parts.split_last().expect("parts");
    assert_eq!(last["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"]);
    assert!(before.iter().all(|part| part["choices"][0]["finish_reason"].is_null()));
}

#[test]
fn characters_are_never_cut() {
    let server = Server::start("");
    // With an even chance for the bytes of an emoji, and others, all kinds of wrong and right sequences come.
    let bias: serde_json::Map<String, Value> =
        [241, 160, 167, 129, 98].iter().map(|token: &u32| (token.to_string(), json!(100))).collect();
    let request = json!({
        "prompt": "x", "max_tokens": 300, "temperature": 100, "top_p": 1, "seed": 5, "stream": true, "logit_bias": bias,
    });
    let parts = parts(&server, "/v1/completions", request.clone());
    let text: String = parts.iter().map(|part| part["choices"][0]["text"].as_str().expect("text")).collect();
    let mut whole = request;
    whole["stream"] = json!(false);
    assert_eq!(json!(text), server.post("/v1/completions", whole).ok()["choices"][0]["text"]);
    assert!(text.contains('\u{fffd}') && text.contains('a'), "{text:?}");
}

#[test]
fn stop_strings_never_leak_and_nothing_else_is_kept() {
    let server = Server::start("");
    let text = |request: Value| -> (String, Value, usize) {
        let parts = parts(&server, "/v1/chat/completions", request);
        let text = parts.iter().filter_map(|part| part["choices"][0]["delta"]["content"].as_str()).collect();
        (text, parts.last().expect("parts")["choices"][0]["finish_reason"].clone(), parts.len())
    };
    // The whole template stop within a token, and a stop string over three.
    assert_eq!(text(chat(json!({ "logit_bias": { "265": 100 } }))).0, ".");
    let (said, finish, _) = text(chat(json!({ "stop": "aaa" })));
    assert_eq!((said.as_str(), finish), ("", json!("stop")));
    // Its beginning is given when it does not come.
    let (said, finish, _) = text(chat(json!({ "stop": "aaaa" })));
    assert_eq!((said.as_str(), finish), ("aaa", json!("length")));
    // A long stop string holds nothing back that is none.
    let (said, _, count) = text(chat(json!({ "stop": "z".repeat(200) })));
    assert_eq!((said.as_str(), count), ("aaa", 5));
}

#[test]
fn what_is_wrong_is_said_before_the_stream() {
    let server = Server::start("");
    for (more, param) in [
        (json!({ "messages": [] }), "messages"),
        (json!({ "temperature": -1 }), "temperature"),
        (json!({ "logit_bias": { "70000": 1 } }), "logit_bias"),
        (json!({ "stream_options": 3 }), "stream_options"),
    ] {
        let response = server.post("/v1/chat/completions", chat(more));
        response.fails(400, Some(param), param);
        assert_eq!(response.header("content-type"), Some("application/json"));
    }
    let request = json!({ "messages": [{ "role": "user", "content": "x" }], "stream_options": { "include_usage": true } });
    server.post("/v1/chat/completions", request).fails(400, Some("stream_options"), "stream: true");
}

#[test]
fn a_stream_that_waits_says_so_in_comments() {
    let server = Server::start("--keep-alive 0.01");
    // Much to read, and one token at the end.
    let request = json!({ "prompt": "x".repeat(20_000), "max_tokens": 1, "stream": true });
    let response = server.post("/v1/completions", request);
    assert_eq!(response.status, 200);
    let comments = response.text().lines().filter(|line| line.starts_with(':')).count();
    assert!(comments > 0, "{}", response.text());
    assert_eq!(data(response.text()).last().map(String::as_str), Some("[DONE]"));
}
