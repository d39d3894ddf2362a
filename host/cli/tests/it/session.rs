//! `tqkv session`: a state of one layer through files.

use std::fs;

use crate::support::{error, json, tqkv};

/// 66 tokens, one KV head of 64, and recurrent state.
pub(crate) const STATE: &[u8] = include_bytes!("../../../session/tests/golden/coded.state");

#[test]
fn a_state_is_packed_unpacked_and_inspected() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("chat.bin"), STATE).unwrap();
    let found = json(at, &["session", "inspect", "chat.bin"]);
    assert_eq!(found["written_by"], "llama_state_seq_save_file");
    assert_eq!((&found["prompt_tokens"], &found["caches"][0]["cells"]), (&3.into(), &66.into()));
    assert_eq!(found["caches"][0]["rows"][1]["side"], "values");

    let packed = json(at, &["session", "pack", "--kv", "t4,t2", "--head-dim", "64", "chat.bin", "chat.tqs"]);
    let length = |name: &str| fs::metadata(at.join(name)).unwrap().len();
    assert_eq!(packed["pack_bytes"], length("chat.tqs"));
    assert_eq!(packed["state_bytes"], STATE.len());
    let found = json(at, &["session", "inspect", "chat.tqs"]);
    assert_eq!((&found["class"], &found["crc"]), (&"coded".into(), &"ok".into()));
    assert_eq!((&found["rows"][0]["codec"], &found["rows"][1]["codec"]), (&"t4".into(), &"t2".into()));
    json(at, &["session", "unpack", "chat.tqs", "back.bin"]);
    assert_eq!(length("back.bin"), STATE.len() as u64);
    assert_ne!(fs::read(at.join("back.bin")).unwrap(), STATE);

    json(at, &["session", "pack", "--exact", "chat.bin", "exact.tqs"]);
    json(at, &["session", "unpack", "exact.tqs", "back.bin", "--force"]);
    assert_eq!(fs::read(at.join("back.bin")).unwrap(), STATE);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        for name in ["chat.tqs", "back.bin"] {
            assert_eq!(fs::metadata(at.join(name)).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }
    for file in ["chat.bin", "chat.tqs"] {
        let shown = tqkv(at, &["session", "inspect", file]);
        let text = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.status.success() && text.contains("keys"), "{text}");
    }
}

/// One layer of two KV heads of 32.
const BASIS: &[u8] = include_bytes!("../../../session/tests/golden/basis.tqb");

#[test]
fn a_state_is_packed_in_a_basis_and_needs_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("chat.bin"), STATE).unwrap();
    fs::write(at.join("model.tqb"), BASIS).unwrap();
    fs::write(at.join("cut.tqb"), &BASIS[..BASIS.len() - 1]).unwrap();
    let pack = ["session", "pack", "--basis", "model.tqb", "--storage", "1.1", "chat.bin", "chat.tqs"];
    let packed = json(at, &pack);
    assert!(packed["coded_pack_bytes"].as_u64().unwrap() * 5 < packed["coded_state_bytes"].as_u64().unwrap());
    let found = json(at, &["session", "inspect", "chat.tqs"]);
    let name = found["basis"].as_str().unwrap();
    assert_eq!((found["class"].as_str().unwrap(), name.len()), ("coded in a basis", 64));
    json(at, &["session", "unpack", "--basis", "model.tqb", "chat.tqs", "back.bin"]);
    assert_eq!(fs::metadata(at.join("back.bin")).unwrap().len(), STATE.len() as u64);
    for (words, said) in [
        (
            &["unpack", "chat.tqs", "out"][..],
            &*format!("chat.tqs: basis: the pack needs {name}; given is none"),
        ),
        (&["unpack", "--basis", "cut.tqb", "chat.tqs", "out"], "cut.tqb: basis: "),
        (&["unpack", "--basis", "none.tqb", "chat.tqs", "out"], "none.tqb"),
        (&["pack", "--basis", "model.tqb", "--kv", "t2", "chat.bin", "out"], "--kv"),
        (&["pack", "--storage", "2", "chat.bin", "out"], "--basis"),
        (&["pack", "--basis", "model.tqb", "--storage", "9", "chat.bin", "out"], "0.5 to 5"),
    ] {
        let said_it = error(at, &[&["session"], words].concat(), 2);
        assert!(said_it.contains(said), "{words:?}: {said_it}");
        assert!(!at.join("out").exists(), "{words:?}");
    }
    let shown = tqkv(at, &["session", "inspect", "chat.tqs"]);
    assert!(String::from_utf8(shown.stdout).unwrap().contains(name));
}

#[test]
fn a_state_of_a_newer_version_is_packed_without_loss_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let mut newer = STATE.to_vec();
    newer[4] = 5;
    fs::write(at.join("chat.bin"), &newer).unwrap();
    fs::write(at.join("model.tqb"), BASIS).unwrap();
    let why = "version 5 of llama_state_seq_save_file; expected 3 or 4";
    for (words, is_noted) in
        [(&["--kv", "t2"][..], true), (&["--basis", "model.tqb"], true), (&["--exact"], false)]
    {
        let shown = tqkv(at, &[&["session", "pack", "chat.bin", "chat.tqs", "--force"], words].concat());
        let said = String::from_utf8(shown.stderr).unwrap();
        let noted = format!("tqkv: chat.bin: packed without loss, because it is not understood: {why}\n");
        assert_eq!((shown.status.success(), said), (true, if is_noted { noted } else { String::new() }));
        assert_eq!(json(at, &["session", "inspect", "chat.tqs"])["class"], "exact");
        json(at, &["session", "unpack", "chat.tqs", "back.bin", "--force"]);
        assert_eq!(fs::read(at.join("back.bin")).unwrap(), newer);
    }
    let found = json(at, &["session", "inspect", "chat.bin"]);
    assert_eq!((&found["version"], &found["not_understood"]), (&5.into(), &why.into()));
    let shown = tqkv(at, &["session", "inspect", "chat.bin"]);
    assert!(String::from_utf8(shown.stdout).unwrap().contains(why));
}

#[test]
fn a_session_that_is_refused_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("cut.bin"), &STATE[..STATE.len() / 2]).unwrap();
    fs::write(at.join("text.bin"), "no state at all").unwrap();
    fs::write(at.join("good.bin"), STATE).unwrap();
    json(at, &["session", "pack", "good.bin", "good.tqs"]);
    let pack = fs::read(at.join("good.tqs")).unwrap();
    fs::write(at.join("cut.tqs"), &pack[..pack.len() - 1]).unwrap();
    for (words, said) in [
        (&["pack", "cut.bin", "out"][..], "cut.bin: state, byte"),
        (&["pack", "text.bin", "out"], "not a state of llama.cpp"),
        (&["pack", "none.bin", "out"], "none.bin"),
        (&["pack", "-", "out"], "expected a file"),
        (&["pack", "--head-dim", "60", "good.bin", "out"], "no whole number of heads of 60"),
        (&["pack", "--exact", "--kv", "t2", "good.bin", "out"], "--exact"),
        (&["pack", "good.bin", "good.bin", "--force"], "is the input itself"),
        (&["pack", "good.bin", "good.tqs"], "--force replaces it"),
        (&["unpack", "cut.tqs", "out"], "cut.tqs: pack: cut within"),
        (&["unpack", "good.bin", "out"], "not a packed session"),
        (&["inspect", "cut.tqs"], "cut within"),
        (&["inspect", "text.bin"], "not a state"),
    ] {
        let said_it = error(at, &[&["session"], words].concat(), 2);
        assert!(said_it.contains(said), "{words:?}: {said_it}");
        let names = fs::read_dir(at).unwrap().count();
        assert_eq!(names, 5, "{words:?}");
    }
    assert_eq!(fs::read(at.join("good.tqs")).unwrap(), pack);
}
