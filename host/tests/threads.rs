//! Errors for a program that cannot have the threads it asks for.
// A separate binary, because it starts itself as a process that lacks memory for threads.
#![cfg(target_os = "linux")]

use std::process::Command;
use tqkv::cache::{CacheSpec, KvCache};

/// Runs as its own process, with more threads than its memory allows.
#[test]
#[ignore = "run by the other test"]
fn in_want_of_threads() {
    let spec = CacheSpec::new(1, 2, 1, 64);
    for _ in 0..2 {
        println!("{}", KvCache::new(spec.clone()).map(|_| ()).unwrap_err());
    }
}

#[test]
fn threads_that_cannot_be_had_are_an_error_and_no_panic() {
    let output = Command::new("sh")
        .args(["-c", "ulimit -v 4000000; exec \"$0\" --ignored --exact in_want_of_threads --nocapture --test-threads=1"])
        .arg(std::env::current_exe().unwrap())
        .env("RAYON_NUM_THREADS", "20000")
        // Large stacks make the start of a thread fail. A thread that starts and then lacks memory would
        // abort.
        .env("RUST_MIN_STACK", (256 << 20).to_string())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.matches("cannot start threads").count(), 2, "{text}");
}

/// Runs as its own process, because threads are started once.
#[test]
#[ignore = "run by the other test"]
fn asking_for_threads() {
    let refused = |threads| tqkv::threads::start_with(threads).unwrap_err().to_string();
    for absurd in [0, 1025, usize::MAX] {
        assert!(refused(absurd).contains("expected 1 to 1024"), "{}", refused(absurd));
    }
    tqkv::threads::start_with(3).unwrap();
    KvCache::new(CacheSpec::new(1, 2, 1, 64)).unwrap();
    tqkv::threads::start_with(3).unwrap();
    assert!(refused(2).contains("2 is not possible: 3 have started already"), "{}", refused(2));
    assert_eq!(tqkv::threads::running(), Ok(3));
}

#[test]
fn a_program_says_how_many_threads_there_are() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "asking_for_threads", "--nocapture"])
        .env("RAYON_NUM_THREADS", "2")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
