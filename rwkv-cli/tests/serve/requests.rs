//! Requests that are wrong, odd, or hostile.

use serde_json::{Value, json};

use crate::server::Server;

#[test]
fn values_out_of_range_are_named() {
    let server = Server::start("");
    let many: Vec<String> = (0..17).map(|n| n.to_string()).collect();
    let cases = [
        ("temperature", json!(-1)),
        ("temperature", json!(1e30)),
        ("temperature", json!("hot")),
        ("top_p", json!(1.5)),
        ("top_k", json!(-1)),
        ("top_k", json!(1.5)),
        ("presence_penalty", json!(3)),
        ("frequency_penalty", json!([])),
        ("penalty_decay", json!(1.01)),
        ("seed", json!("x")),
        ("seed", json!(0.5)),
        ("n", json!(0)),
        ("n", json!(65)),
        ("n", json!(1e9)),
        ("max_tokens", json!("many")),
        ("max_completion_tokens", json!(-1)),
        ("stream", json!("yes")),
        ("user", json!(7)),
        ("model", json!({})),
        ("stop", json!(7)),
        ("stop", json!(many)),
        ("logit_bias", json!([])),
        ("logit_bias", json!({ "x": 1 })),
        ("logit_bias", json!({ "272": 1 })),
        ("logit_bias", json!({ "-1": 1 })),
    ];
    for (field, value) in cases {
        for (path, mut request) in [
            ("/v1/completions", json!({ "prompt": "x", "max_tokens": 1 })),
            (
                "/v1/chat/completions",
                json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": 1 }),
            ),
        ] {
            request[field] = value.clone();
            server.post(path, request).fails(400, Some(field), field);
        }
    }
    let chat = |field: &str, value: Value| {
        let mut request = json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": 1 });
        request[field] = value;
        server.post("/v1/chat/completions", request)
    };
    chat("stop", json!([""])).fails(400, Some("stop[0]"), "1 to 256 bytes");
    chat("stop", json!(["x".repeat(257)])).fails(400, Some("stop[0]"), "1 to 256 bytes");
    chat("logit_bias", json!({ "5": 101 })).fails(400, Some("logit_bias.5"), "-100 to 100");
    chat("top_logprobs", json!(2)).fails(400, Some("top_logprobs"), "logprobs: true");
    chat("stream_options", json!({})).fails(400, Some("stream_options"), "stream: true");
    chat("tools", json!([{}])).fails(400, Some("tools"), "not supported");
    chat("functions", json!([{}])).fails(400, Some("functions"), "not supported");
    chat("response_format", json!({ "type": "json_object" })).fails(
        400,
        Some("response_format"),
        "not supported",
    );
    chat("modalities", json!(["text", "audio"])).fails(400, Some("modalities"), "not supported");
    let completion = |field: &str, value: Value| {
        let mut request = json!({ "prompt": "x", "max_tokens": 1 });
        request[field] = value;
        server.post("/v1/completions", request)
    };
    completion("suffix", json!("end")).fails(400, Some("suffix"), "forwards only");
    completion("best_of", json!(3)).fails(400, Some("best_of"), "as many as n");
    completion("logprobs", json!(21)).fails(400, Some("logprobs"), "0 to 20");
    completion("prompt", json!(7)).fails(400, Some("prompt"), "expected a string");
    completion("prompt", json!(["x", 7])).fails(400, Some("prompt[1]"), "a string or a list");
    completion("prompt", json!([70_000])).fails(400, Some("prompt"), "token 70000");
    completion("prompt", json!([271, 272])).fails(400, Some("prompt"), "token 272");
    completion("prompt", json!([1, -1])).fails(400, Some("prompt[1]"), "a token");
    completion("prompt", json!(vec!["x"; 65])).fails(400, Some("prompt"), "65 choices");
    assert_eq!(server.metric("rwkv_sessions_total"), 0.0, "nothing of this reached the engine");
}

#[test]
fn values_that_mean_nothing_are_taken() {
    let server = Server::start("");
    for (field, value) in [
        ("temperature", json!(0)),
        ("temperature", json!(1e-30)),
        ("temperature", json!(100)),
        ("top_p", json!(0)),
        ("top_k", json!(0)),
        ("top_k", json!(1)),
        ("top_k", json!(4_000_000_000u64)),
        ("seed", json!(-5)),
        ("seed", json!(18_446_744_073_709_551_615u64)),
        ("stop", json!([])),
        ("stop", json!(null)),
        ("n", json!(1.0)),
        ("tools", json!([])),
        ("response_format", json!({ "type": "text" })),
        ("modalities", json!(["text"])),
        ("logit_bias", json!({})),
        ("parallel_tool_calls", json!(true)),
        ("store", json!(false)),
        ("metadata", json!({ "a": [1, 2] })),
        ("user", json!("somebody")),
    ] {
        let mut request =
            json!({ "messages": [{ "role": "user", "content": "x", "name": "y" }], "max_tokens": 1 });
        request[field] = value;
        server.post("/v1/chat/completions", request).ok();
    }
}

#[test]
fn messages_that_are_none() {
    let server = Server::start("");
    let say = |messages: Value| {
        server.post("/v1/chat/completions", json!({ "messages": messages, "max_tokens": 1 }))
    };
    say(json!("x")).fails(400, Some("messages"), "expected a list of messages");
    say(json!([])).fails(400, Some("messages"), "1 to 4096");
    say(json!(null)).fails(400, Some("messages"), "missing");
    say(json!(["x"])).fails(400, Some("messages[0]"), "expected an object");
    say(json!([{ "content": "x" }])).fails(400, Some("messages[0].role"), "missing");
    say(json!([{ "role": "wizard", "content": "x" }])).fails(400, Some("messages[0].role"), "\"wizard\"");
    say(json!([{ "role": "tool", "content": "x" }])).fails(400, Some("messages[0].role"), "tools");
    say(json!([{ "role": "user", "content": 7 }])).fails(400, Some("messages[0].content"), "a list of parts");
    let image = json!({ "type": "image_url", "image_url": { "url": "data:," } });
    for role in ["system", "developer", "user", "assistant"] {
        say(json!([{ "role": role, "content": [{ "type": "text", "text": "x" }] }])).ok();
        say(json!([{ "role": role, "content": null }])).ok();
        say(json!([{ "role": role, "content": [image] }])).fails(
            400,
            Some("messages[0].content[0].type"),
            "\"image_url\"; the model reads text alone",
        );
    }
    let call = json!([{ "role": "assistant", "content": null, "tool_calls": [{}] }]);
    say(call).fails(400, Some("messages[0].tool_calls"), "calls no tools");
    say(json!([{ "role": "user", "content": ["x"] }])).fails(
        400,
        Some("messages[0].content[0]"),
        "an object",
    );
    say(json!([{ "role": "user", "content": [{ "type": "text" }] }])).fails(
        400,
        Some("messages[0].content[0].text"),
        "missing",
    );
}

#[test]
fn bodies_that_are_no_requests() {
    let server = Server::start("--body-limit 64KiB");
    let deep = format!("{{\"prompt\":{}", "[".repeat(10_000));
    let gbk = b"{\"prompt\":\"\xc4\xe3\xba\xc3\"}";
    for body in [
        &b""[..],
        b"{",
        b"[]",
        b"null",
        b"{\"prompt\":\"x\"",
        b"{\"prompt\":\"x\"}}",
        b"{'a':1}",
        gbk,
        deep.as_bytes(),
    ] {
        for path in ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize", "/detokenize"]
        {
            server.request("POST", path, &[], body).fails(400, None, "the body");
        }
    }
    let long = format!("{{\"prompt\":\"{}\"}}", "x".repeat(70_000));
    server.request("POST", "/v1/completions", &[], long.as_bytes()).fails(413, None, "at most 65536 bytes");
    // More than lies in the buffers on the way: the client is heard out, and hears why.
    let huge = vec![b' '; 40 << 20];
    server.request("POST", "/v1/completions", &[], &huge).fails(413, None, "at most 65536 bytes");
    // Without a length, it is only found out on the way.
    let mut connection = server.connect();
    connection
        .send(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    connection.send(format!("{:x}\r\n{}\r\n0\r\n\r\n", long.len(), long).as_bytes());
    connection.response().fails(413, None, "at most 65536 bytes");
    server.post("/v1/completions", json!({ "prompt": "x", "max_tokens": 1 })).ok();
}

#[test]
fn a_rejected_request_leaves_the_connection_usable() {
    let server = Server::start("");
    let mut connection = server.connect();
    for round in 0..3 {
        connection.request("POST", "/v1/completions", &[], b"{\"prompt\":7}");
        connection.response().fails(400, Some("prompt"), "expected a string");
        connection.request("POST", "/v1/nothing", &[], b"{\"prompt\":7}");
        connection.response().fails(404, None, "/openapi.json");
        connection.request("DELETE", "/v1/completions", &[], b"");
        connection.response().fails(405, None, "method");
        connection.request("POST", "/v1/completions", &[], b"{\"prompt\":\"x\",\"max_tokens\":1}");
        assert_eq!(connection.response().status, 200, "round {round}");
    }
}

#[test]
fn slow_bodies_hold_up_only_large_ones() {
    let server = Server::start("--body-limit 1MiB");
    let head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n{";
    let mut slow: Vec<_> = (0..12).map(|_| server.connect()).collect();
    slow.iter_mut().for_each(|connection| connection.send(head));
    server.post("/v1/completions", json!({ "prompt": "x", "max_tokens": 1 })).ok();
    let large = json!({ "prompt": "x", "max_tokens": 1, "ignored": " ".repeat(500_000) }).to_string();
    let mut waiting = server.connect();
    waiting.request("POST", "/v1/completions", &[], large.as_bytes());
    drop(slow);
    assert_eq!(waiting.response().status, 200);
}
