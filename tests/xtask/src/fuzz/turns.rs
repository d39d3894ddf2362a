//! Fuzzing in turns: the target that has waited longest runs for some minutes, and what it found stays in the tree.
//!
//! `fuzz/turns.txt` has a line per target, and `fuzz/found` the inputs that a next turn begins with, as text.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The table of turns.
pub(super) const FILE: &str = "fuzz/turns.txt";

/// Bytes of found inputs that are kept per target, the smallest inputs first: they reach most for their bytes.
const KEPT: usize = 12 << 10;

/// What a target has had.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Turn {
    pub(super) target: String,
    /// In all.
    pub(super) hours: f64,
    /// Inputs that were tried, in all.
    pub(super) inputs: u64,
    /// Of the last turn.
    pub(super) date: String,
    pub(super) commit: String,
}

/// Reads the table; the first line names the columns.
pub(super) fn read(text: &str) -> Result<Vec<Turn>, String> {
    let turn = |line: &str| -> Option<Turn> {
        let [target, hours, inputs, date, commit] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return None;
        };
        let [target, date, commit] = [target, date, commit].map(str::to_owned);
        Some(Turn { target, hours: hours.parse().ok()?, inputs: inputs.parse().ok()?, date, commit })
    };
    let lines = text.lines().skip(1);
    lines.map(|line| turn(line).ok_or_else(|| format!("{FILE}: '{line}' is no turn"))).collect()
}

/// The table as text.
pub(super) fn write(turns: &[Turn]) -> String {
    let mut text = format!("{:<14}{:>8}{:>14}  {:<10}  commit\n", "target", "hours", "inputs", "date");
    for Turn { target, hours, inputs, date, commit } in turns {
        text += &format!("{target:<14}{hours:>8.2}{inputs:>14}  {date:<10}  {commit}\n");
    }
    text
}

/// The `count` targets that have waited longest; those that never ran come first.
pub(super) fn next(turns: &[Turn], targets: &[String], count: usize) -> Vec<String> {
    let last = |target: &String| turns.iter().find(|turn| turn.target == *target);
    let mut waiting = targets.to_vec();
    waiting.sort_by(|a, b| {
        let [a, b] = [a, b].map(|target| last(target).map_or(("", 0.0), |turn| (&turn.date, turn.hours)));
        a.0.cmp(b.0).then(a.1.total_cmp(&b.1))
    });
    waiting.truncate(count);
    waiting
}

/// Adds a turn of a target to the table, whose lines are in the order of `targets`.
pub(super) fn add(turns: &mut Vec<Turn>, turn: Turn, targets: &[String]) {
    match turns.iter_mut().find(|old| old.target == turn.target) {
        Some(old) => *old = Turn { hours: old.hours + turn.hours, inputs: old.inputs + turn.inputs, ..turn },
        None => turns.push(turn),
    }
    turns.retain(|turn| targets.contains(&turn.target));
    turns.sort_by(|a, b| a.target.cmp(&b.target));
}

fn file_of_found(root: &Path, target: &str) -> PathBuf {
    root.join("fuzz/found").join(format!("{target}.txt"))
}

/// Puts the kept inputs into the corpus, under names that count as found ones.
pub(super) fn unpack(root: &Path, target: &str, corpus: &Path) -> io::Result<()> {
    let kept = fs::read_to_string(file_of_found(root, target)).unwrap_or_default();
    for (i, line) in kept.lines().enumerate() {
        let bytes = BASE64_STANDARD.decode(line).map_err(io::Error::other)?;
        fs::write(corpus.join(format!("{i:040x}")), bytes)?;
    }
    Ok(())
}

/// Keeps what a turn found. `found` are paths of inputs of which none is in vain.
pub(super) fn pack(root: &Path, target: &str, found: &[PathBuf]) -> io::Result<()> {
    let mut inputs = found.iter().map(fs::read).collect::<io::Result<Vec<_>>>()?;
    inputs.sort_by(|a, b| a.len().cmp(&b.len()).then(a.cmp(b)));
    let mut taken = 0;
    let fits = |input: &&Vec<u8>| {
        taken += input.len();
        taken <= KEPT
    };
    let lines = inputs.iter().take_while(fits).map(|input| BASE64_STANDARD.encode(input) + "\n");
    let lines: String = lines.collect();
    let file = file_of_found(root, target);
    fs::create_dir_all(file.parent().expect("a file has a folder"))?;
    fs::write(file, lines)
}

/// Today, and the commit of the tree, with a mark if the tree has changes other than those of turns.
pub(super) fn now(root: &Path) -> Result<(String, String), String> {
    let said = |program: &str, arguments: &[&str]| -> Result<String, String> {
        let output = Command::new(program).current_dir(root).args(arguments).output();
        let output = output.map_err(|error| format!("{program}: {error}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let date = said("date", &["-u", "+%F"])?;
    let commit = said("git", &["rev-parse", "--short=12", "HEAD"])?;
    let changed =
        said("git", &["status", "--porcelain", "-uno", "--", ".", ":!fuzz/turns.txt", ":!fuzz/found"])?;
    Ok((date, if changed.is_empty() { commit } else { format!("{commit}+") }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(target: &str, date: &str, hours: f64) -> Turn {
        Turn {
            target: target.to_owned(),
            hours,
            inputs: 4096,
            date: date.to_owned(),
            commit: "3fb9ddc62dd9".to_owned(),
        }
    }

    #[test]
    fn the_target_that_has_waited_longest_is_next() {
        let targets = ["cache", "gguf", "lives", "new", "npy"].map(str::to_owned);
        let mut turns = vec![
            turn("cache", "2026-11-29", 0.5),
            turn("gguf", "2026-11-28", 2.0),
            turn("lives", "2026-11-28", 1.0),
            turn("npy", "2026-12-01", 0.25),
            turn("gone", "2026-01-01", 0.25),
        ];
        assert_eq!(next(&turns, &targets, 3), ["new", "lives", "gguf"]);
        add(&mut turns, turn("new", "2026-12-02", 0.5), &targets);
        add(&mut turns, turn("lives", "2026-12-02", 0.25), &targets);
        assert_eq!(next(&turns, &targets, 2), ["gguf", "cache"]);
        let names: Vec<_> = turns.iter().map(|turn| turn.target.as_str()).collect();
        assert_eq!(names, ["cache", "gguf", "lives", "new", "npy"]);
        assert_eq!((turns[2].hours, turns[2].inputs), (1.25, 8192));
        assert_eq!(read(&write(&turns)).unwrap(), turns);
        assert_eq!(read("target\ncache 1 2\n").unwrap_err(), "fuzz/turns.txt: 'cache 1 2' is no turn");
    }

    #[test]
    fn found_inputs_come_back_the_smallest_first() {
        let root = tempfile::tempdir().unwrap();
        let corpus = root.path().join("fuzz/corpus/cache");
        fs::create_dir_all(&corpus).unwrap();
        let inputs = [vec![0, 255, 10], vec![7; KEPT], vec![1]];
        let paths: Vec<_> = (0..3).map(|i| corpus.join(i.to_string())).collect();
        for (path, input) in paths.iter().zip(&inputs) {
            fs::write(path, input).unwrap();
        }
        pack(root.path(), "cache", &paths).unwrap();
        unpack(root.path(), "cache", &corpus).unwrap();
        assert_eq!(fs::read(corpus.join(format!("{:040x}", 0))).unwrap(), [1]);
        assert_eq!(fs::read(corpus.join(format!("{:040x}", 1))).unwrap(), [0, 255, 10]);
        assert!(!corpus.join(format!("{:040x}", 2)).exists());
        unpack(root.path(), "new", &corpus).unwrap();
    }

    /// The committed table is one, and has no target that is not there.
    #[test]
    fn the_table_of_turns_can_be_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let turns = read(&fs::read_to_string(root.join(FILE)).unwrap()).unwrap();
        let known = super::super::targets(&root, &[]).unwrap();
        assert!(turns.iter().all(|turn| known.contains(&turn.target)), "{turns:?}");
    }
}
