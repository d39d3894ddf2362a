//! The program asks for more threads than the system can start.
// A separate binary, because the threads would starve other tests.

#[path = "../../../host/cli/tests/it/support.rs"]
mod support;

use support::tqkv_with;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_tqkv-lab");

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
    assert!(note.starts_with("tqkv-lab: 20000 threads asked for, going on with "), "{note}");
    assert_eq!(note.lines().count(), 1, "{note}");
}

/// Address space for a few stacks only.
#[test]
#[cfg(target_os = "linux")]
fn threads_that_cannot_be_had_are_done_without() {
    let output = std::process::Command::new("sh")
        .args(["-c", "ulimit -v 600000; exec \"$0\" \"$@\"", PROGRAM])
        .args(STATS)
        .env("RAYON_NUM_THREADS", "250")
        // Each arena of glibc takes up to 128 MiB of it, and then a thread has no memory for its first word.
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{note}");
    assert!(note.starts_with("tqkv-lab: 250 threads asked for") && note.lines().count() == 1, "{note}");
}
