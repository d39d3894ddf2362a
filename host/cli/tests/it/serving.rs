//! `tqkv session serve` and a server that saves and restores as llama-server does, for its tests.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tiny_http::{Response, Server};

use crate::PROGRAM;
use crate::session::STATE;
use crate::support::json;

/// A server of slots. Restores keep what they read. It refuses the key `bad`, and never answers a restore of
/// `hang.bin`.
pub(crate) struct Engine {
    server: Arc<Server>,
    pub(crate) read: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Engine {
    pub(crate) fn new(folder: &Path) -> Self {
        let server = Arc::new(Server::http("127.0.0.1:0").unwrap());
        let read = Arc::new(Mutex::new(Vec::new()));
        let (own, kept, folder) = (Arc::clone(&server), Arc::clone(&read), folder.to_owned());
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for mut request in own.incoming_requests() {
                let mut body = String::new();
                request.as_reader().read_to_string(&mut body).unwrap();
                let name = serde_json::from_str(&body).unwrap_or(Value::Null)["filename"].clone();
                let path = folder.join(name.as_str().unwrap_or("none"));
                let key = request.headers().iter().find(|header| header.field.equiv("Authorization"));
                let key = key.map_or("", |header| header.value.as_str()).to_owned();
                if path.ends_with("hang.bin") && request.url().ends_with("action=restore") {
                    held.push(request);
                    continue;
                }
                let (status, answer) = if key == "Bearer bad" {
                    (401, "no key".to_owned())
                } else if request.url().ends_with("action=save") {
                    fs::write(path, STATE).unwrap();
                    (200, "saved".to_owned())
                } else if request.url().ends_with("action=restore") {
                    match fs::read(path) {
                        Ok(bytes) => {
                            kept.lock().unwrap().push(bytes);
                            (200, "restored".to_owned())
                        }
                        Err(error) => (400, error.to_string()),
                    }
                } else {
                    (200, format!("{} {} {key}", request.method(), request.url()))
                };
                // The door may be gone.
                let _ = request.respond(Response::from_string(answer).with_status_code(status));
            }
        });
        Self { server, read }
    }

    pub(crate) fn address(&self) -> String {
        format!("http://{}", self.server.server_addr())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.server.unblock();
    }
}

/// A running `session serve`.
pub(crate) struct Served {
    pub(crate) child: Child,
    pub(crate) door: String,
    notes: Arc<Mutex<String>>,
}

impl Served {
    pub(crate) fn start(folder: &Path, server: &str, args: &[&str]) -> Self {
        Self::start_as(Command::new(PROGRAM), folder, server, args)
    }

    /// Starts it through a command that takes its arguments.
    pub(crate) fn start_as(mut command: Command, folder: &Path, server: &str, args: &[&str]) -> Self {
        command.args(["session", "serve", "--listen", "127.0.0.1:0", "--head-dim", "64", "--json"]);
        command.args(["--server", server]).args(args).arg(folder);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut from = BufReader::new(child.stderr.take().unwrap());
        from.read_line(&mut line).unwrap();
        let door = line.split(' ').find(|word| word.starts_with("http://"));
        let door = door.unwrap_or_else(|| panic!("no address: {line}")).to_owned();
        let notes = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&notes);
        // Notes that nobody reads would stop the command once the pipe is full.
        std::thread::spawn(move || {
            for line in from.lines().map_while(Result::ok) {
                kept.lock().unwrap().push_str(&format!("{line}\n"));
            }
        });
        Self { child, door, notes }
    }

    /// Its notes when they hold a text, which may come a moment after the answer.
    pub(crate) fn notes_with(&self, text: &str) -> String {
        for _ in 0..400 {
            if self.notes().contains(text) {
                break;
            }
            sleep(Duration::from_millis(25));
        }
        self.notes()
    }

    /// Its notes so far.
    pub(crate) fn notes(&self) -> String {
        self.notes.lock().unwrap().clone()
    }

    /// A connection to the door.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.door.trim_start_matches("http://")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Sends bytes as they are. Returns the status and all that comes.
    pub(crate) fn send(&self, bytes: &[u8]) -> (u16, String) {
        let mut stream = self.connect();
        // A door that refuses it may not read it all.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        (answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0), answer)
    }

    /// Sends a call with further headers.
    pub(crate) fn raw(&self, first: &str, headers: &str, body: &str) -> (u16, String) {
        let length = body.len();
        self.send(format!("{first} HTTP/1.1\r\n{headers}Content-Length: {length}\r\n\r\n{body}").as_bytes())
    }

    /// Asks it to end. Returns the time that it took.
    #[cfg(unix)]
    pub(crate) fn terminate(&mut self) -> Duration {
        let clock = Instant::now();
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        while self.child.try_wait().unwrap().is_none() {
            assert!(clock.elapsed() < Duration::from_secs(30), "it does not end");
            sleep(Duration::from_millis(20));
        }
        clock.elapsed()
    }

    /// Sends a call. Returns the status and the answer.
    pub(crate) fn call(&self, path: &str, name: Option<&str>) -> (u16, String) {
        let agent = agent();
        let url = format!("{}{path}", self.door);
        let answer = match name {
            Some(name) => agent.post(url).send(serde_json::json!({ "filename": name }).to_string()),
            None => agent.get(url).header("Authorization", "Bearer key").call(),
        };
        let mut answer = answer.unwrap();
        (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
    }

    /// Ends it politely. Returns its JSON.
    #[cfg(unix)]
    pub(crate) fn end(mut self) -> Value {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let mut text = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success(), "{text}");
        serde_json::from_str(&text).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All names in a folder, sorted.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

pub(crate) fn wait_for(folder: &Path, expected: &[&str]) {
    let clock = Instant::now();
    while names(folder) != expected {
        assert!(clock.elapsed() < Duration::from_secs(60), "{:?} is not {expected:?}", names(folder));
        sleep(Duration::from_millis(20));
    }
}

/// The pack of [`STATE`], and the state that `session unpack` makes of it.
pub(crate) fn unpacked(at: &Path) -> (Vec<u8>, Vec<u8>) {
    fs::write(at.join("in.bin"), STATE).unwrap();
    json(at, &["session", "pack", "--head-dim", "64", "in.bin", "in.tqs"]);
    json(at, &["session", "unpack", "in.tqs", "out.bin"]);
    (fs::read(at.join("in.tqs")).unwrap(), fs::read(at.join("out.bin")).unwrap())
}

pub(crate) fn slots(at: &Path) -> PathBuf {
    let folder = at.join("slots");
    fs::create_dir(&folder).unwrap();
    folder
}

/// A client that goes to this machine alone, whatever proxy the environment names.
pub(crate) fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build().new_agent()
}
