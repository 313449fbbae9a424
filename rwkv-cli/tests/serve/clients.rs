//! Many clients, and clients that go away.

use std::thread;

use serde_json::{Value, json};

use crate::http::Connection;
use crate::server::Server;

fn request(word: &str, more: Value) -> Value {
    let mut request = json!({
        "prompt": format!("The word is {word}. The word is"), "max_tokens": 24,
        "temperature": 1.2, "top_p": 1, "seed": word.len(), "logit_bias": { "0": -100 },
    });
    for (name, value) in more.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

/// A prompt that takes the tiny model a while.
fn long_prompt() -> String {
    "x".repeat(400_000)
}

#[test]
fn sixteen_clients_have_each_its_own_answer() {
    let server = Server::start("--sessions 4 --queue 16");
    let words: Vec<String> = (0..16).map(|n| format!("marker{n}{}", "z".repeat(n))).collect();
    let alone: Vec<Value> = words
        .iter()
        .map(|word| server.post("/v1/completions", request(word, json!({}))).ok()["choices"][0].clone())
        .collect();
    for (index, one) in alone.iter().enumerate() {
        assert!(alone[..index].iter().all(|other| other["text"] != one["text"]), "markers make a difference");
    }
    for round in 0..3 {
        thread::scope(|scope| {
            for (word, expected) in words.iter().zip(&alone) {
                let server = &server;
                scope.spawn(move || {
                    let answer = server.post("/v1/completions", request(word, json!({}))).ok();
                    assert_eq!(answer["choices"][0], *expected, "{word}, round {round}");
                });
            }
        });
    }
}

#[test]
fn a_client_that_goes_away_ends_its_session() {
    let server = Server::start("--sessions 1 --queue 4");
    let endless = |prompt: &str, stream: bool| {
        let more = json!({ "prompt": prompt, "max_tokens": null, "stream": stream });
        request("x", more).to_string()
    };
    let begin = |body: &str| {
        let mut connection = server.connect();
        connection.request("POST", "/v1/completions", &[], body.as_bytes());
        connection
    };
    let mut cancelled = 0.0;
    let mut gone = |connection: Connection, phase: &str| {
        drop(connection);
        cancelled += 1.0;
        server.wait_for_metric("rwkv_sessions_cancelled_total", |count| count == cancelled);
        server.wait_for_metric("rwkv_sessions_running", |count| count == 0.0);
        assert_eq!(server.metric("rwkv_sessions_queued"), 0.0, "{phase}");
    };
    for stream in [true, false] {
        // While its text is written.
        let mut client = begin(&endless("x", stream));
        if stream {
            assert_eq!(client.head().status, 200);
            client.chunk().expect("some text");
        } else {
            server.wait_for_metric("rwkv_sessions_running", |count| count == 1.0);
        }
        gone(client, "decode");
        // While its prompt is read.
        let client = begin(&endless(&long_prompt(), stream));
        server.wait_for_metric("rwkv_sessions_prefilling", |count| count == 1.0);
        gone(client, "prefill");
    }
    // While it waits.
    let running = begin(&endless("x", true));
    server.wait_for_metric("rwkv_sessions_running", |count| count == 1.0);
    let waiting = begin(&endless("y", false));
    server.wait_for_metric("rwkv_sessions_queued", |count| count == 1.0);
    drop(waiting);
    server.wait_for_metric("rwkv_sessions_queued", |count| count == 0.0);
    assert_eq!(server.metric("rwkv_sessions_running"), 1.0, "the other one goes on");
    drop(running);
    server.wait_for_metric("rwkv_sessions_running", |count| count == 0.0);
    server.post("/v1/completions", request("x", json!({}))).ok();
}

/// A client whose answer never ends, and has begun.
fn busy(server: &Server) -> Connection {
    let endless = request("x", json!({ "max_tokens": null, "stream": true })).to_string();
    let mut client = server.connect();
    client.request("POST", "/v1/completions", &[], endless.as_bytes());
    assert_eq!(client.head().status, 200);
    client
}

#[test]
fn a_full_queue_refuses() {
    let server = Server::start("--sessions 1 --queue 1");
    let running = busy(&server);
    let mut waiting = server.connect();
    waiting.request("POST", "/v1/completions", &[], request("y", json!({})).to_string().as_bytes());
    server.wait_for_metric("rwkv_sessions_queued", |count| count == 1.0);
    for stream in [true, false] {
        let refused = server.post("/v1/completions", request("z", json!({ "stream": stream })));
        refused.fails(503, None, "queue is full");
        assert_eq!(refused.json()["error"]["code"], "queue_full");
        assert_eq!(refused.header("retry-after"), Some("1"));
    }
    drop(running);
    assert_eq!(waiting.response().status, 200);
    // All choices of a request, or none.
    let running = busy(&server);
    server.post("/v1/completions", request("z", json!({ "n": 3 }))).fails(503, None, "queue is full");
    server.wait_for_metric("rwkv_sessions_queued", |count| count == 0.0);
    drop(running);
    server.post("/v1/completions", request("z", json!({}))).ok();
}

#[test]
fn a_long_wait_is_refused() {
    let server = Server::start("--sessions 1 --queue-timeout 0.1");
    let _running = busy(&server);
    for stream in [true, false] {
        let late = server.post("/v1/completions", request("y", json!({ "stream": stream })));
        late.fails(503, None, "did not get to it in time");
        assert_eq!(late.json()["error"]["code"], "queue_timeout");
    }
}

#[test]
fn an_answer_that_takes_too_long_ends() {
    let server = Server::start("--time-limit 0.2");
    let answer = server.post("/v1/completions", request("x", json!({ "max_tokens": null }))).ok();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert!(answer["usage"]["completion_tokens"].as_u64().expect("a number") > 0);
    let answer = server.post("/v1/embeddings", json!({ "input": long_prompt() }));
    answer.fails(503, None, "the time for the answer is over");
}

#[test]
fn a_slow_reader_holds_nobody_up() {
    let server = Server::start("--sessions 2");
    let endless = request("x", json!({ "max_tokens": null, "stream": true, "logprobs": 20 })).to_string();
    let mut slow = server.connect();
    slow.request("POST", "/v1/completions", &[], endless.as_bytes());
    assert_eq!(slow.head().status, 200);
    // It reads no further. Others get their answers, and at some time it has lost its session.
    server.post("/v1/completions", request("y", json!({}))).ok();
    server.wait_for_metric("rwkv_sessions_cancelled_total", |count| count == 1.0);
    let mut text = Vec::new();
    while let Some(chunk) = slow.chunk() {
        text.extend(chunk);
    }
    let text = String::from_utf8(text).expect("text");
    assert!(text.contains("not read as fast as it was written"), "{}", &text[text.len() - 300..]);
    assert!(!text.contains("[DONE]"));
}

#[test]
fn a_client_that_takes_nothing_loses_its_connection() {
    let server = Server::start("--stall-timeout 0.3 --connections 2");
    let endless = request("x", json!({ "max_tokens": null, "stream": true, "logprobs": 20 })).to_string();
    let mut stalled: Vec<Connection> = (0..2).map(|_| server.connect()).collect();
    for connection in &mut stalled {
        connection.request("POST", "/v1/completions", &[], endless.as_bytes());
        assert_eq!(connection.head().status, 200);
    }
    // There is no third place until one of them is thrown out.
    server.post("/v1/completions", request("y", json!({}))).ok();
}

#[test]
fn a_thousand_connections_leave_nothing_behind() {
    let server = Server::start("--sessions 2 --queue 2000");
    let body = request("x", json!({ "max_tokens": null, "stream": true })).to_string();
    let wave = || {
        for number in 0..1000 {
            let mut connection = server.connect();
            match number % 5 {
                0 => {}
                1 => connection.send(b"POST /v1/comple"),
                2 => connection.send(
                    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{",
                ),
                3 => connection.request("GET", "/health", &[], b""),
                _ => connection.request("POST", "/v1/completions", &[], body.as_bytes()),
            }
        }
        server.wait_for_metric("rwkv_sessions_running", |count| count == 0.0);
        server.wait_for_metric("rwkv_sessions_queued", |count| count == 0.0);
    };
    wave();
    let (Some(memory), Some(files)) = (server.rss_bytes(), server.open_files()) else { return };
    wave();
    wave();
    let after = server.rss_bytes().expect("as before");
    assert!(after < memory + (8 << 20), "{memory} bytes grew to {after}");
    while server.open_files().expect("as before") > files {
        thread::yield_now();
    }
    server.post("/v1/completions", request("x", json!({}))).ok();
}
