//! Who may ask.

use serde_json::json;

use crate::server::Server;
use crate::support::Lab;

const CHAT: &[u8] = br#"{"messages":[{"role":"user","content":"x"}],"max_tokens":1}"#;

#[test]
fn nothing_is_answered_without_the_key() {
    let server = Server::start("--api-key s3cret-key --state-dir states");
    for (method, path) in [
        ("GET", "/v1/models"),
        ("GET", "/v1/models/tiny"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/embeddings"),
        ("GET", "/v1/states"),
        ("POST", "/v1/states"),
        ("GET", "/v1/states/x"),
        ("DELETE", "/v1/states/x"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("GET", "/metrics"),
    ] {
        for key in [
            None,
            Some("Bearer wrong"),
            Some("Bearer s3cret-ke"),
            Some("Bearer s3cret-key2"),
            Some("Basic s3cret-key"),
            Some("Bearer "),
            Some("s3cret-key"),
            Some(""),
        ] {
            let headers: Vec<(&str, &str)> = key.map(|key| ("Authorization", key)).into_iter().collect();
            let response = server.request(method, path, &headers, CHAT);
            response.fails(401, None, "key");
            assert_eq!(response.header("www-authenticate"), Some("Bearer"));
            assert_eq!(response.json()["error"]["code"], "invalid_api_key");
        }
        let response = server.request(method, path, &[("Authorization", "bearer s3cret-key")], CHAT);
        assert_ne!(response.status, 401, "{path}");
    }
    let health = server.get("/health");
    assert_eq!(health.ok(), json!({ "status": "ok" }));
    for path in ["/openapi.json", "/health", "/nothing", "/v1/models"] {
        let response = server.get(path);
        let text = response.text();
        assert!(!text.contains("tiny") && !text.contains("/tmp"), "{path}: {text}");
        assert!(response.header("server").is_none());
    }
}

#[test]
fn the_key_may_come_from_the_environment() {
    let lab = Lab::new();
    let mut command = lab.command("serve tiny.rwkv --port 0 --vocab tiny.vocab".split(' '));
    let output = command.env("RWKV_API_KEY", "with blank").output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).expect("text");
    assert!(message.contains("without blanks") && !message.contains("with blank"), "{message}");
    let help = lab.command(["serve", "--help"]).env("RWKV_API_KEY", "s3cret").output().expect("it runs");
    assert!(!String::from_utf8(help.stdout).expect("text").contains("s3cret"));
}

#[test]
fn pages_of_other_origins_are_kept_out() {
    let server = Server::start("--cors-origin https://app.example");
    let ask = |headers: &[(&str, &str)]| server.request("POST", "/v1/chat/completions", headers, CHAT);
    let own = server.address.to_string();
    ask(&[]).ok();
    ask(&[("Origin", &format!("http://{own}")), ("Host", &own)]).ok();
    ask(&[("Origin", "http://localhost"), ("Host", "localhost")]).ok();
    for origin in [
        "https://evil.example",
        "null",
        "http://app.example",
        "https://app.example.evil",
        "http://127.0.0.1:1",
    ] {
        ask(&[("Origin", origin)]).fails(403, None, "origin");
    }
    let allowed = ask(&[("Origin", "https://app.example")]);
    assert_eq!(allowed.status, 200);
    assert_eq!(allowed.header("access-control-allow-origin"), Some("https://app.example"));
    // Errors can be read, too.
    let wrong = server.request("POST", "/v1/completions", &[("Origin", "https://app.example")], b"{");
    assert_eq!(
        (wrong.status, wrong.header("access-control-allow-origin")),
        (400, Some("https://app.example"))
    );
    let denied = ask(&[("Origin", "https://evil.example")]);
    assert_eq!(denied.header("access-control-allow-origin"), None);
}

#[test]
fn a_preflight_needs_no_key() {
    let server = Server::start("--cors-origin https://app.example --api-key s3cret");
    let headers = [
        ("Origin", "https://app.example"),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "authorization,content-type,x-stainless-os"),
    ];
    let preflight = server.request("OPTIONS", "/v1/chat/completions", &headers, b"");
    assert_eq!(preflight.status, 200, "{}", preflight.text());
    assert_eq!(preflight.header("access-control-allow-origin"), Some("https://app.example"));
    let allowed = preflight.header("access-control-allow-headers").expect("headers").to_lowercase();
    assert!(
        ["authorization", "content-type", "x-stainless-os"].iter().all(|name| allowed.contains(name)),
        "{allowed}"
    );
    assert!(preflight.header("access-control-allow-methods").expect("methods").contains("POST"));
    let health = server.request("GET", "/health", &headers[..1], b"");
    assert_eq!(
        (health.status, health.header("access-control-allow-origin")),
        (200, Some("https://app.example"))
    );
    let denied = server.request("POST", "/v1/chat/completions", &headers[..1], CHAT);
    assert_eq!(
        (denied.status, denied.header("access-control-allow-origin")),
        (401, Some("https://app.example"))
    );
    let other = [("Origin", "https://evil.example"), headers[1], headers[2]];
    let preflight = server.request("OPTIONS", "/v1/chat/completions", &other, b"");
    assert_eq!(preflight.header("access-control-allow-origin"), None);
}

#[test]
fn at_a_loopback_address_only_loopback_names_are_answered() {
    let server = Server::start("");
    for host in ["127.0.0.1", "127.0.0.1:8080", "localhost", "LOCALHOST:99", "[::1]:8080", "127.9.9.9"] {
        assert_eq!(server.request("GET", "/health", &[("Host", host)], b"").status, 200, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example:8080", "10.0.0.1", "127.0.0.1.evil.example", "[::2]"]
    {
        server.request("GET", "/health", &[("Host", host)], b"").fails(
            403,
            None,
            "does not answer for the host",
        );
    }
    server.request("GET", "/health", &[("Host", "a b/c")], b"").fails(400, None, "Host");
}

#[test]
fn what_cannot_be_meant_is_refused_at_the_start() {
    let lab = Lab::new();
    for (args, part) in [
        ("--cors-origin *", "is no origin"),
        ("--cors-origin example.org", "is no origin"),
        ("--cors-origin https://example.org/", "is no origin"),
        ("--cors-origin https://example.org/path", "is no origin"),
        ("--sessions 0", "--sessions"),
        ("--queue-timeout=-1", "seconds"),
        ("--queue-timeout soon", "seconds"),
        ("--body-limit many", "is no size"),
        ("--template absent.jinja", "absent.jinja: cannot be read"),
        ("--host example.org", "--host"),
    ] {
        let ended = lab.run(&format!("serve tiny.rwkv --port 0 --vocab tiny.vocab {args}"));
        let code = if part.contains("cannot be read") { 1 } else { 2 };
        ended.fails(code, part);
    }
    lab.write("broken.jinja", "{% for m in messages %}");
    lab.run("serve tiny.rwkv --port 0 --vocab tiny.vocab --template broken.jinja").fails(2, "broken.jinja");
    lab.write("file", "");
    lab.run("serve tiny.rwkv --port 0 --vocab tiny.vocab --state-dir file").fails(1, "--state-dir file");
}
