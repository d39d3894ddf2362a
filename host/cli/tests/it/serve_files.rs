//! `tqkv session serve` and files of others: parts of states, long and strange names, pipes.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::PROGRAM;
use crate::serving::{Engine, Served, names, slots, unpacked, wait_for};
use crate::session::STATE;
use crate::support::{error, tqkv};

const ONCE: [&str; 7] = ["session", "serve", "--once", "--quiet", "0", "--head-dim", "64"];

/// Packs what is in the folder `slots`. Returns the notes.
fn once(at: &Path) -> String {
    let output = tqkv(at, &[&ONCE[..], &["slots"]].concat());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_part_of_a_state_does_not_hide_its_pack() {
    let temporary = tempfile::tempdir().unwrap();
    let (at, folder) = (temporary.path(), slots(temporary.path()));
    let (pack, state) = unpacked(at);
    let part = &STATE[..STATE.len() / 2];
    fs::write(folder.join("chat.bin.tqs"), &pack).unwrap();
    fs::write(folder.join("chat.bin"), part).unwrap();
    let engine = Engine::new(&folder);
    let served = Served::start(&folder, &engine.address(), &["--quiet", "3600"]);
    for _ in 0..2 {
        assert_eq!(served.call("/slots/0?action=restore", Some("chat.bin")), (200, "restored".into()));
        assert_eq!(engine.read.lock().unwrap().pop().unwrap(), state);
        assert_eq!(names(&folder), ["chat.bin", "chat.bin.tqs"]);
        assert_eq!(fs::read(folder.join("chat.bin")).unwrap(), part, "the part is back");
        assert_eq!(fs::read(folder.join("chat.bin.tqs")).unwrap(), pack);
    }
    // A complete state is newer than its pack.
    fs::write(folder.join("chat.bin"), STATE).unwrap();
    assert_eq!(served.call("/slots/0?action=restore", Some("chat.bin")).0, 200);
    assert_eq!(engine.read.lock().unwrap().pop().unwrap(), STATE);
    assert_eq!(served.end()["restored"], 2);
}

#[test]
fn a_part_that_lies_aside_is_back_after_a_kill_and_after_an_end() {
    let temporary = tempfile::tempdir().unwrap();
    let (at, folder) = (temporary.path(), slots(temporary.path()));
    let (pack, state) = unpacked(at);
    let part = &STATE[..STATE.len() / 2];
    fs::write(folder.join("hang.bin.tqs"), &pack).unwrap();
    let engine = Engine::new(&folder);
    for kills in [true, false] {
        fs::write(folder.join("hang.bin"), part).unwrap();
        let mut served = Served::start(&folder, &engine.address(), &["--quiet", "3600"]);
        let mut client = served.connect();
        let body = r#"{"filename": "hang.bin"}"#;
        let head = "POST /slots/0?action=restore HTTP/1.1\r\nHost: localhost\r\nContent-Length: 24\r\n\r\n";
        client.write_all(format!("{head}{body}").as_bytes()).unwrap();
        wait_for(&folder, &["hang.bin", "hang.bin.tqkv-done", "hang.bin.tqs"]);
        assert_eq!(fs::read(folder.join("hang.bin")).unwrap(), state);
        if kills {
            served.child.kill().unwrap();
            served.child.wait().unwrap();
            once(at);
        } else {
            // llama-server does not answer, and the client is there.
            let time = served.terminate();
            assert!(time < Duration::from_secs(4), "{time:?}");
        }
        assert_eq!(names(&folder), ["hang.bin", "hang.bin.tqs"], "killed: {kills}");
        assert_eq!(fs::read(folder.join("hang.bin")).unwrap(), part);
    }
}

#[test]
fn nothing_is_unpacked_for_a_key_that_llama_server_refuses() {
    let temporary = tempfile::tempdir().unwrap();
    let (at, folder) = (temporary.path(), slots(temporary.path()));
    let (pack, _) = unpacked(at);
    // Unpacking it would be an error.
    fs::write(folder.join("chat.bin.tqs"), &pack[..pack.len() - 1]).unwrap();
    let engine = Engine::new(&folder);
    let served = Served::start(&folder, &engine.address(), &[]);
    let call = |key: &str| {
        let headers = format!("Host: localhost\r\nAuthorization: Bearer {key}\r\n");
        served.raw("POST /slots/0?action=restore", &headers, r#"{"filename": "chat.bin"}"#)
    };
    let answer = call("bad");
    assert!(answer.0 == 401 && answer.1.ends_with("no key"), "{answer:?}");
    let answer = call("good");
    assert!(answer.0 == 500 && answer.1.contains("pack: cut"), "{answer:?}");
}

#[test]
fn names_are_as_long_as_their_packs_can_be() {
    let temporary = tempfile::tempdir().unwrap();
    let (at, folder) = (temporary.path(), slots(temporary.path()));
    let engine = Engine::new(&folder);
    let served = Served::start(&folder, &engine.address(), &["--quiet", "3600"]);
    for length in [246, 250, 251, 255, 256] {
        for action in ["save", "restore"] {
            let answer = served.call(&format!("/slots/0?action={action}"), Some(&"n".repeat(length)));
            let said = format!("{length} bytes are too long for a name: expected 245 at most");
            assert!(answer.0 == 400 && answer.1.contains(&said), "{answer:?}");
        }
    }
    assert!(names(&folder).is_empty());
    let longest = "n".repeat(245);
    assert_eq!(served.call("/slots/0?action=save", Some(&longest)).0, 200);
    wait_for(&folder, &[&format!("{longest}.tqs")]);
    assert_eq!(served.call("/slots/0?action=restore", Some(&longest)).0, 200);
    drop(served);
    // A name that came otherwise is said once, and its state stays.
    let long = "m".repeat(246);
    fs::write(folder.join(&long), STATE).unwrap();
    let notes = once(at);
    assert!(notes.contains("246 bytes are too long for a name") && notes.lines().count() == 1, "{notes}");
    assert_eq!(fs::read(folder.join(&long)).unwrap(), STATE);
    assert_eq!(names(&folder).len(), 2);
}

#[test]
fn names_write_no_lines_and_steer_no_terminal() {
    let temporary = tempfile::tempdir().unwrap();
    let (at, folder) = (temporary.path(), slots(temporary.path()));
    let (pack, _) = unpacked(at);
    let strange = "con\nrol\r\u{1b}[2J\u{202e}\u{85}: packed";
    let escaped = r"con\nrol\r\u{1b}[2J\u{202e}\u{85}: packed";
    let is_plain = |text: &str| !text.contains(['\r', '\u{1b}', '\u{202e}', '\u{85}']);
    fs::write(folder.join(strange), STATE).unwrap();
    let notes = once(at);
    assert!(is_plain(&notes) && notes.lines().count() == 1 && notes.contains(escaped), "{notes:?}");
    // A part of a state, and a damaged pack.
    fs::write(folder.join(strange), &STATE[..100]).unwrap();
    let notes = once(at);
    assert!(is_plain(&notes) && notes.lines().count() == 1 && notes.contains(escaped), "{notes:?}");
    fs::write(folder.join(format!("{strange}.tqs")), &pack[..100]).unwrap();
    let engine = Engine::new(&folder);
    let served = Served::start(&folder, &engine.address(), &["--quiet", "3600"]);
    assert_eq!(served.call("/slots/0?action=restore", Some(strange)).0, 500);
    let notes = served.notes_with(escaped);
    assert!(is_plain(&notes) && notes.contains(escaped) && notes.lines().count() == 1, "{notes:?}");
    drop(served);
    // The other commands: their errors, and what they print.
    let turned = "a\u{1b}\u{202e}b";
    let said = error(at, &["session", "inspect", turned], 2);
    assert!(is_plain(&said) && said.contains(r"a\u{1b}\u{202e}b"), "{said:?}");
    let output = tqkv(at, &["session", "pack", "--head-dim", "64", "in.bin", turned]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(is_plain(&said) && said.contains(r"a\u{1b}\u{202e}b"), "{said:?}");
}

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn a_pipe_in_place_of_a_pack_holds_nobody_up() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = slots(temporary.path());
    pipe(&folder.join("pipe.bin.tqs"));
    let engine = Engine::new(&folder);
    let mut served = Served::start(&folder, &engine.address(), &[]);
    let clock = Instant::now();
    for _ in 0..6 {
        let answer = served.call("/slots/0?action=restore", Some("pipe.bin"));
        assert!(answer.0 == 500 && answer.1.contains("is not a regular file"), "{answer:?}");
    }
    assert!(clock.elapsed() < Duration::from_secs(10));
    assert!(served.terminate() < Duration::from_secs(4));
}

#[test]
fn commands_say_what_they_do_with_a_pipe() {
    let temporary = tempfile::tempdir().unwrap();
    let at = temporary.path();
    let (pack, state) = unpacked(at);
    pipe(&at.join("pipe"));
    for words in [&["inspect", "pipe"][..], &["pack", "pipe", "out"]] {
        let said = error(at, &[&["session"], words].concat(), 2);
        assert!(said.contains("pipe: is not a regular file"), "{said}");
    }
    // Unpacking reads it, and says what it waits for.
    let mut command = Command::new(PROGRAM);
    command.current_dir(at).args(["session", "unpack", "pipe", "out"]).stderr(Stdio::piped());
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "tqkv: pipe: a pipe; waits for its writer\n");
    fs::File::options().write(true).open(at.join("pipe")).unwrap().write_all(&pack).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read(at.join("out")).unwrap(), state);
}
