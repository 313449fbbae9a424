//! A server with the tiny model.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::http::{Connection, Response};
use crate::support::Lab;

/// A server that runs until it is dropped.
pub struct Server {
    pub lab: Lab,
    child: Child,
    pub address: SocketAddr,
    lines: Mutex<Receiver<String>>,
}

impl Server {
    /// A server that is ready.
    pub fn start(args: &str) -> Server {
        Server::in_lab(Lab::new(), args)
    }

    /// A server in a folder, that is ready.
    pub fn in_lab(lab: Lab, args: &str) -> Server {
        let server = Server::begin(lab, args);
        server.wait_for("ready: ");
        server
    }

    /// A server whose port is open.
    pub fn begin(lab: Lab, args: &str) -> Server {
        let vocabulary = if args.contains("--vocab") { "" } else { "--vocab tiny.vocab" };
        Server::of_model(lab, &format!("tiny.rwkv {vocabulary} {args}"))
    }

    /// A server of another model than the tiny one, whose port is open.
    pub fn of_model(lab: Lab, args: &str) -> Server {
        let args = format!("serve --port 0 --threads 1 {args}");
        let mut command: Command = lab.command(args.split_whitespace());
        let mut child = command.env_remove("RWKV_API_KEY").stderr(Stdio::piped()).spawn().expect("it starts");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let address = "127.0.0.1:0".parse().expect("an address");
        let mut server = Server { lab, child, address, lines: Mutex::new(lines) };
        let line = server.wait_for("listening at http://");
        server.address =
            line.rsplit('/').next().and_then(|address| address.parse().ok()).expect("an address");
        server
    }

    /// Waits until the program says something.
    #[track_caller]
    pub fn wait_for(&self, part: &str) -> String {
        let mut seen = Vec::new();
        loop {
            let Ok(line) = self.lines.lock().expect("no test panicked").recv() else {
                panic!("the server ended: {seen:?}")
            };
            if line.contains(part) {
                return line;
            }
            seen.push(line);
        }
    }

    pub fn connect(&self) -> Connection {
        Connection::open(self.address)
    }

    /// One request on a connection of its own.
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        let all = [headers, &[("Connection", "close")]].concat();
        let mut connection = self.connect();
        connection.request(method, path, &all, body);
        connection.response()
    }

    pub fn get(&self, path: &str) -> Response {
        self.request("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: Value) -> Response {
        self.request("POST", path, &[], body.to_string().as_bytes())
    }

    /// The value of a metric without labels.
    #[track_caller]
    pub fn metric(&self, name: &str) -> f64 {
        let metrics = self.get("/metrics");
        assert_eq!(metrics.status, 200);
        let line = metrics.text().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no metric {name} in {}", metrics.text())).parse().expect("a number")
    }

    /// Waits until a metric has a value. A test that waits in vain is ended from outside.
    pub fn wait_for_metric(&self, name: &str, is_there: impl Fn(f64) -> bool) {
        while !is_there(self.metric(name)) {
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends a signal.
    #[cfg(unix)]
    #[allow(unsafe_code, reason = "the standard library sends no signals but the deadly one")]
    pub fn signal(&self, signal: i32) {
        let id = i32::try_from(self.child.id()).expect("a process id");
        // SAFETY: kill has no preconditions, and the child was not waited for.
        assert_eq!(unsafe { libc::kill(id, signal) }, 0);
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }

    /// The folder, for another server.
    pub fn into_lab(mut self) -> Lab {
        std::mem::replace(&mut self.lab, Lab::empty())
    }

    /// What it said that was not waited for.
    pub fn said(&self) -> Vec<String> {
        self.lines.lock().expect("no test panicked").iter().collect()
    }

    /// Memory of the process, where the system says it.
    pub fn rss_bytes(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    }

    /// Open files of the process, where the system says it.
    pub fn open_files(&self) -> Option<usize> {
        Some(std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).ok()?.count())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(mut out) = self.child.stdout.take() {
            let mut text = String::new();
            let _ = out.read_to_string(&mut text);
        }
    }
}
