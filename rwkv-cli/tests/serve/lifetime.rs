//! From the opening of the port to the end.

use serde_json::{Value, json};

use crate::http::data;
use crate::server::Server;
use crate::support::{Lab, vocabulary};

#[test]
#[cfg(unix)]
#[allow(unsafe_code, reason = "the standard library makes no named pipes")]
fn the_port_is_open_while_the_model_is_loaded() {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    let lab = Lab::new();
    // A vocabulary that comes when the test wants it.
    let pipe = lab.path("slow.vocab");
    let name = CString::new(pipe.as_os_str().as_bytes()).expect("a path");
    // SAFETY: the name is a string with an end.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let server = Server::begin(lab, "--vocab slow.vocab");
    assert_eq!(server.get("/health").status, 503);
    assert_eq!(server.get("/health").json(), json!({ "status": "loading" }));
    for _ in 0..4 {
        let response = server.post("/v1/completions", json!({ "prompt": "x", "max_tokens": 1 }));
        assert_eq!(response.header("retry-after"), Some("1"));
        response.fails(503, None, "being loaded");
    }
    server.get("/v1/models").fails(503, None, "being loaded");
    assert_eq!(server.get("/metrics").status, 200);
    std::fs::write(pipe, vocabulary()).expect("the server reads");
    server.wait_for("ready: ");
    assert_eq!(server.get("/health").status, 200);
    server.post("/v1/completions", json!({ "prompt": "x", "max_tokens": 1 })).ok();
}

#[test]
fn a_model_that_cannot_be_loaded_ends_the_server() {
    let lab = Lab::new();
    lab.write("broken.rwkv", b"this is no model, but a text");
    lab.run("serve broken.rwkv --port 0").fails(3, "broken.rwkv");
    lab.run("serve absent.rwkv --port 0").fails(1, "absent.rwkv");
    lab.run("serve tiny.rwkv --port 0 --vocab absent.vocab").fails(1, "absent.vocab");
}

#[test]
fn a_port_that_is_taken_is_said() {
    let server = Server::start("");
    let port = server.address.port();
    let ended = server.lab.run(&format!("serve tiny.rwkv --vocab tiny.vocab --port {port}"));
    ended.fails(1, &format!("cannot listen at 127.0.0.1:{port}"));
}

#[test]
#[cfg(unix)]
fn states_of_prompts_outlive_the_server() {
    let request = |server: &Server, prompt: &str| {
        let request =
            json!({ "prompt": prompt, "max_tokens": 4, "temperature": 0, "logit_bias": { "0": -100 } });
        server.post("/v1/completions", request).ok()
    };
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    let args = "--prefix-dir prefixes --prefix-bytes 1MiB";
    let prompt = "The state of the Union is strong.";
    let mut server = Server::start(args);
    let first = request(&server, prompt);
    assert_eq!(cached(&first), 0);
    assert_eq!(server.metric("rwkv_prefix_cache_files"), 0.0, "all of them have room in memory");
    server.signal(libc::SIGTERM);
    assert_eq!(server.wait().code(), Some(0));

    let server = Server::in_lab(server.into_lab(), args);
    assert!(server.metric("rwkv_prefix_cache_file_bytes") > 0.0);
    let again = request(&server, prompt);
    let all = &first["usage"]["prompt_tokens"];
    assert_eq!((&again["choices"], &cached(&again)), (&first["choices"], all));
    let more = request(&server, &format!("{prompt} And"));
    assert!(cached(&more).as_u64() >= all.as_u64(), "{more}");
    assert!(server.metric("rwkv_prefix_cache_restored_total") > 0.0);

    let none = Server::in_lab(server.into_lab(), "--prefix-dir prefixes --prefix-bytes 1");
    assert_eq!(none.metric("rwkv_prefix_cache_files"), 0.0);
    let lab = none.into_lab();
    lab.run("serve tiny.rwkv --port 0 --prefix-dir a --prefix-cache 0").fails(2, "nothing to keep");
    std::fs::create_dir(lab.path("a")).expect("a folder");
    lab.write("a/b", "");
    lab.run("serve tiny.rwkv --port 0 --prefix-dir a --state-dir a/../a").fails(2, "expected two");
    lab.run("serve tiny.rwkv --port 0 --vocab tiny.vocab --prefix-dir a/b").fails(1, "cannot be used");
}

#[test]
#[cfg(unix)]
fn running_answers_end_before_the_server_does() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut server = Server::start("");
        let request =
            json!({ "prompt": "x", "max_tokens": 2000, "stream": true, "logit_bias": { "0": -100 } });
        let mut client = server.connect();
        client.request("POST", "/v1/completions", &[], request.to_string().as_bytes());
        assert_eq!(client.head().status, 200);
        let mut body = client.chunk().expect("some text");
        let mut idle = server.connect();
        idle.request("GET", "/health", &[], b"");
        assert_eq!(idle.response().status, 200);
        server.signal(signal);
        server.wait_for("ending: no more requests are taken");
        while let Some(chunk) = client.chunk() {
            body.extend(chunk);
        }
        let events = data(std::str::from_utf8(&body).expect("text"));
        assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
        assert!(events[events.len() - 2].contains("\"finish_reason\":\"length\""));
        assert_eq!(server.wait().code(), Some(0), "{:?}", server.said());
    }
}

#[test]
#[cfg(unix)]
fn answers_that_never_end_are_cut_at_the_limit() {
    let mut server = Server::start("--shutdown-limit 0.2 --sessions 1");
    let request = json!({ "prompt": "x", "stream": true, "logit_bias": { "0": -100 } });
    let mut client = server.connect();
    client.request("POST", "/v1/completions", &[], request.to_string().as_bytes());
    assert_eq!(client.head().status, 200);
    server.signal(libc::SIGTERM);
    let mut body = Vec::new();
    while let Some(chunk) = client.chunk() {
        body.extend(chunk);
    }
    let events = data(std::str::from_utf8(&body).expect("text"));
    assert!(events.last().expect("an event").contains("the server is shutting down"), "{:?}", events.last());
    assert_eq!(server.wait().code(), Some(0));
}
