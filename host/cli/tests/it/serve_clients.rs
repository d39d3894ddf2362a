//! `tqkv session serve` and clients that send nothing, too much, or what a web page sends.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use crate::PROGRAM;
use crate::serving::{Engine, Served, names, slots, unpacked, wait_for};

/// Time in which an ordinary call is answered here, with other work on the machine.
const SOON: Duration = Duration::from_secs(5);

/// Calls as an ordinary client does. Returns the time that it took.
fn honest(served: &Served) -> Duration {
    let clock = Instant::now();
    let answer = served.raw("GET /slots", "Host: localhost\r\n", "");
    assert!(answer.0 == 200 && answer.1.contains("GET /slots"), "{answer:?}");
    clock.elapsed()
}

/// A folder that a door keeps in front of a server.
fn served(args: &[&str]) -> (tempfile::TempDir, Engine, Served) {
    let temporary = tempfile::tempdir().unwrap();
    let folder = slots(temporary.path());
    let engine = Engine::new(&folder);
    let served = Served::start(&folder, &engine.address(), args);
    (temporary, engine, served)
}

/// Connections that send this and nothing more.
fn crowd(served: &Served, number: usize, bytes: &str) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = served.connect();
        stream.write_all(bytes.as_bytes()).unwrap();
        stream
    };
    (0..number).map(connect).collect()
}

#[test]
fn clients_that_send_nothing_hold_up_no_other_and_no_end() {
    for bytes in [
        "",
        "G",
        "POST /slots/0?action=save HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n",
        "POST /other HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000000\r\n\r\n",
        "GET /slots HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    ] {
        let (_temporary, _engine, mut served) = served(&[]);
        let silent = crowd(&served, 8, bytes);
        sleep(Duration::from_millis(200));
        let time = honest(&served);
        assert!(time < SOON, "{bytes}: {time:?}");
        let time = served.terminate();
        assert!(time < Duration::from_secs(4), "{bytes}: {time:?}");
        assert!(served.child.wait().unwrap().success(), "{bytes}");
        drop(silent);
    }
}

#[test]
fn an_upgrade_is_answered_as_what_it_asks() {
    let (_temporary, _engine, served) = served(&[]);
    let answer =
        served.raw("GET /slots", "Host: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n", "");
    assert!(answer.0 == 200 && answer.1.contains("GET /slots"), "{answer:?}");
}

#[test]
fn a_server_that_does_not_answer_holds_up_no_other_and_no_end() {
    let temporary = tempfile::tempdir().unwrap();
    let (at, folder) = (temporary.path(), slots(temporary.path()));
    let (pack, _) = unpacked(at);
    fs::write(folder.join("hang.bin.tqs"), pack).unwrap();
    let engine = Engine::new(&folder);
    let mut served = Served::start(&folder, &engine.address(), &[]);
    let call = "POST /slots/0?action=restore HTTP/1.1\r\nHost: localhost\r\nContent-Length: 24\r\n\r\n{\"filename\": \"hang.bin\"}";
    let waiting = crowd(&served, 6, call);
    wait_for(&folder, &["hang.bin", "hang.bin.tqs"]);
    assert!(honest(&served) < SOON);
    // 32 calls are at work at most: the rest is told so, and asking is refused with them.
    let more = crowd(&served, 40, call);
    let clock = Instant::now();
    while served.raw("GET /slots", "Host: localhost\r\n", "").0 != 503 {
        assert!(clock.elapsed() < SOON);
    }
    let time = served.terminate();
    assert!(time < Duration::from_secs(4), "{time:?}");
    assert_eq!(names(&folder), ["hang.bin.tqs"], "the copy is gone");
    drop((waiting, more));
}

#[test]
fn what_is_too_long_is_refused() {
    let (_temporary, _engine, served) = served(&[]);
    let head = "Host: localhost\r\n";
    for (bytes, status) in [
        (format!("GET /slots HTTP/1.1\r\n{head}X: {}\r\n\r\n", "a".repeat(20_000)), 431),
        (format!("GET /slots HTTP/1.1\r\n{head}{}\r\n", "X: a\r\n".repeat(2_000)), 431),
        (format!("GET /slots?{} HTTP/1.1\r\n{head}\r\n", "a".repeat(20_000)), 431),
        (
            format!(
                "POST /slots/0?action=save HTTP/1.1\r\n{head}Content-Length: 65537\r\n\r\n{}",
                " ".repeat(65537)
            ),
            413,
        ),
        (
            format!(
                "POST /slots/0?action=save HTTP/1.1\r\n{head}Content-Length: 2000000\r\n\r\n{}",
                " ".repeat(2_000_000)
            ),
            413,
        ),
        (format!("POST /slots/0?action=save HTTP/1.1\r\n{head}Content-Length: 99999999999\r\n\r\n"), 413),
        (
            format!(
                "POST /slots/0?action=save HTTP/1.1\r\n{head}Transfer-Encoding: chunked\r\n\r\n20000\r\n{}",
                " ".repeat(0x20000)
            ),
            413,
        ),
    ] {
        let clock = Instant::now();
        let answer = served.send(bytes.as_bytes());
        assert_eq!(answer.0, status, "{}: {answer:?}", &bytes[..60]);
        assert!(clock.elapsed() < SOON);
    }
}

#[test]
fn a_request_that_could_be_read_in_two_ways_is_refused() {
    let (_temporary, _engine, served) = served(&[]);
    let (host, body) = ("Host: localhost\r\n", r#"{"filename": "x9.bin"}"#);
    for (first, headers, body, status) in [
        ("GET /slots/../v1/models", host, "", 404),
        ("GET /slots/%2e%2e/v1/models", host, "", 404),
        ("GET /slots/0/1", host, "", 404),
        ("GET /slots/", host, "", 404),
        ("POST /slots/0?action=s%61ve", host, body, 400),
        ("POST /slots/0?action=s%u0061ve", host, body, 400),
        ("POST /slots/0?%61ction=save", host, body, 400),
        ("POST /slots/0?action=erase&action=save", host, body, 400),
        ("POST /slots/0?action=", host, body, 400),
        ("POST /slots/0", host, body, 400),
        (
            "POST /slots/0",
            "Host: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n",
            "action=save",
            400,
        ),
        ("POST /slots?action=save", host, body, 400),
        ("POST /slots/0?action=save", host, "\u{feff}{\"filename\": \"x9.bin\"}", 400),
        ("POST /slots/0?action=save", host, "[]", 400),
        ("POST /slots/0?action=save", host, r#"{"filename": 9}"#, 400),
        ("GET /slots?action=save", host, "", 405),
        ("PUT /slots", host, "", 405),
        ("OPTIONS /slots/0?action=save", host, "", 405),
        ("GET http://localhost/slots", host, "", 400),
        ("GET /slots", "", "", 400),
        ("GET /slots", "Host: localhost\r\nHost: localhost\r\n", "", 400),
    ] {
        let answer = served.raw(first, headers, body);
        assert_eq!(answer.0, status, "{first}: {answer:?}");
        assert!(answer.1.contains(r#""type":"tqkv""#), "llama-server was asked: {answer:?}");
    }
}

#[test]
fn pages_of_other_sites_are_refused() {
    let (temporary, _engine, served) = served(&["--quiet", "3600"]);
    let body = r#"{"filename": "chat.bin"}"#;
    for (headers, status) in [
        ("Host: evil.example:8081\r\n", 403),
        ("Host: 127.0.0.1.evil.example\r\n", 403),
        ("Host: \r\n", 403),
        ("Host: localhost\r\nOrigin: http://evil.example\r\n", 403),
        ("Host: localhost\r\nOrigin: http://198.51.100.7\r\n", 403),
        ("Host: localhost\r\nOrigin: null\r\n", 403),
        ("Host: localhost\r\nOrigin: http://localhost\r\nOrigin: http://evil.example\r\n", 403),
        ("Host: localhost\r\nSec-Fetch-Site: cross-site\r\n", 403),
        ("Host: localhost:8081\r\nOrigin: http://localhost:8080\r\n", 200),
        ("Host: 127.0.0.1:8081\r\nOrigin: http://127.0.0.1:8080\r\nSec-Fetch-Site: same-site\r\n", 200),
        ("Host: [::1]:8081\r\n", 200),
        ("Host: 192.0.2.1:8081\r\nOrigin: http://192.0.2.1:3000\r\n", 200),
    ] {
        let all = format!("{headers}Content-Type: text/plain\r\n");
        let answer = served.raw("POST /slots/0?action=save", &all, body);
        assert_eq!(answer.0, status, "{headers}: {answer:?}");
        if status == 403 {
            assert!(names(&temporary.path().join("slots")).is_empty(), "{headers}");
        }
    }
}

/// Where a process has few files, those that wait for their clients make room.
#[test]
fn a_door_without_files_goes_on() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = slots(temporary.path());
    let engine = Engine::new(&folder);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\"", PROGRAM]);
    let mut served = Served::start_as(command, &folder, &engine.address(), &[]);
    let silent = crowd(&served, 100, "G");
    for _ in 0..3 {
        // A call of its own needs files too: some connections must go first.
        let time = Instant::now();
        while served.raw("GET /slots", "Host: localhost\r\n", "").0 != 200 {
            assert!(time.elapsed() < Duration::from_secs(20));
            sleep(Duration::from_millis(50));
        }
    }
    assert!(served.child.try_wait().unwrap().is_none());
    drop(silent);
    honest(&served);
    assert!(served.terminate() < Duration::from_secs(4));
    assert!(served.child.wait().unwrap().success());
}

/// The folder cannot be looked at meanwhile, which is no reason to end.
#[cfg(target_os = "linux")]
#[test]
fn a_door_that_may_open_no_file_for_a_while_goes_on() {
    let (_temporary, _engine, mut served) = served(&[]);
    let limit = |files: &str| {
        let id = served.child.id().to_string();
        let set = Command::new("prlimit").args(["--pid", &id, &format!("--nofile={files}:")]).status();
        assert!(set.unwrap().success());
    };
    honest(&served);
    limit("3");
    sleep(Duration::from_millis(800));
    limit("64");
    honest(&served);
    assert!(served.child.try_wait().unwrap().is_none());
    assert!(served.terminate() < Duration::from_secs(4));
    assert!(served.child.wait().unwrap().success());
}

/// Memory of a process in KiB: `VmRSS`, `VmHWM`.
#[cfg(target_os = "linux")]
fn memory(id: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_matches([':', '\t', ' ']).trim_end_matches(" kB").parse().unwrap()
}

/// Ways to trouble a door: what is sent at first, and what follows for as long as the door reads.
#[cfg(target_os = "linux")]
const TROUBLES: [(&str, &str); 11] = [
    ("", ""),
    ("G", ""),
    ("GET /slots HTTP/1.1\r\nHost: localhost\r\n", ""),
    ("GET /slots HTTP/1.1\r\n", "X: aaaa\r\n"),
    ("GET /slots HTTP/1.1\r\nX: ", "aaaaaaaaaaaaaaaa"),
    ("GET /slots?", "aaaaaaaaaaaaaaaa"),
    ("POST /slots/0?action=save HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n", ""),
    ("POST /slots/0?action=save HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n", "        "),
    (
        "POST /slots/0?action=save HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        "10\r\n                \r\n",
    ),
    ("POST /other HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000000\r\n\r\n", "aaaaaaaaaaaaaaaa"),
    (
        "GET /slots HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        "\u{1}\u{2}",
    ),
];

/// Begins the trouble of a number. Every other client sends what follows drop by drop, the rest all at once.
#[cfg(target_os = "linux")]
fn trouble(served: &Served, number: usize) -> Option<(TcpStream, &'static str)> {
    let (first, more) = TROUBLES[number % TROUBLES.len()];
    let address = served.door.trim_start_matches("http://").parse().unwrap();
    let mut stream = TcpStream::connect_timeout(&address, SOON).ok()?;
    stream.set_nonblocking(true).unwrap();
    let _ = stream.write(first.as_bytes());
    if !number.is_multiple_of(2) {
        let much = more.repeat(10_000);
        while !much.is_empty() && stream.write(much.as_bytes()).is_ok_and(|length| length > 0) {}
    }
    Some((stream, more))
}

/// Files that this process may open.
#[cfg(target_os = "linux")]
fn most_files() -> usize {
    let limits = fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    line.split_whitespace().nth(3).unwrap().parse().unwrap_or(usize::MAX)
}

/// An ordinary client is answered while others do all of this at once, in little memory.
#[test]
#[cfg(target_os = "linux")]
fn a_crowd_of_hostile_clients_stops_nobody() {
    let exhaustive = std::env::var("TQKV_EXHAUSTIVE").is_ok_and(|value| value == "1");
    let number = if exhaustive { 10_000 } else { 1_100 };
    let (_temporary, _engine, mut served) = served(&[]);
    honest(&served);
    let id = served.child.id();
    let before = memory(id, "VmRSS");
    let held = number.min(most_files().saturating_sub(200));
    let (clock, done) = (Instant::now(), AtomicBool::new(false));
    let served = &mut served;
    let (answers, slowest) = scope(|scope| {
        let own = &*served;
        let troubles = scope.spawn(|| {
            let mut open = std::collections::VecDeque::new();
            for i in 0..number {
                open.extend(trouble(own, i));
                if open.len() > held {
                    open.pop_front();
                }
                // Each says a little more now and then.
                if i % 500 == 499 {
                    drip(&mut open);
                }
            }
            for _ in 0..10 {
                drip(&mut open);
                sleep(Duration::from_millis(200));
            }
            done.store(true, Ordering::Relaxed);
            open.len()
        });
        let (mut answers, mut slowest) = (0, Duration::ZERO);
        while !done.load(Ordering::Relaxed) && !troubles.is_finished() {
            slowest = slowest.max(honest(own));
            answers += 1;
            sleep(Duration::from_millis(5));
        }
        let open = troubles.join().unwrap();
        println!("{number} connections, {open} held at once, {:.1} s", clock.elapsed().as_secs_f64());
        (answers, slowest)
    });
    let most = memory(id, "VmHWM");
    println!("{answers} answers, the slowest after {slowest:?}; memory {before} KiB, {most} KiB at most");
    assert!(slowest < SOON, "{slowest:?}");
    assert!(answers > 10, "{answers}");
    assert!(most < before + (64 << 10), "{before} KiB before, {most} KiB at most");
    honest(served);
    assert!(served.terminate() < Duration::from_secs(4));
    assert!(served.child.wait().unwrap().success());
}

#[cfg(target_os = "linux")]
fn drip(open: &mut std::collections::VecDeque<(TcpStream, &'static str)>) {
    for (stream, more) in open {
        // The door may have closed it.
        let _ = stream.write(more.as_bytes());
    }
}

/// The limits of time, which a usual run has no time for.
#[test]
fn clients_that_are_too_slow_are_let_go() {
    if std::env::var("TQKV_EXHAUSTIVE").is_ok_and(|value| value == "1") {
        let (_temporary, _engine, served) = served(&[]);
        for (bytes, said) in [
            ("GET /slots HTTP/1.1\r\n", ""),
            ("POST /slots/0?action=save HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n", "408"),
        ] {
            let clock = Instant::now();
            let mut stream = served.connect();
            stream.write_all(bytes.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let time = clock.elapsed().as_secs_f64();
            assert!((9.0..15.0).contains(&time) && answer.contains(said), "{time} s: {answer}");
        }
    }
}
