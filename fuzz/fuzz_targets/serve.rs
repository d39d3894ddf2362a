//! Takes bytes as a request to `tqkv session serve`. It is refused, or the call that is passed on means the
//! same to llama-server. That reads freely: escapes, `+`, the first of two parameters, the last of two names.
#![no_main]

mod seeds;

use http::{HeaderName, HeaderValue, Method, Request};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

#[path = "../../host/cli/src/slots/name.rs"]
#[allow(dead_code, unreachable_pub, reason = "the command uses more of it")]
mod name;
#[path = "../../host/cli/src/slots/request.rs"]
#[allow(dead_code, unreachable_pub, reason = "the command uses more of it")]
mod request;

use request::{Call, CallHead, FileUse, Refused};

/// The host of `--listen`.
const LISTEN: &str = "box.example";

fuzz_target!(|bytes: &[u8]| {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    let Ok(httparse::Status::Complete(length)) = request.parse(bytes) else { return };
    let (Some(method), Some(target)) = (request.method, request.path) else { return };
    let mut built = Request::builder().method(method).uri(target);
    for header in request.headers.iter() {
        let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(header.name.as_bytes()), HeaderValue::from_bytes(header.value))
        else {
            return;
        };
        built = built.header(name, value);
    }
    let Ok(built) = built.body(()) else { return };
    let parts = built.into_parts().0;
    let call = match CallHead::read(&parts, LISTEN).and_then(|head| head.call(&bytes[length..])) {
        Ok(call) => call,
        Err(Refused { status, why }) => {
            assert!([400, 403, 404, 405].contains(&status) && !why.is_empty());
            return seeds::refused(why);
        }
    };
    check_sender(request.headers);
    assert_eq!(freely(&call), call.work, "{call:?}");
    if let FileUse::Save(name) | FileUse::Restore(name) = &call.work {
        let is_bad = name.contains(['/', '\\', '\0']) || name.starts_with('.') || name.contains(".tqkv-");
        assert!(!is_bad && !name.is_empty() && !name.ends_with(".tqs") && name.len() <= 245, "{name:?}");
    }
    // The call that is passed on is read as the same call.
    let again = Request::builder().method(call.method.clone()).uri(&call.target).header("host", "localhost");
    let again = CallHead::read(&again.body(()).expect("a target").into_parts().0, LISTEN);
    assert_eq!(again.and_then(|head| head.call(&call.body)).expect("it was taken"), call);
});

/// No page of another site has sent what was taken.
fn check_sender(headers: &[httparse::Header<'_>]) {
    let of = |name: &str| -> Vec<&[u8]> {
        headers
            .iter()
            .filter(|header| header.name.eq_ignore_ascii_case(name))
            .map(|header| header.value)
            .collect()
    };
    let host = |value: &[u8]| {
        let text = String::from_utf8_lossy(value).to_ascii_lowercase();
        let text = text.rsplit_once('@').map_or(&*text, |(_, host)| host).to_owned();
        let end = text.rfind(':').filter(|at| text[at + 1..].bytes().all(|digit| digit.is_ascii_digit()));
        let host = end.filter(|_| !text.ends_with(']')).map_or(&*text, |at| &text[..at]).to_owned();
        host.trim_matches(['[', ']']).to_owned()
    };
    let is_address = |host: &str| host.parse::<std::net::IpAddr>().is_ok();
    let [named] = of("host")[..] else { panic!("one host") };
    let named = host(named);
    assert!(is_address(&named) || ["localhost", LISTEN].contains(&&*named), "{named}");
    for origin in of("origin") {
        let text = String::from_utf8_lossy(origin);
        let from = text.split_once("://").expect("an origin").1.split(['/', '?', '#']).next().unwrap_or("");
        let from = host(from.as_bytes());
        let is_loopback = from.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        assert!(is_loopback || ["localhost", LISTEN, &named].contains(&&*from), "{text}");
    }
}

/// The work of a server that reads as freely as llama-server's.
fn freely(call: &Call) -> FileUse {
    let target = call.target.split('#').next().unwrap_or("");
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let path = decoded(path.as_bytes(), false);
    let slot = path.strip_prefix(b"/slots/");
    if call.method != Method::POST || slot.is_none_or(|slot| slot.is_empty() || slot.contains(&b'/')) {
        return FileUse::Pass;
    }
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let mut pairs =
        pairs.map(|(key, value)| (decoded(key.as_bytes(), true), decoded(value.as_bytes(), true)));
    let action = pairs.find(|(key, _)| key.trim_ascii() == b"action").map(|(_, value)| value);
    let name = || {
        let body: Value = serde_json::from_slice(&call.body).expect("what is passed on is JSON");
        body["filename"].as_str().expect("a name").to_owned()
    };
    match action.as_deref() {
        Some(b"save") => FileUse::Save(name()),
        Some(b"restore") => FileUse::Restore(name()),
        _ => FileUse::Pass,
    }
}

/// Bytes without escapes: `%61`, `%u0061` and, in a query, `+`.
fn decoded(text: &[u8], in_query: bool) -> Vec<u8> {
    let number = |digits: &[u8]| u32::from_str_radix(str::from_utf8(digits).ok()?, 16).ok();
    let (mut bytes, mut i) = (Vec::new(), 0);
    while i < text.len() {
        let rest = &text[i..];
        if let Some(c) =
            rest.strip_prefix(b"%u").and_then(|rest| number(rest.get(..4)?)).and_then(char::from_u32)
        {
            bytes.extend(c.encode_utf8(&mut [0; 4]).bytes());
            i += 6;
        } else if let Some(byte) = rest.strip_prefix(b"%").and_then(|rest| number(rest.get(..2)?)) {
            bytes.push(byte as u8);
            i += 3;
        } else {
            bytes.push(if in_query && rest[0] == b'+' { b' ' } else { rest[0] });
            i += 1;
        }
    }
    bytes
}
