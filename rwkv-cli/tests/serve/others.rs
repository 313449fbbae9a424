//! The other endpoints.

use serde_json::{Value, json};

use crate::server::Server;

#[test]
fn text_to_tokens_and_back() {
    let server = Server::start("");
    let tokens = |body: Value| server.post("/tokenize", body).ok();
    assert_eq!(tokens(json!({ "content": "User the" })), json!({ "tokens": [258, 260], "count": 2 }));
    assert_eq!(tokens(json!({ "prompt": "a" })), json!({ "tokens": [98], "count": 1 }));
    assert_eq!(tokens(json!({ "content": "" })), json!({ "tokens": [], "count": 0 }));
    server.post("/tokenize", json!({})).fails(400, Some("content"), "missing");
    server.post("/tokenize", json!({ "content": 7 })).fails(400, Some("content"), "a string");
    let text = |tokens: Value| server.post("/detokenize", json!({ "tokens": tokens })).ok();
    assert_eq!(text(json!([258, 260])), json!({ "content": "User the", "count": 2 }));
    assert_eq!(text(json!([])), json!({ "content": "", "count": 0 }));
    assert_eq!(text(json!([256, 0, 98]))["content"], "\u{fffd}a");
    for (tokens, part) in
        [(json!([272]), "token 272"), (json!("x"), "a list"), (json!(["x"]), "a list of tokens")]
    {
        server.post("/detokenize", json!({ "tokens": tokens })).fails(400, Some("tokens"), part);
    }
    server.post("/detokenize", json!({ "tokens": [-1] })).fails(400, Some("tokens[0]"), "a token");
}

#[test]
fn embeddings_are_the_same_in_company_and_alone() {
    let server = Server::start("--sessions 2");
    let embed = |more: Value| server.post("/v1/embeddings", more).ok();
    let vectors = |answer: &Value| -> Vec<Vec<f64>> {
        let data = answer["data"].as_array().expect("data");
        for (index, item) in data.iter().enumerate() {
            assert_eq!((&item["index"], &item["object"]), (&json!(index), &json!("embedding")));
        }
        let vector = |item: &Value| {
            item["embedding"].as_array().expect("numbers").iter().filter_map(Value::as_f64).collect()
        };
        data.iter().map(vector).collect()
    };
    let three = embed(json!({ "input": ["one", "another one", "a third"], "model": "x" }));
    let found = vectors(&three);
    assert_eq!((found.len(), found[0].len()), (3, 64));
    assert_eq!(three["usage"]["prompt_tokens"], 21);
    assert_ne!(found[0], found[1]);
    let alone = vectors(&embed(json!({ "input": "another one" })));
    assert_eq!(alone[0], found[1]);
    let tokens = server.post("/tokenize", json!({ "content": "another one" })).ok()["tokens"].clone();
    assert_eq!(vectors(&embed(json!({ "input": tokens, "dimensions": 64 })))[0], found[1]);
    // The official client asks for base64.
    let encoded = embed(json!({ "input": "another one", "encoding_format": "base64" }));
    let text = encoded["data"][0]["embedding"].as_str().expect("a string").to_owned();
    assert_eq!(text.len(), (64 * 4usize).div_ceil(3) * 4);
    for (request, param) in [
        (json!({ "input": "" }), Some("input")),
        (json!({ "input": [] }), Some("input")),
        (json!({ "input": ["x", ""] }), Some("input[1]")),
        (json!({ "input": vec!["x"; 257] }), Some("input")),
        (json!({}), Some("input")),
        (json!({ "input": "x", "dimensions": 32 }), Some("dimensions")),
        (json!({ "input": "x", "encoding_format": "binary" }), Some("encoding_format")),
    ] {
        server.post("/v1/embeddings", request).fails(400, param, "");
    }
}

#[test]
fn there_is_one_model() {
    let server = Server::start("--name my/model");
    let list = server.get("/v1/models").ok();
    assert_eq!(list["object"], "list");
    assert_eq!((&list["data"][0]["id"], &list["data"][0]["object"]), (&json!("my/model"), &json!("model")));
    assert_eq!(server.get("/v1/models/my%2Fmodel").ok(), list["data"][0]);
    server.get("/v1/models/other").fails(404, None, "no model \"other\"");
    let answer =
        server.post("/v1/completions", json!({ "prompt": "x", "max_tokens": 1, "model": "gpt-4" })).ok();
    assert_eq!(answer["model"], "my/model");
}

#[test]
fn metrics_count_what_happened() {
    let server = Server::start("");
    let greedy = json!({ "prompt": "hello hello", "max_tokens": 3, "logit_bias": { "98": 100 } });
    server.post("/v1/completions", greedy.clone()).ok();
    server.post("/v1/completions", greedy).ok();
    server.post("/v1/completions", json!({ "prompt": 7 }));
    server.get("/v1/models/../../etc/passwd");
    let metrics = server.get("/metrics");
    assert!(metrics.header("content-type").expect("a type").starts_with("application/openmetrics-text"));
    let text = metrics.text();
    for line in [
        "rwkv_http_requests_total{path=\"/v1/completions\",status=\"200\"} 2",
        "rwkv_http_requests_total{path=\"/v1/completions\",status=\"400\"} 1",
        "rwkv_http_requests_total{path=\"none\",status=\"404\"} 1",
        "rwkv_sessions_total 2",
        "rwkv_sessions_completed_total 2",
        "rwkv_completion_tokens_total 6",
        "rwkv_time_to_first_token_seconds_count 2",
        "rwkv_inter_token_seconds_count 4",
        "rwkv_queue_seconds_count 2",
        "rwkv_sessions_running 0",
        "# EOF",
    ] {
        assert!(text.lines().any(|found| found == line), "{line:?} is not in\n{text}");
    }
    assert!(server.metric("rwkv_prefix_cache_tokens_total") > 0.0);
    assert!(server.metric("rwkv_weights_pinned_bytes") > 0.0);
    assert!(!text.contains("passwd"));
}

#[test]
fn a_prompt_is_read_once_for_all_its_choices() {
    let server = Server::start("");
    let prompt = "hello, said the state to the weights, ".repeat(40);
    let request =
        json!({ "prompt": prompt, "max_tokens": 6, "temperature": 2, "top_p": 1, "seed": 5, "n": 8 });
    let answer = server.post("/v1/completions", request.clone()).ok();
    let read = answer["usage"]["prompt_tokens"].as_f64().expect("a number");
    assert_eq!(server.metric("rwkv_prompt_tokens_total"), read);
    for (index, choice) in answer["choices"].as_array().expect("choices").iter().enumerate() {
        let mut alone = request.clone();
        (alone["n"], alone["seed"]) = (json!(1), json!(5 + index));
        let alone = Server::start("").post("/v1/completions", alone).ok();
        assert_eq!(choice["text"], alone["choices"][0]["text"], "choice {index}");
    }
}

#[test]
fn the_description_is_of_what_there_is() {
    let server = Server::start("--state-dir states");
    let description = server.get("/openapi.json").ok();
    let paths = description["paths"].as_object().expect("paths");
    let mut found = 0;
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().expect("operations") {
            let path = path.replace("{model}", "tiny").replace("{name}", "absent");
            // Some streams never end: their status says enough.
            let mut connection = server.connect();
            connection.request(&method.to_uppercase(), &path, &[("Connection", "close")], b"{}");
            let status = connection.head().status;
            let expected = operation["responses"].as_object().expect("responses");
            assert!(expected.contains_key(&status.to_string()), "{method} {path}: {status}");
            assert_ne!(status, 405, "{method} {path}");
            found += 1;
        }
    }
    assert_eq!(found, 20);
    // What it refers to is there.
    let text = description.to_string();
    for reference in text.split("\"$ref\":\"#").skip(1) {
        let pointer = reference.split('"').next().expect("a pointer");
        assert!(description.pointer(pointer).is_some(), "{pointer}");
    }
}

#[test]
fn a_template_file_makes_the_text() {
    let lab = crate::support::Lab::new();
    lab.write("chat.jinja", "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[me]{% endif %}");
    let server = Server::in_lab(lab, "--template chat.jinja --stop [");
    let base = json!({ "max_tokens": 8, "temperature": 0, "presence_penalty": 0.5, "frequency_penalty": 0.5, "logit_bias": { "0": -100 } });
    let mut chat = base.clone();
    chat["messages"] = json!([{ "role": "user", "content": "hi" }]);
    let mut text = base.clone();
    (text["prompt"], text["stop"]) = (json!("[user]hi[me]"), json!("["));
    let answer = server.post("/v1/chat/completions", chat.clone()).ok();
    let continued = server.post("/v1/completions", text).ok();
    let continued = continued["choices"][0]["text"].as_str().expect("text");
    assert_eq!(answer["choices"][0]["message"]["content"], continued.trim_start());
    chat["logit_bias"] = json!({ "92": 100 });
    assert_eq!(server.post("/v1/chat/completions", chat).ok()["choices"][0]["message"]["content"], "");
}
