//! A request, and the call that it is.
//!
//! llama-server reads more freely than this. It takes escapes in names of parameters, the first of two
//! values, and parameters from a form in the body. So a request that could be read in two ways is refused.
//! The call that is passed on is made anew from what was read here.

use std::net::{IpAddr, Ipv6Addr};

use http::header::{HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, Uri};
use serde_json::Value;

use super::name;

/// Why a request is refused, and the status that says so.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) status: u16,
    pub(crate) why: String,
}

impl Refused {
    pub(crate) fn new(status: u16, why: impl Into<String>) -> Self {
        Self { status, why: why.into() }
    }
}

/// The use of a file of the folder by a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileUse {
    /// Nothing.
    Pass,
    /// llama-server writes it.
    Save(String),
    /// llama-server reads it.
    Restore(String),
}

/// A call for llama-server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: String,
    /// JSON, or nothing.
    pub(crate) body: Vec<u8>,
    pub(crate) work: FileUse,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Save,
    Restore,
    Erase,
}

/// The first part of a call. Its body is still to be read.
#[derive(Debug)]
pub(crate) struct CallHead {
    target: String,
    /// `None` for what only asks.
    action: Option<Action>,
}

impl CallHead {
    /// Reads a request without its body, for a proxy that has this name in `--listen`.
    ///
    /// # Errors
    /// 403 for a page of another site, 404 for another path, 405 for another method. 400 for all that could
    /// be read in two ways.
    pub(crate) fn read(parts: &Parts, listen: &str) -> Result<Self, Refused> {
        is_from_here(&parts.uri, &parts.headers, listen)?;
        let path = parts.uri.path();
        let Some(slot) = slot(path) else {
            return Err(Refused::new(404, format!("{path} is not valid here: expected /slots or /slots/N")));
        };
        let action = action(parts.uri.query().unwrap_or(""))?;
        let action = match (&parts.method, action) {
            (&Method::GET, None) => None,
            (&Method::POST, Some(action)) if slot => Some(action),
            (&Method::POST, _) => {
                return Err(Refused::new(
                    400,
                    "POST is for /slots/N?action=, with one action: save, restore or erase",
                ));
            }
            (&Method::GET, Some(_)) => {
                return Err(Refused::new(405, "an action is not valid with GET: expected POST"));
            }
            (other, _) => {
                return Err(Refused::new(405, format!("{other} is not valid: expected GET or POST")));
            }
        };
        let target = parts.uri.path_and_query().map_or(path, |target| target.as_str()).to_owned();
        Ok(Self { target, action })
    }

    /// Returns true if the body matters.
    pub(crate) fn has_body(&self) -> bool {
        self.action.is_some()
    }

    /// The call with its body.
    ///
    /// # Errors
    /// 400 for a body that is no JSON object, and for a file name that no state has.
    pub(crate) fn call(self, body: &[u8]) -> Result<Call, Refused> {
        let Self { target, action } = self;
        let Some(action) = action else {
            return Ok(Call { method: Method::GET, target, body: Vec::new(), work: FileUse::Pass });
        };
        if action == Action::Erase && body.is_empty() {
            return Ok(Call { method: Method::POST, target, body: Vec::new(), work: FileUse::Pass });
        }
        let body: Value = serde_json::from_slice(body)
            .map_err(|error| Refused::new(400, format!("the body is not valid: {error}; expected JSON")))?;
        if !body.is_object() {
            return Err(Refused::new(400, "the body is not valid: expected a JSON object"));
        }
        let work = match action {
            Action::Erase => FileUse::Pass,
            Action::Save => FileUse::Save(filename(&body)?),
            Action::Restore => FileUse::Restore(filename(&body)?),
        };
        Ok(Call { method: Method::POST, target, body: body.to_string().into_bytes(), work })
    }
}

/// For a valid path, true if it names a slot.
fn slot(path: &str) -> Option<bool> {
    if path == "/slots" {
        return Some(false);
    }
    let number = path.strip_prefix("/slots/")?;
    let is_number = (1..=9).contains(&number.len()) && number.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then_some(true)
}

/// The action that a query names.
fn action(query: &str) -> Result<Option<Action>, Refused> {
    let mut found = None;
    for pair in query.split('&') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if key.contains(['%', '+']) {
            return Err(Refused::new(
                400,
                format!("parameter {key} is not valid: expected its name without escapes"),
            ));
        }
        if key != "action" {
            continue;
        }
        let action = match value {
            "save" => Action::Save,
            "restore" => Action::Restore,
            "erase" => Action::Erase,
            other => {
                let why =
                    format!("action {other} is not valid: expected save, restore or erase, without escapes");
                return Err(Refused::new(400, why));
            }
        };
        if found.replace(action).is_some() {
            return Err(Refused::new(400, "action is not valid: expected it once"));
        }
    }
    Ok(found)
}

fn filename(body: &Value) -> Result<String, Refused> {
    let Some(name) = body.get("filename").and_then(Value::as_str) else {
        return Err(Refused::new(400, r#"the body is not valid: expected {"filename": "NAME"}"#));
    };
    match name::fault(name) {
        Some(fault) => Err(Refused::new(400, format!("filename {name:?} is not valid: {fault}"))),
        None => Ok(name.to_owned()),
    }
}

/// Refuses requests that a page of another site made a browser send. A page that uses the proxy's address has
/// an origin of its own. A page that uses a name of its own, which leads here, has that name as the host.
fn is_from_here(uri: &Uri, headers: &HeaderMap, listen: &str) -> Result<(), Refused> {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None, None) = (hosts.next(), hosts.next(), uri.authority()) else {
        return Err(Refused::new(400, "expected one header Host, and a path alone in the first line"));
    };
    let host = host.to_str().ok().and_then(bare).filter(|host| is_address(host) || is_own(host, listen));
    let Some(host) = host else {
        return Err(Refused::new(
            403,
            "the header Host is not valid: expected localhost, an IP address or the host of --listen",
        ));
    };
    let mut origins = headers.get_all(ORIGIN).iter();
    let is_own_page = origins.all(|origin| {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        let from =
            origin.filter(|(scheme, _)| ["http", "https"].contains(scheme)).and_then(|(_, host)| bare(host));
        from.is_some_and(|from| is_own(from, listen) || from.eq_ignore_ascii_case(host))
    });
    let is_cross = headers.get_all(FETCH_SITE).iter().any(|site| site == "cross-site");
    if is_own_page && !is_cross {
        return Ok(());
    }
    Err(Refused::new(403, "a page of another site sent this: expected none, or one of this machine"))
}

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The host of `HOST` or `HOST:PORT`, without the brackets of an IPv6 address.
fn bare(text: &str) -> Option<&str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(text) => text.split_once(']').filter(|(host, _)| host.parse::<Ipv6Addr>().is_ok())?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let is_port = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
    let is_valid = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
    (is_valid && !host.is_empty()).then_some(host)
}

/// No name server decides where an address leads.
fn is_address(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok()
}

/// This machine by its usual names, or the host that `--listen` names.
fn is_own(host: &str, listen: &str) -> bool {
    let is_loopback = host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    is_loopback || host.eq_ignore_ascii_case("localhost") || host.eq_ignore_ascii_case(listen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(first: &str, body: &str) -> Result<Call, Refused> {
        let (method, target) = first.split_once(' ').unwrap();
        let request = http::Request::builder().method(method).uri(target).header(HOST, "localhost:8081");
        CallHead::read(&request.body(()).unwrap().into_parts().0, "127.0.0.1")?.call(body.as_bytes())
    }

    #[test]
    fn calls_of_files_are_known() {
        let body = r#"{"filename": "a.bin"}"#;
        for (first, body, work) in [
            ("POST /slots/0?action=save", body, FileUse::Save("a.bin".into())),
            ("POST /slots/0?model=m%2Fn&action=restore", body, FileUse::Restore("a.bin".into())),
            ("POST /slots/0?action=erase", "", FileUse::Pass),
            ("POST /slots/0?action=erase", body, FileUse::Pass),
            ("GET /slots?model=m", "", FileUse::Pass),
        ] {
            let call = call(first, body).unwrap();
            assert_eq!(call.work, work, "{first}");
            assert!(first.ends_with(&call.target), "{first}");
        }
    }

    #[test]
    fn what_is_passed_on_names_the_file_that_was_read() {
        let two = r#"{"filename": "a.bin", "x": 1, "filename": "\u0062.bin"}"#;
        let call = call("POST /slots/0?action=save", two).unwrap();
        assert_eq!(call.work, FileUse::Save("b.bin".into()));
        assert_eq!(call.body, br#"{"filename":"b.bin","x":1}"#);
    }

    #[test]
    fn hosts_are_read_whole() {
        for (text, host) in [
            ("localhost", Some("localhost")),
            ("localhost:8081", Some("localhost")),
            ("[::1]:8081", Some("::1")),
            ("[::1]", Some("::1")),
            ("[::1]8081", None),
            ("[::]1:8081", None),
            ("[localhost]", None),
            ("::1", None),
            ("", None),
            (":80", None),
            ("localhost:80a", None),
        ] {
            assert_eq!(bare(text), host, "{text}");
        }
    }
}
