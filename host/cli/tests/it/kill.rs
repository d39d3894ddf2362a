//! Kills commands of the program at random moments. Each output is complete, unchanged or absent afterwards.
//! The next run removes the leftovers of a killed one.
//!
//! `TQKV_KILLS=n` sets the number of kills per command. The default is small; with `TQKV_EXHAUSTIVE=1` it is
//! 1,000.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::PROGRAM;

/// The contents of a path: the bytes of a file, or of all files in a folder.
fn contents(path: &Path) -> Option<BTreeMap<String, Vec<u8>>> {
    if path.is_file() {
        return Some([(String::new(), fs::read(path).unwrap())].into());
    }
    let entries = fs::read_dir(path).ok()?.map(|entry| entry.unwrap());
    Some(entries.map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap())).collect())
}

fn remove(path: &Path) {
    if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { drop(fs::remove_file(path)) }
}

/// Temporary files and folders.
fn parts(folder: &Path) -> usize {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with(".tqkv-")).count()
}

/// Counts of the files that the kills left.
#[derive(Debug, Default)]
struct Found {
    none: usize,
    old: usize,
    new: usize,
    /// Number of kills that left a temporary file.
    left: usize,
}

fn spawn(at: &Path, args: &[&str]) -> std::process::Child {
    let mut command = Command::new(PROGRAM);
    command.current_dir(at).args(args).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Kills a command at random moments and checks `outputs`. `replaces` means that it replaces existing files.
fn kill(at: &Path, args: &[&str], outputs: &[&str], replaces: bool, times: usize) -> Found {
    let paths: Vec<_> = outputs.iter().map(|output| at.join(output)).collect();
    paths.iter().for_each(|path| remove(path));
    let clock = Instant::now();
    assert!(spawn(at, args).wait().unwrap().success(), "{args:?}");
    let time = clock.elapsed();
    let new: Vec<_> = paths.iter().map(|path| contents(path)).collect();
    assert!(new.iter().all(Option::is_some) && parts(at) == 0, "{args:?}");
    let mut number = random(args);
    let mut found = Found::default();
    for i in 0..times {
        let has_old = replaces && i % 2 == 1;
        for path in &paths {
            remove(path);
            if has_old {
                fs::write(path, b"old").unwrap();
            }
        }
        let before: Vec<_> = paths.iter().map(|path| contents(path)).collect();
        let mut child = spawn(at, args);
        // Every second kill comes near the end, where files are renamed into place.
        let share = if i % 4 < 2 { number() } else { 0.7 + 0.5 * number() };
        std::thread::sleep(time.mul_f64(share));
        // The command may have ended.
        let _ = child.kill();
        child.wait().unwrap();
        for ((path, before), new) in paths.iter().zip(&before).zip(&new) {
            let now = contents(path);
            let count = if now == *new {
                &mut found.new
            } else if now != *before {
                panic!("{args:?}: {} is neither old nor new nor gone", path.display());
            } else if has_old {
                &mut found.old
            } else {
                &mut found.none
            };
            *count += 1;
        }
        found.left += usize::from(parts(at) > 0);
    }
    paths.iter().for_each(|path| remove(path));
    assert!(spawn(at, args).wait().unwrap().success(), "{args:?}");
    assert_eq!(parts(at), 0, "{args:?}: what killed processes have left is removed by the next");
    found
}

/// Numbers from 0 to 1, equal for equal arguments.
fn random(args: &[&str]) -> impl FnMut() -> f64 {
    let mut random = fastrand::Rng::with_seed(args.concat().bytes().map(u64::from).sum());
    move || random.f64()
}

/// Kills a command as often as the environment asks, and checks `outputs` each time.
pub(crate) fn kill_often(at: &Path, args: &[&str], outputs: &[&str], replaces: bool) {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<usize>().ok());
    let times = number("TQKV_KILLS").unwrap_or(if number("TQKV_EXHAUSTIVE") == Some(1) { 1000 } else { 8 });
    let clock = Instant::now();
    let found = kill(at, args, outputs, replaces, times);
    println!("{times} kills in {:.0} s of {}: {found:?}", clock.elapsed().as_secs_f64(), args.join(" "));
    assert!(found.none + found.old + found.new == times * outputs.len());
}
