//! Files that the command writes and reads. It never overwrites its own input, or another file without
//! permission. It leaves no partial file, and refuses endless input.

use std::fs;
use std::path::Path;

use crate::arrays::{DIM, elements, files, folder, npy, raw, values};
use crate::support::{error, json, tqkv};

const ENCODE: [&str; 3] = ["encode", "--codec", "s4"];

fn encode<'a>(extra: &[&'a str]) -> Vec<&'a str> {
    [&ENCODE, extra].concat()
}

#[test]
fn an_input_is_never_its_own_output() {
    let folder = folder();
    let at = folder.path();
    let original = fs::read(at.join("in.npy")).unwrap();
    fs::hard_link(at.join("in.npy"), at.join("hard.npy")).unwrap();
    fs::create_dir(at.join("sub")).unwrap();
    let mut outputs = vec!["in.npy", "./in.npy", "sub/../in.npy", "hard.npy"];
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("in.npy", at.join("soft.npy")).unwrap();
        outputs.push("soft.npy");
    }
    for output in outputs {
        for force in [&[][..], &["--force"]] {
            let message = error(at, &encode(&[force, &["in.npy", output]].concat()), 2);
            assert!(message.contains("is the input itself"), "{output}: {message}");
            assert_eq!(fs::read(at.join("in.npy")).unwrap(), original, "{output}");
        }
    }
    json(at, &encode(&["in.npy", "x.tqk"]));
    let encoded = fs::read(at.join("x.tqk")).unwrap();
    assert!(error(at, &["decode", "--force", "x.tqk", "x.tqk"], 2).contains("is the input itself"));
    assert_eq!(fs::read(at.join("x.tqk")).unwrap(), encoded);
}

#[test]
fn an_output_that_exists_is_replaced_by_force_only() {
    let folder = folder();
    let at = folder.path();
    json(at, &encode(&["in.npy", "x.tqk"]));
    fs::write(at.join("out"), b"precious").unwrap();
    for args in [encode(&["in.npy", "out"]), vec!["decode", "x.tqk", "out"]] {
        let message = error(at, &args, 2);
        assert!(message.contains("out: exists") && message.contains("--force"), "{message}");
        assert_eq!(fs::read(at.join("out")).unwrap(), b"precious", "{args:?}");
    }
    json(at, &["decode", "--force", "x.tqk", "out"]);
    assert_eq!(elements(&at.join("out")).len(), 50 * DIM);
    assert_eq!(files(at).len(), 3);
}

#[test]
#[cfg(unix)]
fn what_is_replaced_keeps_its_permissions_and_links_keep_leading() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = folder();
    let at = folder.path();
    let mode = |name: &str| fs::metadata(at.join(name)).unwrap().permissions().mode() & 0o777;
    fs::write(at.join("private"), b"old").unwrap();
    fs::set_permissions(at.join("private"), fs::Permissions::from_mode(0o600)).unwrap();
    symlink("private", at.join("link")).unwrap();
    json(at, &encode(&["--force", "in.npy", "link"]));
    assert_eq!(mode("private"), 0o600);
    assert!(at.join("link").is_symlink() && fs::read(at.join("private")).unwrap().len() > 900);
    // Only its owner can read a new file: keys and values reveal the text that they come from.
    json(at, &encode(&["in.npy", "new"]));
    json(at, &["decode", "new", "new.npy"]);
    assert_eq!([mode("new"), mode("new.npy")], [0o600; 2]);
    // A model file is not secret: it has the mode that the umask gives to any file of this process.
    fs::write(at.join("own"), b"").unwrap();
    json(at, &["export", "--target", "mcu", &shipped(), "model.tqlm"]);
    assert_eq!(mode("model.tqlm"), mode("own"));
    symlink("gone", at.join("dangling")).unwrap();
    for force in [&[][..], &["--force"]] {
        let message = error(at, &encode(&[force, &["in.npy", "dangling"]].concat()), 2);
        assert!(message.contains("a link that leads to no file"), "{message}");
    }
    assert!(at.join("dangling").is_symlink() && !at.join("gone").exists());
}

#[test]
fn f64_is_rounded_to_f32_and_says_so() {
    let folder = folder();
    let at = folder.path();
    let exact: Vec<f64> = values(50).iter().map(|&x| f64::from(x) * (1.0 + 1e-12)).collect();
    let bytes: Vec<u8> = exact.iter().flat_map(|x| x.to_le_bytes()).collect();
    npy(&at.join("f64.npy"), "<f8", &format!("(50, {DIM})"), &bytes);
    assert_eq!(json(at, &encode(&["in.npy", "a.tqk"]))["rounded"], false);
    assert_eq!(json(at, &encode(&["f64.npy", "b.tqk"]))["rounded"], true);
    assert_eq!(fs::read(at.join("a.tqk")).unwrap(), fs::read(at.join("b.tqk")).unwrap());
    let said = tqkv(at, &encode(&["f64.npy", "c.tqk"])).stdout;
    assert!(String::from_utf8(said).unwrap().contains("f64 rounded to f32"));
    let mut huge = exact;
    huge[3 * DIM] = 1e300;
    let bytes: Vec<u8> = huge.iter().flat_map(|x| x.to_le_bytes()).collect();
    npy(&at.join("huge.npy"), "<f8", &format!("(50, {DIM})"), &bytes);
    let message = error(at, &encode(&["huge.npy", "d.tqk"]), 2);
    assert!(message.contains("row 3 ") && message.contains("beyond f32"), "{message}");
}

#[test]
fn standard_input_is_read_as_far_as_its_header_says() {
    let folder = folder();
    let at = folder.path();
    json(at, &encode(&["in.npy", "x.tqk"]));
    let (array, encoded) = (fs::read(at.join("in.npy")).unwrap(), fs::read(at.join("x.tqk")).unwrap());
    let piped = |args: &[&str], input: &[u8]| crate::support::piped(at, args, input);
    assert!(piped(&encode(&["-", "y.tqk"]), &array).status.success());
    assert_eq!(fs::read(at.join("y.tqk")).unwrap(), encoded);
    assert!(piped(&["decode", "-", "y.npy"], &encoded).status.success());
    assert_eq!(elements(&at.join("y.npy")).len(), 50 * DIM);
    let inspected = piped(&["inspect", "--json", "-"], &encoded);
    let inspected: serde_json::Value = serde_json::from_slice(&inspected.stdout).unwrap();
    assert_eq!((&inspected["crc"], &inspected["count"]), (&"ok".into(), &50.into()));
    for (input, expected) in [
        (&array[..array.len() - 1], "needs 6400 bytes of elements, found 6399"),
        (&[&array[..], b"x"].concat(), "found 6401"),
        (&array[..9], "truncated"),
        (b"PK", "expected a .npy"),
    ] {
        let output = piped(&encode(&["-", "z.tqk"]), input);
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && message.contains(expected), "{message}");
    }
    assert!(!at.join("z.tqk").exists());
}

#[test]
#[cfg(unix)]
fn a_device_without_an_end_is_refused_at_once() {
    let folder = folder();
    let at = folder.path();
    for (args, expected) in [
        (vec!["inspect", "/dev/zero"], "not a .tqk file"),
        (vec!["decode", "/dev/zero", "x.npy"], "not a .tqk file"),
        (encode(&["/dev/zero", "x.tqk"]), "is not a regular file"),
        (vec!["decode", "--basis", "/dev/zero", "--values", "v.npy", "in.npy", "k.npy"], "not a basis"),
    ] {
        let message = error(at, &args, 2);
        assert!(message.contains("/dev/zero") && message.contains(expected), "{args:?}: {message}");
    }
}

/// The shipped model.
fn shipped() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../model/shipped").to_owned()
}

/// A pipe waits for its other end, which nobody opens here.
#[test]
#[cfg(unix)]
fn an_output_that_is_a_pipe_is_refused_at_once() {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};
    let folder = folder();
    let at = folder.path();
    json(at, &encode(&["in.npy", "x.tqk"]));
    assert!(Command::new("mkfifo").arg(at.join("pipe")).status().unwrap().success());
    let model = shipped();
    for args in [
        encode(&["in.npy", "pipe"]),
        vec!["decode", "x.tqk", "pipe"],
        vec!["export", "--target", "mcu", &model, "pipe"],
    ] {
        for force in [&[][..], &["--force"]] {
            let args = [&args[..], force].concat();
            let mut child = Command::new(env!("CARGO_BIN_EXE_tqkv"))
                .current_dir(at)
                .args(&args)
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let begun = Instant::now();
            while child.try_wait().unwrap().is_none() {
                if begun.elapsed() > Duration::from_secs(60) {
                    child.kill().unwrap();
                    panic!("{args:?} waits for a pipe");
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(
                output.status.code() == Some(2) && said.contains("not a regular file"),
                "{args:?}: {said}"
            );
        }
    }
}

/// A file that takes long to encode.
#[cfg(unix)]
fn long(at: &Path) {
    let rows = 200_000;
    npy(&at.join("long.npy"), "<f4", &format!("({rows}, {DIM})"), &raw(&values(rows)));
}

#[test]
#[cfg(unix)]
fn signals_remove_what_was_begun_and_end_the_command() {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    long(at);
    fs::write(at.join("x.tqk"), b"precious").unwrap();
    let before = files(at);
    let model = shipped();
    let encode = ["encode", "--force", "--codec", "t4", "--effort", "best", "long.npy", "x.tqk"];
    // This command ends by itself at Ctrl-C.
    let weights = ["weights", "compress", &model, "coded", "--effort", "best"];
    for (args, name, number) in [(&encode[..], "INT", 2), (&encode, "TERM", 15), (&weights, "TERM", 15)] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tqkv"))
            .current_dir(at)
            .args(args)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while files(at) == before {
            assert!(begun.elapsed() < Duration::from_secs(60), "no file was begun");
            std::thread::sleep(Duration::from_millis(5));
        }
        let kill = Command::new("sh").args(["-c", &format!("kill -{name} {}", child.id())]).status();
        assert!(kill.unwrap().success());
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(number), "{args:?}: {status:?}");
        assert_eq!(files(at), before, "{args:?}: SIG{name}");
        assert_eq!(fs::read(at.join("x.tqk")).unwrap(), b"precious");
    }
}

/// `-` is standard output for an output file, and standard input for an input file. The report goes to stderr
/// then.
#[test]
fn standard_output_takes_what_a_file_would() {
    let folder = folder();
    let at = folder.path();
    json(at, &encode(&["in.npy", "x.tqk"]));
    json(at, &["decode", "x.tqk", "x.npy"]);
    for (args, file) in [(encode(&["in.npy", "-"]), "x.tqk"), (vec!["decode", "x.tqk", "-"], "x.npy")] {
        let before = files(at);
        let done = tqkv(at, &args);
        let said = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.success() && said.contains("vectors of"), "{args:?}: {said}");
        assert!(done.stdout == fs::read(at.join(file)).unwrap(), "{args:?}: other bytes than in {file}");
        assert_eq!(files(at), before, "{args:?}: no file is called -");
    }
    let piped = crate::support::piped(at, &["decode", "-", "-"], &fs::read(at.join("x.tqk")).unwrap());
    assert!(piped.stdout == fs::read(at.join("x.npy")).unwrap());
}
