//! Commands and options of `tqkv-lab`, given to `tqkv`. It runs that program if it is installed, and names it
//! otherwise.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{alone, error, tqkv};

fn run(program: &Path, path: &Path, args: &[&str]) -> Output {
    Command::new(program).args(args).env("PATH", path).output().unwrap()
}

#[test]
fn without_the_laboratory_its_commands_say_where_it_is_to_be_had() {
    let (folder, empty) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let own = alone(folder.path());
    for name in ["report", "stats", "needle", "compare", "codebook"] {
        for args in [&[name][..], &[name, "--help"], &["--json", name, "--some", "option"]] {
            let output = run(&own, empty.path(), args);
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.code() == Some(2) && said.lines().count() == 1, "{args:?}: {said}");
            assert!(said.starts_with(&format!("tqkv: {name} is a command of tqkv-lab, which is ")), "{said}");
            assert!(said.contains("cargo install --path benches/lab"), "{said}");
        }
    }
}

#[test]
#[cfg(unix)]
fn its_commands_are_run_where_it_lies_beside_or_on_the_path() {
    use std::os::unix::fs::PermissionsExt as _;
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let own = alone(folder.path());
    let place = |folder: &Path, word: &str| {
        let lab = folder.join("tqkv-lab");
        fs::write(&lab, format!("#!/bin/sh\necho {word} \"$@\"\nexit 7\n")).unwrap();
        fs::set_permissions(&lab, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let said = |args: &[&str]| {
        let output = run(&own, other.path(), args);
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    place(other.path(), "path");
    assert_eq!(said(&["report", "--model", "a b", "x.html"]), "path report --model a b x.html\n");
    place(folder.path(), "beside");
    assert_eq!(said(&["stats", "--dim", "64", "--help"]), "beside stats --dim 64 --help\n");
    assert_eq!(said(&["--threads", "2", "needle", "-V"]), "beside needle -V --threads 2\n");
    assert_eq!(said(&["compare", "a", "b", "--json"]), "beside compare a b --json\n");
}

#[test]
fn options_that_moved_are_named_with_their_new_command() {
    let folder = tempfile::tempdir().unwrap();
    for (args, expected) in [
        (&["eval", "--storage", "1"][..], "tqkv-lab eval has it"),
        (&["eval", "--biased-keys", "30"], "tqkv-lab eval has it"),
        (&["generate", "--prompt", "a", "--outlier-variant"], "tqkv-lab eval has it"),
        (&["bench", "--sweep", "x.svg"], "tqkv-lab sweep has it"),
        (&["eval", "--window"], "found: did you mean --windows?"),
        (&["eval", "--quite-unlike"], "(see --help)"),
    ] {
        let message = error(folder.path(), args, 2);
        assert!(
            message.contains("unexpected argument '--") && message.contains(expected),
            "{args:?}: {message}"
        );
        assert!(!message.contains("tip:"), "{message}");
    }
}

#[test]
fn help_names_the_laboratory_and_not_its_commands_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let help = String::from_utf8(tqkv(folder.path(), &["--help"]).stdout).unwrap();
    assert!(help.contains("tqkv-lab") && !help.contains("\n  needle"), "{help}");
}
