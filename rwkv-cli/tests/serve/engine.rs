//! The page, and the engine that it shows.

use std::collections::BTreeSet;

use rwkv_model::pack::Pack;
use serde_json::{Value, json};

use crate::http::Connection;
use crate::server::Server;

/// A listener at `/engine/events`.
struct Events {
    connection: Connection,
    buffer: String,
}

impl Events {
    fn open(server: &Server) -> Events {
        let mut connection = server.connect();
        connection.request("GET", "/engine/events", &[], b"");
        assert_eq!(connection.head().status, 200);
        Events { connection, buffer: String::new() }
    }

    /// The next event, if there is one.
    fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.buffer.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
                let found = field("event: ").zip(field("data: "));
                let found = found.map(|(name, data)| {
                    (name.to_owned(), serde_json::from_str(data).expect("an event's data is JSON"))
                });
                self.buffer = rest.to_owned();
                match found {
                    Some(found) => return Some(found),
                    // A comment that keeps the connection alive.
                    None => continue,
                }
            }
            let chunk = self.connection.chunk()?;
            self.buffer.push_str(std::str::from_utf8(&chunk).expect("events are text"));
        }
    }

    /// The next event of a name that is as wanted.
    fn until(&mut self, name: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let (found, data) = self.next().expect("the stream goes on");
            assert!(data["state"] != "failed", "{data}");
            if found == name && is_wanted(&data) {
                return data;
            }
        }
    }
}

fn smallest(server: &Server, sessions: usize) -> u64 {
    let facts = server.get("/engine").ok();
    let bounds = facts["budgets"].as_array().expect("budgets");
    let bounds = bounds.iter().find(|bounds| bounds["sessions"] == sessions).expect("so many sessions");
    bounds["smallest_bytes"].as_u64().expect("a number")
}

#[test]
fn the_page_needs_no_key_and_its_engine_does() {
    let server = Server::start("--api-key sesame");
    for path in ["/", "/page/base.css", "/page/main.js", "/page/icon.svg"] {
        let page = server.get(path);
        assert_eq!(page.status, 200, "{path}");
        let policy = page.header("content-security-policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        let tag = page.header("etag").expect("a tag");
        let again = server.request("GET", path, &[("If-None-Match", tag)], b"");
        assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
    }
    for path in ["/engine", "/engine/events"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    for path in ["/engine/run", "/engine/stop", "/engine/pass", "/engine/compare"] {
        assert_eq!(server.post(path, json!({})).status, 401, "{path}");
    }
}

#[test]
fn facts_are_those_of_the_manifest() {
    let server = Server::start("");
    let facts = server.get("/engine").ok();
    let pack = Pack::open(server.lab.path("tiny.rwkv")).expect("a pack");
    let groups = facts["groups"].as_array().expect("groups");
    assert_eq!(groups.len(), pack.manifest().groups.len());
    for (shown, group) in groups.iter().zip(&pack.manifest().groups) {
        assert_eq!(shown["name"], group.name.as_str());
        assert_eq!(shown["offset"], group.offset);
        assert_eq!(shown["bytes"], group.len);
        let tensors = shown["tensors"].as_array().expect("tensors");
        assert_eq!(tensors.len(), group.tensors.len());
        for (shown, tensor) in tensors.iter().zip(&group.tensors) {
            assert_eq!(shown["name"], tensor.name.as_str());
            assert_eq!(shown["offset"], group.offset + tensor.offset_in_group);
            assert_eq!((&shown["codec"], &shown["bytes"]), (&json!(tensor.codec), &json!(tensor.len)));
        }
    }
    // Nothing is said about where the files are.
    let text = facts.to_string();
    assert!(!text.contains(server.lab.path("").to_str().expect("a path")), "{text}");
}

#[test]
fn settings_are_checked() {
    let server = Server::start("");
    let smallest = smallest(&server, 1);
    let smallest_text = smallest.to_string();
    for (body, param, part) in [
        (json!({ "sessions": 3 }), Some("sessions"), "3"),
        (json!({ "sessions": "2" }), Some("sessions"), "2"),
        (json!({ "read_ahead": "far" }), Some("read_ahead"), "off, next or adaptive"),
        (json!({ "budget_bytes": smallest - 1 }), Some("budget_bytes"), smallest_text.as_str()),
        (json!({ "budget_bytes": -1 }), Some("budget_bytes"), "-1"),
    ] {
        server.post("/engine/run", body).fails(400, param, part);
    }
    server.post("/engine/compare", json!({ "comparison": "speed" })).fails(400, Some("comparison"), "speed");
    server.post("/engine/compare", json!({})).fails(400, Some("comparison"), "comparison");
    // Nothing runs, so there is no pass of it.
    server.post("/engine/pass", json!({})).fails(400, None, "/engine/run");
}

#[test]
fn a_streaming_engine_shows_what_it_does() {
    let server = Server::start("");
    let budget = smallest(&server, 2);
    let mut events = Events::open(&server);
    events.until("status", |status| status["state"] == "idle");
    server.post("/engine/run", json!({ "budget_bytes": budget, "sessions": 2, "read_ahead": "next" })).ok();
    let status = events.until("status", |status| status["state"] == "running");
    assert_eq!(status["settings"], json!({ "budget_bytes": budget, "sessions": 2, "read_ahead": "next" }));
    let tick = events.until("tick", |tick| tick["counters"]["sweeps"].as_u64() > Some(20));
    let counters = &tick["counters"];
    let count = |name: &str| counters[name].as_u64().expect("a number");
    assert!(count("tokens") >= 2 * count("sweeps"), "{counters}");
    assert!(count("reads") > 0 && count("read_bytes") > 0 && count("failed") == 0, "{counters}");
    assert!(count("wait_ns") <= count("sweep_ns"), "{counters}");
    assert_eq!(
        tick["slots"].as_array().map(Vec::len),
        status["memory"]["slots"].as_u64().map(|n| n as usize)
    );
    let sessions = events.until("sessions", |data| data["sessions"][1]["tokens"].as_u64() > Some(0));
    assert_eq!(sessions["sessions"].as_array().map(Vec::len), Some(2));
    let states = events.until("states", |_| true);
    let norms = states["norms"][1].as_array().expect("norms");
    assert!(norms.iter().all(|norm| norm.as_f64() > Some(0.0)), "{states}");
}

#[test]
fn a_recorded_pass_is_whole() {
    let server = Server::start("");
    let _events = Events::open(&server);
    server.post("/engine/run", json!({ "budget_bytes": smallest(&server, 1) })).ok();
    let pass = server.post("/engine/pass", json!({})).ok();
    let notes = pass["notes"].as_array().expect("notes");
    let pack = Pack::open(server.lab.path("tiny.rwkv")).expect("a pack");
    let (embed, find, head, release) = (0, 2, 8, 10);
    let of = |kind: u64| notes.iter().filter(move |note| note[0] == kind);
    let groups = |kind: u64| of(kind).map(|note| note[4].as_u64()).collect::<Vec<_>>();
    let swept = pack.manifest().groups.iter().enumerate().filter(|(_, group)| group.swept);
    let swept: BTreeSet<Option<u64>> = swept.map(|(index, _)| Some(index as u64)).collect();
    assert_eq!(of(embed).count(), 1);
    assert!(of(head).count() >= 1);
    for kind in [find, release] {
        let found = groups(kind);
        assert_eq!(found.len(), swept.len(), "each group once");
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), swept);
    }
    // Stages follow each other, and end within the pass.
    let end = pass["end_ns"].as_u64().expect("an end");
    let mut last = 0;
    for note in notes.iter().filter(|note| note[0].as_u64() < Some(20)) {
        let [begin, lasts] = [1, 2].map(|field| note[field].as_u64().expect("a number"));
        assert!(begin >= last && begin + lasts <= end, "{note} after {last}, before {end}");
        last = begin + lasts;
    }
}

#[test]
fn an_onlooker_who_does_not_read_holds_nothing_up() {
    let server = Server::start("");
    let mut idle = server.connect();
    idle.request("GET", "/engine/events", &[], b"");
    let mut events = Events::open(&server);
    server.post("/engine/run", json!({})).ok();
    let mut before = 0;
    for _ in 0..60 {
        let tick = events.until("tick", |tick| tick["counters"]["tokens"].as_u64() > Some(before));
        before = tick["counters"]["tokens"].as_u64().expect("a number");
    }
    drop(idle);
}

#[test]
fn onlookers_are_bounded_and_their_places_are_given_back() {
    let server = Server::start("");
    let mut all: Vec<Events> = (0..16).map(|_| Events::open(&server)).collect();
    server.get("/engine/events").fails(503, None, "too many");
    all.pop();
    loop {
        let mut connection = server.connect();
        connection.request("GET", "/engine/events", &[], b"");
        if connection.head().status == 200 {
            break;
        }
        std::thread::yield_now();
    }
}

#[test]
fn an_engine_stops_and_starts_and_the_server_ends_with_it() {
    let mut server = Server::start("");
    let mut events = Events::open(&server);
    for sessions in [1, 4, 2] {
        server.post("/engine/run", json!({ "sessions": sessions })).ok();
        let running =
            |status: &Value| status["state"] == "running" && status["settings"]["sessions"] == sessions;
        events.until("status", running);
    }
    server.post("/engine/stop", json!({})).ok();
    events.until("status", |status| status["state"] == "idle");
    server.post("/engine/run", json!({})).ok();
    events.until("tick", |tick| tick["counters"]["tokens"].as_u64() > Some(0));
    #[cfg(unix)]
    {
        server.signal(libc::SIGTERM);
        while events.next().is_some() {}
        assert!(server.wait().success());
    }
}

#[test]
fn a_comparison_gives_all_its_bars() {
    let server = Server::start("");
    let mut events = Events::open(&server);
    server.post("/engine/compare", json!({ "comparison": "sessions" })).ok();
    let done = events.until("compare-sessions", |data| data["done"] == true);
    let bars = done["bars"].as_array().expect("bars");
    assert_eq!(
        bars.iter().map(|bar| bar["sessions"].as_u64()).collect::<Vec<_>>(),
        [Some(1), Some(2), Some(4)]
    );
    assert!(bars.iter().all(|bar| bar["tokens_per_s"].as_f64() > Some(0.0)), "{done}");
    assert_eq!(bars[0]["one_by_one"], Value::Null, "{done}");
    assert!(bars[1..].iter().all(|bar| bar["one_by_one"].as_f64() > Some(0.0)), "{done}");
    events.until("status", |status| status["state"] == "idle");
}
