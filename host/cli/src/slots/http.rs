//! The door in front of llama-server's slot calls.
//!
//! A restore names a file, and llama-server reads it at once, so the file must be there before the call. The
//! door unpacks it, passes the call on, and removes the copy. All other calls of `/slots` pass as they are.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rayon::{ThreadPool, ThreadPoolBuilder};
use serde_json::{Value, json};
use tiny_http::{Header, Method, Request, Response, Server};
use ureq::Agent;
use ureq::http;

use super::folder::{Folder, Given, is_reserved};
use crate::error::CliError;
use crate::output::note;
use crate::signals;

/// Longest body of a call: a file name.
const LONGEST_CALL: u64 = 1 << 20;
/// Longest answer: `GET /slots` names the prompt of every slot.
const LONGEST_ANSWER: u64 = 256 << 20;
/// Time in which llama-server takes a connection. Its answer may take minutes.
const CONNECT: Duration = Duration::from_secs(10);
/// Time between two looks at a signal.
const LOOK: Duration = Duration::from_millis(200);
/// Headers of a call that are passed on.
const PASSED: [&str; 3] = ["Authorization", "X-Api-Key", "Content-Type"];
const JSON: &str = "application/json; charset=utf-8";

/// A listening door.
pub(crate) struct Door {
    server: Server,
    agent: Agent,
    to: String,
    threads: ThreadPool,
    restored: AtomicUsize,
}

struct Answer {
    status: u16,
    content_type: String,
    body: Vec<u8>,
}

impl Answer {
    /// An error in llama-server's form.
    fn error(status: u16, message: &str) -> Self {
        let body = json!({ "error": { "code": status, "message": message, "type": "tqkv" } });
        Self { status, content_type: JSON.into(), body: body.to_string().into_bytes() }
    }

    fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// A call that reads or writes a file of the folder.
#[derive(Debug, PartialEq, Eq)]
enum Call {
    Save(String),
    Restore(String),
}

impl Call {
    /// The call of a path and a body, if it is one of these.
    fn parse(path: &str, body: &[u8]) -> Option<Self> {
        let (_, query) = path.split_once('?')?;
        let action = query.split('&').find_map(|pair| pair.strip_prefix("action="))?;
        let body: Value = serde_json::from_slice(body).ok()?;
        let name = body.get("filename")?.as_str()?.to_owned();
        match action {
            "save" => Some(Self::Save(name)),
            "restore" => Some(Self::Restore(name)),
            _ => None,
        }
    }

    fn name(&self) -> &str {
        let (Self::Save(name) | Self::Restore(name)) = self;
        name
    }
}

impl Door {
    /// Listens at `listen` in front of the server at the address `to`.
    ///
    /// # Errors
    /// An address that is not valid, or in use.
    pub(crate) fn open(listen: &str, to: &str) -> Result<Self, CliError> {
        let server = Server::http(listen)
            .map_err(|error| CliError::bad_input(format_args!("--listen {listen}: {error}")))?;
        let is_plain = to.parse::<http::Uri>().is_ok_and(|uri| uri.scheme_str() == Some("http"));
        if !is_plain {
            return Err(CliError::bad_input(format_args!(
                "--server {to} is not valid: expected http://HOST:PORT"
            )));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_connect(Some(CONNECT))
            .build();
        // Packing holds the command's own pool for minutes; a restore does not wait for it.
        let threads = ThreadPoolBuilder::new().num_threads(rayon::current_num_threads()).build();
        let threads = threads.map_err(|error| CliError::failure(format_args!("no thread: {error}")))?;
        let to = to.trim_end_matches('/').to_owned();
        Ok(Self { server, agent: config.new_agent(), to, threads, restored: AtomicUsize::new(0) })
    }

    /// The address with its port.
    pub(crate) fn address(&self) -> String {
        self.server.server_addr().to_string()
    }

    /// Number of restores from a pack.
    pub(crate) fn restored(&self) -> usize {
        self.restored.load(Ordering::Relaxed)
    }

    /// Answers calls until a signal. Several threads may do so.
    pub(crate) fn answer(&self, folder: &Folder<'_>) {
        while !signals::interrupted() {
            match self.server.recv_timeout(LOOK) {
                Ok(Some(mut request)) => {
                    let answer = self.call(folder, &mut request);
                    let content_type = Header::from_bytes("Content-Type", answer.content_type);
                    let mut response = Response::from_data(answer.body).with_status_code(answer.status);
                    if let Ok(content_type) = content_type {
                        response.add_header(content_type);
                    }
                    // A client that is gone needs no answer.
                    let _ = request.respond(response);
                }
                Ok(None) => {}
                Err(error) => note(format_args!("door: {error}")),
            }
        }
    }

    fn call(&self, folder: &Folder<'_>, request: &mut Request) -> Answer {
        let path = request.url().to_owned();
        let is_slots =
            path.strip_prefix("/slots").is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']));
        if !is_slots {
            let why = format!("{path} is not valid here: expected /slots; ask {} for all else", self.to);
            return Answer::error(404, &why);
        }
        let mut body = Vec::new();
        match request.as_reader().take(LONGEST_CALL + 1).read_to_end(&mut body) {
            Ok(length) if length as u64 <= LONGEST_CALL => {}
            Ok(_) => {
                return Answer::error(
                    413,
                    &format!("the body is not valid: expected {LONGEST_CALL} bytes at most"),
                );
            }
            Err(error) => return Answer::error(400, &error.to_string()),
        }
        let call = Call::parse(&path, &body).filter(|_| *request.method() == Method::Post);
        let Some(call) = call else { return self.pass(request, &path, body) };
        if is_reserved(call.name()) {
            let why = format!(
                "filename {:?} is not valid: expected no path, no dot first and none of .tqs, .tqkv-",
                call.name()
            );
            return Answer::error(400, &why);
        }
        let _taken = folder.take(call.name());
        match &call {
            Call::Save(name) => {
                let answer = self.pass(request, &path, body);
                if answer.is_success() {
                    folder.saved(name);
                }
                answer
            }
            Call::Restore(name) => self.restore(folder, name, || self.pass(request, &path, body)),
        }
    }

    fn restore(&self, folder: &Folder<'_>, name: &str, pass: impl FnOnce() -> Answer) -> Answer {
        let given = match self.threads.install(|| folder.give(name)) {
            Ok(given) => given,
            Err(error) => {
                note(format_args!("{name}: not restored: {error}"));
                return Answer::error(500, &format!("{name}: {error}"));
            }
        };
        let answer = pass();
        if given == Given::Copy {
            self.restored.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = folder.take_back(name) {
                note(format_args!("{name}: {error}"));
            }
        }
        answer
    }

    /// Passes a call on.
    fn pass(&self, request: &Request, path: &str, body: Vec<u8>) -> Answer {
        let uri = format!("{}{path}", self.to);
        let mut to = http::Request::builder().uri(&uri);
        for header in request.headers() {
            let is_passed = PASSED.iter().any(|name| header.field.equiv(name));
            if is_passed {
                to = to.header(header.field.as_str().as_str(), header.value.as_str());
            }
        }
        let sent = match request.method() {
            Method::Get => {
                to.method("GET").body(()).map_err(ureq::Error::from).and_then(|call| self.agent.run(call))
            }
            Method::Post => {
                to.method("POST").body(body).map_err(ureq::Error::from).and_then(|call| self.agent.run(call))
            }
            other => return Answer::error(405, &format!("{other} is not valid: expected GET or POST")),
        };
        let answer = sent.and_then(|mut answer| {
            let content_type = answer.headers().get("Content-Type").and_then(|text| text.to_str().ok());
            let content_type = content_type.unwrap_or(JSON).to_owned();
            let body = answer.body_mut().with_config().limit(LONGEST_ANSWER).read_to_vec()?;
            Ok(Answer { status: answer.status().as_u16(), content_type, body })
        });
        answer.unwrap_or_else(|error| Answer::error(502, &format!("llama-server at {}: {error}", self.to)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_files_are_known() {
        let body = br#"{"filename": "a.bin"}"#;
        let (save, restore) = (Call::Save("a.bin".into()), Call::Restore("a.bin".into()));
        for (path, body, expected) in [
            ("/slots/0?action=save", &body[..], Some(save)),
            ("/slots/0?model=m&action=restore", body, Some(restore)),
            ("/slots/0?action=erase", body, None),
            ("/slots/0", body, None),
            ("/slots/0?action=save", b"{}", None),
            ("/slots/0?action=save", b"no JSON", None),
            ("/slots/0?action=save", br#"{"filename": 1}"#, None),
        ] {
            assert_eq!(Call::parse(path, body), expected, "{path}");
        }
    }
}
