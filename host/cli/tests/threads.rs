//! Too many threads asked for, and none to be had.

mod support;

use support::tqkv_with;

const STATS: [&str; 6] = ["stats", "--random", "600", "--codec", "s4", "--json"];

#[test]
fn more_threads_than_reason_become_fewer_and_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let [one, many] =
        ["1", "20000"].map(|threads| tqkv_with(folder.path(), &STATS, ("RAYON_NUM_THREADS", threads)));
    assert!(one.status.success() && one.stderr.is_empty(), "{one:?}");
    assert!(many.status.success(), "{many:?}");
    assert_eq!(one.stdout, many.stdout);
    let note = String::from_utf8(many.stderr).unwrap();
    assert!(note.starts_with("tqkv: 20000 threads asked for, going on with "), "{note}");
    assert_eq!(note.lines().count(), 1, "{note}");
}

/// Address space for a few stacks, then for none beside the command's own.
#[test]
#[cfg(target_os = "linux")]
fn without_threads_to_be_had_the_command_works_alone() {
    for kib in [200_000, 16_000] {
        let command = format!("ulimit -v {kib}; exec \"$0\" \"$@\"");
        let output = std::process::Command::new("sh")
            .args(["-c", &command, env!("CARGO_BIN_EXE_tqkv")])
            .args(STATS)
            .env("RAYON_NUM_THREADS", "128")
            .output()
            .unwrap();
        let note = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{kib}: {note}");
        assert!(
            note.starts_with("tqkv: 128 threads asked for") && note.lines().count() == 1,
            "{kib}: {note}"
        );
    }
}
