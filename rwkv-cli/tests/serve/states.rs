//! Named states.

use serde_json::{Value, json};

use crate::server::Server;
use crate::support::Lab;

fn greedy(more: Value) -> Value {
    let mut request = json!({
        "max_tokens": 12, "temperature": 0, "presence_penalty": 0, "frequency_penalty": 0,
        "logit_bias": { "0": -100, "257": -100, "265": -100 },
    });
    for (name, value) in more.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

#[test]
fn a_state_is_the_text_that_it_has_read() {
    let server = Server::start("--state-dir states");
    assert_eq!(server.get("/v1/states").ok()["data"], json!([]));
    let saved = server.post("/v1/states", json!({ "name": "book", "prompt": "Once upon a time" })).ok();
    assert_eq!((&saved["id"], &saved["object"]), (&json!("book"), &json!("state")));
    assert!(saved["bytes"].as_u64().expect("bytes") > 1000);
    assert_eq!(saved["usage"]["prompt_tokens"], 16);
    let text =
        |request: Value| server.post("/v1/completions", greedy(request)).ok()["choices"][0]["text"].clone();
    let whole = text(json!({ "prompt": "Once upon a time, in" }));
    assert_eq!(text(json!({ "state": "book", "prompt": ", in" })), whole);
    assert_eq!(text(json!({ "state": "book", "prompt": "" })), text(json!({ "prompt": "Once upon a time" })));
    // It can be read on, and is still there.
    server.post("/v1/states", json!({ "name": "more", "state": "book", "prompt": ", in" })).ok();
    assert_eq!(text(json!({ "state": "more" })), whole);
    let names = |server: &Server| -> Vec<Value> {
        let list = server.get("/v1/states").ok()["data"].clone();
        list.as_array().expect("a list").iter().map(|state| state["id"].clone()).collect()
    };
    assert_eq!(names(&server), [json!("book"), json!("more")]);
    assert_eq!(server.get("/v1/states/book").ok()["id"], "book");
    // And by another server, or the program alone.
    let run = "run tiny.rwkv --vocab tiny.vocab --state states/more.state -n 12 --greedy --ban-token 0 --ban-token 257 --ban-token 265 --quiet";
    assert_eq!(
        json!(String::from_utf8_lossy(&server.lab.run(run).ok().stdout).trim_end_matches('\n')),
        whole
    );

    assert_eq!(server.request("DELETE", "/v1/states/book", &[], b"").ok()["deleted"], true);
    assert_eq!(names(&server), [json!("more")]);
    server.get("/v1/states/book").fails(404, None, "no state \"book\"");
    server.request("DELETE", "/v1/states/book", &[], b"").fails(404, None, "no state \"book\"");
    let gone = server.post("/v1/completions", greedy(json!({ "state": "book", "prompt": "x" })));
    gone.fails(404, None, "no state \"book\"");
}

#[test]
fn a_conversation_is_kept_and_taken_up_again() {
    let server = Server::start("--state-dir states");
    let chat = |more: Value| server.post("/v1/chat/completions", greedy(more)).ok();
    let hello = json!([{ "role": "user", "content": "hello" }]);
    let always_a =
        json!({ "messages": hello, "save_state": "talk", "max_tokens": 3, "logit_bias": { "98": 100 } });
    let first = chat(always_a);
    assert_eq!(first["choices"][0]["message"]["content"], "aaa");
    assert_eq!(first["state"]["id"], "talk");
    let next = json!([{ "role": "user", "content": "who are you?" }]);
    let continued = chat(json!({ "messages": next, "state": "talk" }));
    let transcript = "User: hello\n\nAssistant:aaa\n\nUser: who are you?\n\nAssistant:";
    let whole = server.post("/v1/completions", greedy(json!({ "prompt": transcript, "stop": "\n\n" }))).ok();
    let whole = whole["choices"][0]["text"].as_str().expect("text");
    assert_eq!(continued["choices"][0]["message"]["content"], whole.trim_start());
    let again = chat(json!({ "messages": next, "state": "talk" }));
    assert_eq!(again["choices"], continued["choices"], "a state is not changed by its use");

    let mut request =
        greedy(json!({ "messages": next, "state": "talk", "save_state": "later", "stream": true }));
    request["max_tokens"] = json!(2);
    let stream = server.post("/v1/chat/completions", request);
    assert!(stream.text().contains("\"state\":{"), "{}", stream.text());
    assert_eq!(server.get("/v1/states/later").status, 200);
}

#[test]
fn no_name_leads_out_of_the_folder() {
    let server = Server::start("--state-dir states");
    server.lab.write("secret.state", "x");
    for name in
        ["../secret", "..", ".", ".hidden", "a/b", "/etc/passwd", "a\\b", "", "a\u{0}", "ä", &"x".repeat(65)]
    {
        let prompt = json!({ "name": name, "prompt": "x" });
        server.post("/v1/states", prompt).fails(400, Some("name"), "letters, digits");
        for field in ["state", "save_state"] {
            let mut request = greedy(json!({ "prompt": "x" }));
            request[field] = json!(name);
            server.post("/v1/completions", request).fails(400, Some(field), "letters, digits");
        }
    }
    for path in ["/v1/states/..%2fsecret", "/v1/states/%2e%2e", "/v1/states/..%5csecret", "/v1/states/%00"] {
        server.get(path).fails(400, Some("name"), "letters, digits");
        server.request("DELETE", path, &[], b"").fails(400, Some("name"), "letters, digits");
    }
    server.get("/v1/states/%ff").fails(400, None, "not UTF-8");
    assert_eq!(server.get("/v1/states/../secret").status, 404);
    assert!(server.lab.path("secret.state").exists());
}

#[test]
fn states_that_cannot_be_used_are_refused() {
    let server = Server::start("--state-dir states");
    server.lab.write("states/text.state", "this is no state");
    server.lab.write("states/README", "not a state at all");
    std::fs::create_dir(server.lab.path("states/folder.state")).expect("a folder");
    let list = server.get("/v1/states").ok()["data"].clone();
    assert_eq!(list.as_array().expect("a list").len(), 1, "{list}");
    let request = greedy(json!({ "prompt": "x", "state": "text" }));
    server.post("/v1/completions", request).fails(400, Some("state"), "another model, or is damaged");
    // A state of another model.
    let other = Lab::new();
    other.checkpoint("other.safetensors", 2);
    let save = "run other.safetensors --vocab tiny.vocab --prompt x -n 1 --save-state other.state --quiet";
    other.run(save).ok();
    std::fs::copy(other.path("other.state"), server.lab.path("states/other.state")).expect("a copy");
    let request = greedy(json!({ "prompt": "x", "state": "other" }));
    server.post("/v1/completions", request).fails(400, Some("state"), "another model, or is damaged");
    server.post("/v1/states", json!({ "name": "a", "prompt": ["x", "y"] })).fails(
        400,
        Some("prompt"),
        "expected one",
    );
    server.post("/v1/states", json!({ "prompt": "x" })).fails(400, Some("name"), "is missing");
    let many = greedy(json!({ "prompt": "x", "n": 2, "save_state": "a" }));
    server.post("/v1/completions", many).fails(400, Some("save_state"), "one choice");
}

#[test]
fn the_folder_has_a_limit_and_may_be_absent() {
    let small = Server::start("--state-dir states --state-bytes 50KB");
    let mut saved = 0;
    let refused = loop {
        let response = small.post("/v1/states", json!({ "name": format!("s{saved}"), "prompt": "x" }));
        if response.status != 200 {
            break response;
        }
        saved += 1;
    };
    refused.fails(507, None, "delete some");
    assert_eq!(small.get("/v1/states").ok()["data"].as_array().map(Vec::len), Some(saved));
    assert!(saved >= 1);
    // One of the same name takes the place of the old one.
    small.post("/v1/states", json!({ "name": "s0", "prompt": "y" })).ok();

    let without = Server::start("");
    for response in [
        without.get("/v1/states"),
        without.post("/v1/states", json!({ "name": "a", "prompt": "x" })),
        without.post("/v1/completions", greedy(json!({ "prompt": "x", "state": "a" }))),
    ] {
        response.fails(501, None, "without --state-dir");
    }
}
