//! `tqkv session serve` between a client and a server that saves and restores as llama-server does.

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use crate::PROGRAM;
use crate::serving::{Engine, Served, agent, names, slots, unpacked, wait_for};
use crate::session::STATE;
use crate::support::error;

#[test]
#[cfg(unix)]
fn what_is_saved_is_packed_and_what_is_restored_is_unpacked() {
    let temporary = tempfile::tempdir().unwrap();
    let at = temporary.path();
    let (pack, state) = unpacked(at);
    let folder = slots(at);
    let engine = Engine::new(&folder);
    // States rest for an hour: only what the call announces is packed.
    let served = Served::start(&folder, &engine.address(), &["--quiet", "3600"]);
    assert_eq!(served.call("/slots/0?action=save", Some("chat.bin")), (200, "saved".into()));
    wait_for(&folder, &["chat.bin.tqs"]);
    assert_eq!(fs::read(folder.join("chat.bin.tqs")).unwrap(), pack);
    for _ in 0..2 {
        assert_eq!(served.call("/slots/0?action=restore", Some("chat.bin")), (200, "restored".into()));
        assert_eq!(engine.read.lock().unwrap().pop().unwrap(), state);
        assert_eq!(names(&folder), ["chat.bin.tqs"], "the copy is gone, and was not packed again");
    }
    assert_eq!(served.call("/slots/0?action=restore", Some("other.bin")).0, 400, "llama-server's own answer");
    assert_eq!(served.call("/slots?fail=1", None), (200, "GET /slots?fail=1 Bearer key".into()));
    for (path, name, status, said) in [
        ("/v1/chat/completions", Some("a"), 404, "expected /slots"),
        ("/slotsome", Some("a"), 404, "expected /slots"),
        ("/slots/0?action=save", Some("../a"), 400, "expected no path"),
        ("/slots/0?action=save", Some("a.tqs"), 400, "none of .tqs"),
        ("/slots/0?action=restore", Some(".a"), 400, "no dot first"),
    ] {
        let answer = served.call(path, name);
        assert!(answer.0 == status && answer.1.contains(said), "{path}: {answer:?}");
    }
    // A state that nobody packed yet is restored as it is.
    fs::write(folder.join("plain.bin"), STATE).unwrap();
    assert_eq!(served.call("/slots/0?action=restore", Some("plain.bin")).0, 200);
    assert_eq!(engine.read.lock().unwrap().pop().unwrap(), STATE);
    // A damaged pack is refused by name, and the server is not asked.
    fs::write(folder.join("bad.bin.tqs"), &pack[..pack.len() - 1]).unwrap();
    let answer = served.call("/slots/0?action=restore", Some("bad.bin"));
    assert!(answer.0 == 500 && answer.1.contains("bad.bin: pack: cut"), "{answer:?}");
    assert_eq!(names(&folder), ["bad.bin.tqs", "chat.bin.tqs", "plain.bin"]);
    let report = served.end();
    assert_eq!((&report["packed"], &report["restored"], &report["packs"]), (&1.into(), &2.into(), &2.into()));
}

#[test]
#[cfg(unix)]
fn states_that_rest_are_packed_and_other_files_stay() {
    let temporary = tempfile::tempdir().unwrap();
    let (at, folder) = (temporary.path(), slots(temporary.path()));
    let (pack, _) = unpacked(at);
    // No server: restores are refused with its name, all else goes on.
    let served = Served::start(&folder, "http://127.0.0.1:9", &["--quiet", "1"]);
    let answer = served.call("/slots/0?action=save", Some("chat.bin"));
    assert!(answer.0 == 502 && answer.1.contains("llama-server at http://127.0.0.1:9"), "{answer:?}");
    fs::write(folder.join("cut.bin"), &STATE[..STATE.len() / 2]).unwrap();
    fs::write(folder.join("notes.txt"), "no state").unwrap();
    fs::create_dir(folder.join("sub.bin")).unwrap();
    std::os::unix::fs::symlink(at.join("in.bin"), folder.join("link.bin")).unwrap();
    // A writer that pauses for less than a second.
    let (first, rest) = STATE.split_at(STATE.len() / 3);
    fs::write(folder.join("slow.bin"), first).unwrap();
    sleep(Duration::from_millis(600));
    fs::write(folder.join("slow.bin"), [first, &rest[..100]].concat()).unwrap();
    sleep(Duration::from_millis(600));
    assert!(names(&folder).contains(&"slow.bin".to_owned()));
    fs::write(folder.join("slow.bin"), STATE).unwrap();
    wait_for(&folder, &["cut.bin", "link.bin", "notes.txt", "slow.bin.tqs", "sub.bin"]);
    assert_eq!(fs::read(folder.join("slow.bin.tqs")).unwrap(), pack);
    assert_eq!(fs::read(at.join("in.bin")).unwrap(), STATE);
    assert_eq!(served.end()["packed"], 1);
}

#[test]
fn the_packs_used_longest_ago_are_forgotten() {
    let temporary = tempfile::tempdir().unwrap();
    let (at, folder) = (temporary.path(), slots(temporary.path()));
    let (pack, _) = unpacked(at);
    let once = ["session", "serve", "--once", "--quiet", "0", "--head-dim", "64", "slots"];
    for (i, name) in ["a", "b", "c"].into_iter().enumerate() {
        fs::write(folder.join(name), STATE).unwrap();
        let packed = Command::new(PROGRAM).current_dir(at).args(once).output().unwrap();
        assert!(packed.status.success());
        // Files of an hour ago, each later than the one before.
        let time = std::time::SystemTime::now() - Duration::from_secs(3600 - i as u64);
        let file = fs::File::options().append(true).open(folder.join(format!("{name}.tqs"))).unwrap();
        file.set_modified(time).unwrap();
    }
    assert_eq!(names(&folder), ["a.tqs", "b.tqs", "c.tqs"]);
    let engine = Engine::new(&folder);
    let served = Served::start(&folder, &engine.address(), &[]);
    assert_eq!(served.call("/slots/0?action=restore", Some("a")).0, 200);
    let error = error(at, &["session", "serve", "--once", "slots"], 1);
    assert!(error.contains("another `session serve` keeps it"), "{error}");
    drop(served);
    let limit = format!("{}B", 2 * pack.len());
    let limited = |limit: &str| {
        let output =
            Command::new(PROGRAM).current_dir(at).args(once).args(["--limit", limit]).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(limited(&limit).contains("b: forgotten"), "the restore has made a the last used one");
    assert_eq!(names(&folder), ["a.tqs", "c.tqs"]);
    limited("1B");
    assert_eq!(names(&folder), ["a.tqs"], "the last used pack stays");
}

#[test]
fn folders_and_addresses_that_are_not_valid_are_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let at = temporary.path();
    slots(at);
    fs::write(at.join("file"), "").unwrap();
    for (words, said) in [
        (&["none"][..], "none"),
        (&["file"], "expected a folder"),
        (&["--listen", "nowhere", "slots"], "--listen nowhere"),
        (&["--server", "https://localhost", "slots"], "expected http://HOST:PORT"),
        (&["--limit", "10", "slots"], "--limit"),
        (&["--once", "--listen", "127.0.0.1:0", "slots"], "--once"),
    ] {
        let said_it = error(at, &[&["session", "serve"], words].concat(), 2);
        assert!(said_it.contains(said), "{words:?}: {said_it}");
    }
}

/// After each kill a state is complete, or its pack is.
#[test]
#[cfg(unix)]
fn a_kill_at_any_moment_loses_no_state() {
    let temporary = tempfile::tempdir().unwrap();
    let (at, folder) = (temporary.path(), slots(temporary.path()));
    let (pack, state) = unpacked(at);
    let engine = Engine::new(&folder);
    let usual = if std::env::var("TQKV_EXHAUSTIVE").is_ok_and(|value| value == "1") { 100 } else { 24 };
    let times = std::env::var("TQKV_KILLS").ok().and_then(|number| number.parse().ok()).unwrap_or(usual);
    let mut random = fastrand::Rng::with_seed(7);
    let (mut packed, mut both) = (0, 0);
    for i in 0..times {
        // New states, or restores of a pack that is there.
        let restores = i % 3 == 2;
        // Each has its own name: the server may read for a call whose caller was killed a round ago.
        let own = if restores { "a" } else { "b" };
        let [done_name, pack_name] = [".tqkv-done", ".tqs"].map(|end| format!("{own}{end}"));
        for name in names(&folder) {
            fs::remove_file(folder.join(name)).unwrap();
        }
        if restores {
            fs::write(folder.join(&pack_name), &pack).unwrap();
        } else {
            fs::write(folder.join(own), STATE).unwrap();
        }
        let mut served = Served::start(&folder, &engine.address(), &["--quiet", "0"]);
        let caller = restores.then(|| {
            let door = served.door.clone();
            std::thread::spawn(move || {
                for _ in 0..20 {
                    let body = r#"{"filename": "a"}"#;
                    // The kill ends the call.
                    let _ = agent().post(format!("{door}/slots/0?action=restore")).send(body);
                }
            })
        });
        sleep(Duration::from_micros(random.u64(0..150_000)));
        served.child.kill().unwrap();
        served.child.wait().unwrap();
        if let Some(caller) = caller {
            caller.join().unwrap();
        }
        let read = |name: &str| fs::read(folder.join(name)).ok();
        let (plain, done, coded) = (read(own), read(&done_name), read(&pack_name));
        assert!(coded.is_none() || coded.as_deref() == Some(&pack[..]), "a pack is whole or not there");
        if restores {
            assert!(coded.is_some());
            assert!(plain.is_none() || plain.as_deref() == Some(&state[..]), "a copy is whole or not there");
        } else {
            let kept = [&plain, &done].into_iter().flatten().all(|bytes| bytes == STATE);
            assert!(kept && (coded.is_some() || plain.is_some() || done.is_some()), "{:?}", names(&folder));
        }
        packed += usize::from(coded.is_some() && plain.is_none());
        both += usize::from(coded.is_some() && plain.is_some());
        // The next start goes on and cleans up.
        let output = Command::new(PROGRAM)
            .current_dir(at)
            .args(["session", "serve", "--once", "--quiet", "0", "--head-dim", "64", "slots"])
            .output()
            .unwrap();
        assert!(output.status.success());
        assert_eq!(names(&folder), [&pack_name[..]]);
        assert_eq!(read(&pack_name).unwrap(), pack);
    }
    println!("{times} kills: {packed} with the pack alone, {both} with both");
    assert!(engine.read.lock().unwrap().iter().all(|read| *read == state));
}
