//! Runs the program under test.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::PROGRAM;

/// The program alone in a folder, so that the files next to the original are out of reach. It is a link where that is
/// possible: a file that was just written cannot run while another test's child has it open.
#[allow(dead_code, reason = "not every test crate needs it")]
pub(crate) fn alone(folder: &Path) -> PathBuf {
    let own = folder.join(format!("tqkv{}", std::env::consts::EXE_SUFFIX));
    if fs::hard_link(PROGRAM, &own).is_err() {
        fs::copy(PROGRAM, &own).unwrap();
    }
    own
}

/// The program under test, without the variables that change what it prints. Those that CI sets for it, as
/// `TQKV_LEVEL`, stay.
#[allow(dead_code, reason = "not every test crate needs it")]
pub(crate) fn program() -> Command {
    let mut command = Command::new(PROGRAM);
    for name in ["COLUMNS", "GGML_BACKEND_PATH", "TQKV_KV"] {
        command.env_remove(name);
    }
    command
}

/// Runs the command in `folder`.
#[allow(dead_code, reason = "not every test crate needs it")]
pub(crate) fn tqkv(folder: &Path, args: &[&str]) -> Output {
    program().current_dir(folder).args(args).output().unwrap()
}

/// Runs the command in `folder` with an environment variable.
#[allow(dead_code, reason = "not every test crate needs it")]
pub(crate) fn tqkv_with(folder: &Path, args: &[&str], (name, value): (&str, &str)) -> Output {
    program().current_dir(folder).args(args).env(name, value).output().unwrap()
}

/// Runs the command in `folder` with `input` on its standard input.
#[allow(dead_code, reason = "not every test crate needs it")]
pub(crate) fn piped(folder: &Path, args: &[&str], input: &[u8]) -> Output {
    let mut command = program();
    command
        .current_dir(folder)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that refuses the first bytes does not read the rest.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// Runs a command that must succeed without a note; returns its JSON.
#[allow(dead_code, reason = "not every test crate needs it")]
pub(crate) fn json(folder: &Path, args: &[&str]) -> Value {
    let output = tqkv(folder, &[args, &["--json"]].concat());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && stderr.is_empty(), "{args:?}: {stderr}");
    serde_json::from_slice(&output.stdout).expect("one JSON object and nothing else")
}

/// Runs a command that must fail; returns its one line.
#[allow(dead_code, reason = "not every test crate needs it")]
pub(crate) fn error(folder: &Path, args: &[&str], code: i32) -> String {
    let output = tqkv(folder, args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{args:?}: output beside an error");
    assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
    stderr
}

/// Checks that the help of commands fits a terminal of 80 columns, without broken paragraphs.
#[allow(dead_code, reason = "not every test crate needs it")]
pub(crate) fn assert_help_fits(commands: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    for command in commands {
        let output = tqkv_with(folder.path(), &[command, "--help"], ("COLUMNS", "80"));
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.len() > 5 && lines.iter().all(|line| line.len() <= 80), "{command}: {text}");
        // A paragraph that was wrapped twice has a short line between two long ones.
        for three in lines.windows(3).filter(|three| three.iter().all(|l| l.starts_with(char::is_alphabetic)))
        {
            let short = three[1].len() < 50 && !three[1].ends_with(':');
            assert!(!(short && three[0].len() > 60 && three[2].len() > 40), "{command}: {three:?}");
        }
    }
}
