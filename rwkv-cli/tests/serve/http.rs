//! A client that does what it is told, wrong things included.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// No test waits longer for a byte.
const PATIENCE: Duration = Duration::from_secs(120);

/// An answer.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The body as text.
    #[track_caller]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body is text")
    }

    /// The body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }

    /// The JSON of a 200.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// Checks an error: its status, the field that it names, and a part of its message.
    #[track_caller]
    pub fn fails(&self, status: u16, param: Option<&str>, part: &str) {
        assert_eq!(self.status, status, "{}", self.text());
        let error = &self.json()["error"];
        assert_eq!(error["param"].as_str(), param, "{error}");
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains(part), "{message:?} lacks {part:?}");
        assert!(error["type"].is_string(), "{error}");
    }
}

/// A connection.
pub struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    pub fn open(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Connection { reader: BufReader::new(stream) }
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).expect("the server reads");
    }

    /// Sends a request; the connection is kept.
    pub fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nContent-Length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str("Host: localhost\r\n");
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.send(&[head.as_bytes(), body].concat());
    }

    /// Reads the head of an answer.
    pub fn head(&mut self) -> Response {
        let status = self.line();
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status line");
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
        Response { status, headers, body: Vec::new() }
    }

    /// Reads an answer.
    pub fn response(&mut self) -> Response {
        let mut response = self.head();
        if let Some(length) = response.header("content-length") {
            response.body = vec![0; length.parse().expect("a length")];
            self.reader.read_exact(&mut response.body).expect("a body");
        } else if ![204, 304].contains(&response.status) {
            while let Some(chunk) = self.chunk() {
                response.body.extend(chunk);
            }
        }
        response
    }

    /// Reads a chunk of a body that comes in chunks; `None` is its end.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = self.line();
        let length =
            usize::from_str_radix(line.trim(), 16).unwrap_or_else(|_| panic!("{line:?} is no length"));
        let mut chunk = vec![0; length];
        self.reader.read_exact(&mut chunk).expect("a chunk");
        assert_eq!(self.line(), "", "a chunk ends");
        (length > 0).then_some(chunk)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("a line");
        line.trim_end_matches(['\r', '\n']).to_owned()
    }
}

/// The `data` of server-sent events, comments left out.
pub fn data(body: &str) -> Vec<String> {
    assert!(body.ends_with("\n\n"), "{body:?}");
    let event = |event: &str| {
        let lines = event.lines().filter(|line| !line.starts_with(':'));
        let data: Vec<&str> =
            lines.map(|line| line.strip_prefix("data: ").unwrap_or_else(|| panic!("{line:?}"))).collect();
        (!data.is_empty()).then(|| data.join("\n"))
    };
    body.split_terminator("\n\n").filter_map(event).collect()
}
