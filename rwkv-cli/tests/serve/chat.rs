//! Chat completions, whole.

use serde_json::{Value, json};

use crate::server::Server;

/// A chat whose answer is `aaa`.
fn always_a() -> Value {
    json!({
        "model": "any",
        "messages": [{ "role": "user", "content": "hello" }],
        "max_tokens": 3,
        "logit_bias": { "98": 100 },
        "temperature": 0,
        "presence_penalty": 0,
        "frequency_penalty": 0,
    })
}

fn with(mut request: Value, more: Value) -> Value {
    for (name, value) in more.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

#[test]
fn an_answer_has_the_form_of_the_api() {
    let server = Server::start("");
    let answer = server.post("/v1/chat/completions", always_a()).ok();
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "tiny");
    assert!(answer["id"].as_str().expect("an id").starts_with("chatcmpl-"));
    assert!(answer["created"].as_u64().expect("a time") > 1_700_000_000);
    let [choice] = answer["choices"].as_array().expect("choices").as_slice() else { panic!("{answer}") };
    assert_eq!(choice["index"], 0);
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["message"]["content"], "aaa");
    assert_eq!(choice["finish_reason"], "length");
    // `User`, `:`, and so on: the template's text has 16 tokens in the tiny vocabulary.
    let text = "User: hello\n\nAssistant:";
    let tokens = server.post("/tokenize", json!({ "content": text })).ok()["count"].clone();
    assert_eq!(answer["usage"]["prompt_tokens"], tokens);
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    assert_eq!(answer["usage"]["total_tokens"], json!(tokens.as_u64().expect("a count") + 3));
}

#[test]
fn a_chat_reads_the_text_of_the_template() {
    let server = Server::start("");
    let greedy =
        json!({ "max_tokens": 12, "temperature": 0, "logit_bias": { "0": -100, "265": -100, "257": -100 } });
    let answer = |messages: Value| {
        let request = with(greedy.clone(), json!({ "messages": messages }));
        server.post("/v1/chat/completions", request).ok()["choices"][0]["message"]["content"].clone()
    };
    let continued = |prompt: &str| {
        let same =
            json!({ "prompt": prompt, "stop": "\n\n", "presence_penalty": 0.5, "frequency_penalty": 0.5 });
        let text =
            server.post("/v1/completions", with(greedy.clone(), same)).ok()["choices"][0]["text"].clone();
        text.as_str().expect("text").trim_start().to_owned()
    };
    let parts = json!([{ "type": "text", "text": "Be " }, { "type": "text", "text": "brief." }]);
    for (messages, prompt) in [
        (json!([{ "role": "user", "content": "hi" }]), "User: hi\n\nAssistant:"),
        (
            json!([{ "role": "developer", "content": parts }, { "role": "user", "content": "a\r\n\r\nb" }]),
            "System: Be brief.\n\nUser: a\nb\n\nAssistant:",
        ),
        (
            json!([
                { "role": "user", "content": [{ "type": "text", "text": "hi" }] },
                { "role": "assistant", "content": [{ "type": "text", "text": "Hello." }] },
                { "role": "user", "content": null },
            ]),
            "User: hi\n\nAssistant: Hello.\n\nUser:\n\nAssistant:",
        ),
    ] {
        assert_eq!(answer(messages), json!(continued(prompt)), "{prompt:?}");
    }
}

#[test]
fn the_last_message_of_the_assistant_goes_on() {
    let server = Server::start("");
    let messages = json!([
        { "role": "user", "content": "hello" },
        { "role": "assistant", "content": "Well" },
    ]);
    let request = with(always_a(), json!({ "messages": messages, "logit_bias": { "33": 100 } }));
    let answer = server.post("/v1/chat/completions", request).ok();
    // Blanks belong to what goes on, and are left out where an answer begins.
    assert_eq!(answer["choices"][0]["message"]["content"], "   ");
    let request = with(always_a(), json!({ "logit_bias": { "33": 100 } }));
    let answer = server.post("/v1/chat/completions", request).ok();
    assert_eq!(answer["choices"][0]["message"]["content"], "");
}

#[test]
fn an_answer_ends_where_the_template_or_the_request_says() {
    let server = Server::start("");
    let ends = |request: Value| {
        let answer = server.post("/v1/chat/completions", request).ok();
        let choice = &answer["choices"][0];
        (choice["message"]["content"].clone(), choice["finish_reason"].clone(), answer["usage"].clone())
    };
    // Token 265 is a full stop and an empty line.
    let (text, finish, usage) = ends(with(always_a(), json!({ "logit_bias": { "265": 100 } })));
    assert_eq!((text, finish), (json!("."), json!("stop")));
    assert_eq!(usage["completion_tokens"], 1);
    let (text, finish, _) = ends(with(always_a(), json!({ "logit_bias": { "0": 100 } })));
    assert_eq!((text, finish), (json!(""), json!("stop")));
    for stop in [json!("aa"), json!(["x", "aa"])] {
        let (text, finish, _) = ends(with(always_a(), json!({ "stop": stop })));
        assert_eq!((text, finish), (json!(""), json!("stop")));
    }
    // Held back as the beginning of a stop string, and given when it does not come.
    let (text, finish, _) = ends(with(always_a(), json!({ "stop": "aaaa" })));
    assert_eq!((text, finish), (json!("aaa"), json!("length")));
    let (text, finish, usage) = ends(with(always_a(), json!({ "max_tokens": 0 })));
    assert_eq!((text, finish), (json!(""), json!("length")));
    assert_eq!(usage["completion_tokens"], 0);
    let newer = with(always_a(), json!({ "max_tokens": null, "max_completion_tokens": 2 }));
    assert_eq!(ends(newer).0, json!("aa"));
}

#[test]
fn choices_have_their_own_random_numbers_and_seeds_repeat_them() {
    let server = Server::start("");
    let request = json!({
        "messages": [{ "role": "user", "content": "hello" }],
        "max_tokens": 8, "temperature": 2, "top_p": 1, "seed": 7, "n": 3, "logit_bias": { "0": -100 },
    });
    let texts = |request: &Value| -> Vec<Value> {
        let answer = server.post("/v1/chat/completions", request.clone()).ok();
        let choices = answer["choices"].as_array().expect("choices");
        choices.iter().map(|choice| choice["message"]["content"].clone()).collect()
    };
    let first = texts(&request);
    assert_eq!(first.len(), 3);
    assert!(first[0] != first[1] && first[1] != first[2]);
    assert_eq!(texts(&request), first);
    let second = texts(&with(request, json!({ "seed": 8, "n": 1 })));
    assert_eq!(second[0], first[1], "the second choice has the next seed");
}

#[test]
fn logprobs_are_those_of_the_tokens() {
    let server = Server::start("");
    let request = with(
        always_a(),
        json!({ "logprobs": true, "top_logprobs": 2, "stop": "a", "logit_bias": { "99": 100 } }),
    );
    let answer = server.post("/v1/chat/completions", request).ok();
    let content = answer["choices"][0]["logprobs"]["content"].as_array().expect("a list").clone();
    assert_eq!(content.len(), 3);
    for token in &content {
        assert_eq!((&token["token"], &token["bytes"]), (&json!("b"), &json!([98])));
        assert!(token["logprob"].as_f64().expect("a number") <= 0.0);
        let top = token["top_logprobs"].as_array().expect("a list");
        assert_eq!(top.len(), 2);
        assert!(top[0]["logprob"].as_f64() >= top[1]["logprob"].as_f64());
    }
    // Tokens of a stop string are no part of the answer.
    let request = with(always_a(), json!({ "logprobs": true, "stop": "aa" }));
    let answer = server.post("/v1/chat/completions", request).ok();
    assert_eq!(answer["choices"][0]["logprobs"]["content"], json!([]));
    let answer = server.post("/v1/chat/completions", always_a()).ok();
    assert_eq!(answer["choices"][0]["logprobs"], Value::Null);
}

#[test]
fn what_is_no_text_is_replaced_and_the_server_lives() {
    let server = Server::start("");
    // Token 256 is the byte FF; token 227 is E2, which begins a character.
    for (token, text) in [("256", "\u{fffd}\u{fffd}\u{fffd}"), ("227", "\u{fffd}\u{fffd}\u{fffd}")] {
        let request = with(always_a(), json!({ "logit_bias": { token: 100 } }));
        let answer = server.post("/v1/chat/completions", request).ok();
        assert_eq!(answer["choices"][0]["message"]["content"], text);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
    }
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_chat_goes_on_where_the_last_turn_ended() {
    let server = Server::start("");
    let turn = |messages: &Value| {
        server.post("/v1/chat/completions", with(always_a(), json!({ "messages": messages }))).ok()
    };
    let mut messages = json!([{ "role": "user", "content": "hello there, this is a message" }]);
    let first = turn(&messages);
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let list = messages.as_array_mut().expect("a list");
    list.push(first["choices"][0]["message"].clone());
    list.push(json!({ "role": "user", "content": "and another" }));
    let second = turn(&messages);
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
    assert!(cached + 3 >= first["usage"]["prompt_tokens"].as_u64().expect("a number"), "{second}");
    let other = Server::start("--prefix-cache 0");
    let alone = other.post("/v1/chat/completions", with(always_a(), json!({ "messages": messages }))).ok();
    assert_eq!(alone["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(alone["choices"], second["choices"]);
}
