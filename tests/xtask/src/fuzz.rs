//! Builds the fuzz targets, checks their seeds, runs each for a time, and prints a table.

mod turns;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::sync::Mutex;
use std::time::Instant;

/// The arguments of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The targets; all of them if none is named
    targets: Vec<String>,
    /// Seconds that each target runs
    #[arg(long, default_value_t = 12)]
    seconds: u64,
    /// Targets that run at once
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Afterwards, drop the inputs found so far that reach nothing beyond the others
    #[arg(long)]
    minimise: bool,
    /// Run the named targets, or else the one that has waited longest (with --jobs N so many), for so many minutes,
    /// keep what they find, and print what each target has had (fuzz/turns.txt)
    #[arg(long, value_name = "MINUTES", conflicts_with_all = ["seconds", "minimise"])]
    turn: Option<u64>,
}

/// The result of a run of a target.
#[derive(Debug, Default, PartialEq)]
struct Row {
    target: String,
    executions: u64,
    seconds: u64,
    /// Seeds and found inputs after the run.
    corpus: usize,
    /// Files that make the target crash, hang or take too much memory.
    crashes: Vec<String>,
    /// True if the run itself failed.
    failed: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let done = root().and_then(|root| match args.turn {
        Some(minutes) => turn(&root, minutes, args),
        None => {
            let targets = targets(&root, &args.targets)?;
            all(&root, targets, (args.seconds, args.jobs, args.minimise))
        }
    });
    match done {
        Ok(rows) => {
            print!("{}", table(&rows));
            ExitCode::from(u8::from(rows.iter().any(|row| row.failed)))
        }
        Err(error) => {
            eprintln!("xtask fuzz: {error}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> Result<PathBuf, String> {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    root.canonicalize().map_err(|error| format!("{}: {error}", root.display()))
}

/// Runs the named targets or those that have waited longest, and writes the table of turns. A turn that failed does
/// not count, so that its target is next again.
fn turn(root: &Path, minutes: u64, args: &Args) -> Result<Vec<Row>, String> {
    let file = root.join(turns::FILE);
    let said = |error: std::io::Error| format!("{}: {error}", turns::FILE);
    let mut had = turns::read(&fs::read_to_string(&file).map_err(said)?)?;
    let targets = targets(root, &[])?;
    let chosen = match &args.targets[..] {
        [] => turns::next(&had, &targets, args.jobs.max(1)),
        named => self::targets(root, named)?,
    };
    for target in &chosen {
        let corpus = root.join("fuzz/corpus").join(target);
        turns::unpack(root, target, &corpus).map_err(|error| format!("{target}: {error}"))?;
    }
    let (date, commit) = turns::now(root)?;
    let rows = all(root, chosen, (60 * minutes, args.jobs, true))?;
    for row in rows.iter().filter(|row| !row.failed) {
        let corpus = root.join("fuzz/corpus").join(&row.target);
        let found: Vec<_> =
            names(&corpus).iter().filter(|name| is_found(name)).map(|name| corpus.join(name)).collect();
        turns::pack(root, &row.target, &found).map_err(|error| format!("{}: {error}", row.target))?;
        let (target, date, commit) = (row.target.clone(), date.clone(), commit.clone());
        let hours = minutes as f64 / 60.0;
        turns::add(&mut had, turns::Turn { target, hours, inputs: row.executions, date, commit }, &targets);
    }
    let text = turns::write(&had);
    fs::write(&file, &text).map_err(said)?;
    println!("{text}");
    Ok(rows)
}

/// Runs `targets` for some seconds each, so many at once, and minimises what they have found if asked.
fn all(
    root: &Path,
    targets: Vec<String>,
    (seconds, jobs, minimise): (u64, usize, bool),
) -> Result<Vec<Row>, String> {
    let built = match &targets[..] {
        [target] => cargo_fuzz(root, &["build", target]).status(),
        _ => cargo_fuzz(root, &["build"]).status(),
    };
    if !built.is_ok_and(|status| status.success()) {
        return Err("the targets do not build".to_owned());
    }
    let (waiting, rows) = (Mutex::new(targets.into_iter()), Mutex::new(Vec::new()));
    let next = || waiting.lock().expect("no job panics").next();
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some(target) = next() {
                    let row = one(root, &target, (seconds, minimise));
                    rows.lock().expect("no job panics").push(row);
                }
            });
        }
    });
    let mut rows = rows.into_inner().expect("no job panics").into_iter().collect::<Result<Vec<Row>, _>>()?;
    rows.sort_by(|a, b| a.target.cmp(&b.target));
    Ok(rows)
}

/// `cargo fuzz` in the repository's root, where every crate but the kernels is instrumented.
fn cargo_fuzz(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root).env("RUSTC_BOOTSTRAP", "1");
    command.env("RUSTC_WRAPPER", root.join("fuzz/rustc-plain-simd"));
    command.args(["fuzz", arguments[0], "--codegen-units", "16"]).args(&arguments[1..]);
    command
}

/// The named targets, or all. A target is a file of `fuzz/fuzz_targets`.
fn targets(root: &Path, named: &[String]) -> Result<Vec<String>, String> {
    let mut all: Vec<String> = names(&root.join("fuzz/fuzz_targets"))
        .iter()
        .filter_map(|name| Some(name.strip_suffix(".rs")?.to_owned()))
        .collect();
    all.sort();
    match named.iter().find(|name| !all.contains(name)) {
        Some(name) => Err(format!("no target {name}: expected one of {}", all.join(", "))),
        None if named.is_empty() => Ok(all),
        None => Ok(named.to_vec()),
    }
}

/// Names of the files of a folder; none if it is not there.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// True for the name that the fuzzer gives to an input that it has found: a hash. Seeds have words as names.
fn is_found(name: &str) -> bool {
    name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Options of libFuzzer for a target.
fn options(root: &Path, target: &str, seconds: u64) -> Vec<String> {
    // The vocabulary of this file alone is longer than the usual limit.
    let most = if target == "gguf" { 32768 } else { 4096 };
    let mut options = vec![
        format!("-max_total_time={seconds}"),
        format!("-max_len={most}"),
        "-verbosity=0".to_owned(),
        "-print_final_stats=1".to_owned(),
    ];
    let dictionary = root.join(format!("fuzz/dictionaries/{target}.dict"));
    if dictionary.exists() {
        options.push(format!("-dict={}", dictionary.display()));
    }
    options
}

/// Checks the seeds of a target, runs it, and minimises what it has found if asked.
fn one(root: &Path, target: &str, (seconds, minimised): (u64, bool)) -> Result<Row, String> {
    let corpus = root.join("fuzz/corpus").join(target);
    let seeds: Vec<String> = names(&corpus)
        .iter()
        .filter(|name| !is_found(name))
        .map(|name| corpus.join(name).display().to_string())
        .collect();
    let said = |error: std::io::Error| format!("{target}: {error}");
    fs::create_dir_all(&corpus).map_err(said)?;
    let before = names(&root.join("fuzz/artifacts").join(target));
    let began = Instant::now();
    // Each seed must get through the target's reader. Without arguments libFuzzer would run for ever.
    let mut row = Row { target: target.to_owned(), ..Row::default() };
    if !seeds.is_empty() {
        let run = cargo_fuzz(root, &["run", target])
            .args(&seeds)
            .args(["--", "-verbosity=0"])
            .env("TQKV_SEEDS", "1")
            .output();
        row.failed |= failed(target, "a seed", &run.map_err(said)?);
    }
    let run = cargo_fuzz(root, &["run", target, "--"])
        .args(options(root, target, seconds))
        .output()
        .map_err(said)?;
    row.failed |= failed(target, "the run", &run);
    row.executions = executions(&String::from_utf8_lossy(&run.stderr));
    row.seconds = began.elapsed().as_secs();
    if minimised {
        minimise(root, target, &corpus)?;
    }
    row.corpus = names(&corpus).len();
    let is_new = |name: &String| !before.contains(name);
    row.crashes = names(&root.join("fuzz/artifacts").join(target)).into_iter().filter(is_new).collect();
    Ok(row)
}

/// Returns true if a run failed, and prints the end of what it said.
fn failed(target: &str, what: &str, run: &Output) -> bool {
    if !run.status.success() {
        let said = String::from_utf8_lossy(&run.stderr);
        let lines: Vec<&str> = said.lines().collect();
        eprintln!("{target}: {what} failed\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
    }
    !run.status.success()
}

/// Executions that a run of libFuzzer reports.
fn executions(said: &str) -> u64 {
    let count = |line: &str| line.strip_prefix("stat::number_of_executed_units:")?.trim().parse().ok();
    said.lines().find_map(count).unwrap_or(0)
}

/// Takes the found inputs out of the corpus, and puts back those that reach something new. Seeds stay.
fn minimise(root: &Path, target: &str, corpus: &Path) -> Result<(), String> {
    let said = |error: std::io::Error| format!("{target}: {error}");
    let found = tempfile::tempdir_in(root.join("fuzz")).map_err(said)?;
    for name in names(corpus).iter().filter(|name| is_found(name)) {
        fs::rename(corpus.join(name), found.path().join(name)).map_err(said)?;
    }
    let folders = [corpus, found.path()].map(|folder| folder.display().to_string());
    let merge =
        cargo_fuzz(root, &["run", target]).args(folders).args(["--", "-merge=1", "-verbosity=0"]).output();
    if failed(target, "the merge", &merge.map_err(said)?) {
        let kept = found.keep();
        return Err(format!("{target}: the inputs are in {}", kept.display()));
    }
    Ok(())
}

fn table(rows: &[Row]) -> String {
    let mut out =
        "| target | executions | seconds | corpus | crashes |\n| --- | ---: | ---: | ---: | --- |\n"
            .to_owned();
    for row in rows {
        let crashes = match (&row.crashes[..], row.failed) {
            ([], false) => "0".to_owned(),
            ([], true) => "failed, see above".to_owned(),
            (crashes, _) => format!("{}: {}", crashes.len(), crashes.join(" ")),
        };
        let Row { target, executions, seconds, corpus, .. } = row;
        out += &format!("| {target} | {executions} | {seconds} | {corpus} | {crashes} |\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_what_the_fuzzer_says() {
        let said = "INFO: seed corpus\nstat::number_of_executed_units: 4096\nstat::peak_rss_mb: 70\n";
        let row = |target: &str, failed, crashes: &[&str]| Row {
            target: target.to_owned(),
            executions: executions(said),
            seconds: 12,
            corpus: 35,
            crashes: crashes.iter().map(|&name| name.to_owned()).collect(),
            failed,
        };
        let rows = [row("cache", false, &[]), row("lives", true, &["crash-12"]), row("npy", true, &[])];
        let table = table(&rows);
        for line in [
            "| cache | 4096 | 12 | 35 | 0 |",
            "| lives | 4096 | 12 | 35 | 1: crash-12 |",
            "| npy | 4096 | 12 | 35 | failed, see above |",
        ] {
            assert!(table.lines().any(|other| other == line), "{table}");
        }
        assert_eq!(executions("panicked"), 0);
    }

    #[test]
    fn seeds_have_words_as_names_and_targets_are_files() {
        assert!(is_found("da39a3ee5e6b4b0d3255bfef95601890afd80709"));
        assert!(!is_found("map_pairs_budget") && !is_found("facade"));
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let all = targets(&root, &[]).unwrap();
        assert!(all.contains(&"lives".to_owned()) && !all.contains(&"seeds".to_owned()), "{all:?}");
        let error = targets(&root, &["live".to_owned()]).unwrap_err();
        assert!(error.starts_with("no target live: expected one of block_bytes, cache, "), "{error}");
        for target in all {
            let folder = root.join("fuzz/corpus").join(&target);
            assert!(names(&folder).iter().any(|name| !is_found(name)), "{target} has no seed");
        }
    }
}
