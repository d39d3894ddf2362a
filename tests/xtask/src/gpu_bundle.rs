//! `cargo xtask gpu-bundle`: writes programs and a script for a machine with a GPU and without a compiler.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// A file of the Python package, for the folder `python` of the bundle.
macro_rules! python {
    ($folder:literal, $name:literal) => {
        (concat!("python/", $name), include_str!(concat!("../../../host/python/", $folder, "/", $name)))
    };
}

/// The script and its data, by their names in the bundle.
const TEXTS: [(&str, &str); 12] = [
    ("README.md", include_str!("gpu_bundle/README.md")),
    ("run-all.sh", include_str!("gpu_bundle/run-all.sh")),
    ("baselines.py", include_str!("gpu_bundle/baselines.py")),
    ("serve.py", include_str!("gpu_bundle/serve.py")),
    ("sm_80.ptx", include_str!("../../../gpu/ptx/sm_80.ptx")),
    python!("tests", "conftest.py"),
    python!("tests", "test_gpu.py"),
    python!("tests", "test_gpu_torch.py"),
    python!("tests", "test_paged.py"),
    python!("tests", "test_device.py"),
    python!("tests", "test_transformers_device.py"),
    python!("examples", "device_speed.py"),
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder to write; it must not exist, or be an earlier bundle
    #[arg(value_name = "FOLDER", default_value = "target/gpu-bundle")]
    folder: PathBuf,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match bundle(&args.folder) {
        Ok(()) => {
            println!("{}: README.md says what to run there", args.folder.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("gpu-bundle: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bundle(folder: &Path) -> Result<(), String> {
    let said = |error: io::Error| format!("{}: {error}", folder.display());
    // This must not overwrite other files. Measurements in an earlier bundle stay.
    if folder.exists() && !folder.join("baselines.py").exists() {
        return Err(format!(
            "{} is not a bundle: expected an earlier bundle, or a path that does not exist",
            folder.display()
        ));
    }
    let tqkv = built(&["build", "--release", "--package", "tqkv-cli", "--features", "cuda"], "tqkv")?;
    let tests = ["test", "--release", "--no-run", "--package", "tqkv-gpu", "--test"];
    let [device, driver] = ["device", "driver"].map(|name| built(&[&tests[..], &[name]].concat(), name));
    fs::create_dir_all(folder).map_err(said)?;
    write_texts(folder).map_err(said)?;
    for (program, name) in [(tqkv, "tqkv"), (device?, "device"), (driver?, "driver")] {
        let to = folder.join(name);
        fs::copy(program, &to).map_err(said)?;
        // Stripping makes the program smaller. It is optional, because the program also runs without it.
        let _ = Command::new("strip").arg(&to).stderr(Stdio::null()).status();
    }
    Ok(())
}

/// The commit that the programs are built from, with a word if the files differ from it.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").current_dir(env!("CARGO_MANIFEST_DIR")).args(arguments).output();
        output.ok().filter(|output| output.status.success()).map(|output| output.stdout)
    };
    let Some(hash) = git(&["rev-parse", "--short=8", "HEAD"]) else { return "unknown\n".to_owned() };
    let is_changed =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_none_or(|said| !said.is_empty());
    let hash = String::from_utf8_lossy(&hash).trim().to_owned();
    if is_changed { format!("{hash}, changed\n") } else { format!("{hash}\n") }
}

fn write_texts(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder.join("python"))?;
    fs::write(folder.join("commit.txt"), commit())?;
    for (name, text) in TEXTS {
        let path = folder.join(name);
        fs::write(&path, text)?;
        #[cfg(unix)]
        if name.ends_with(".sh") {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
    }
    Ok(())
}

/// Runs cargo and returns the path of the program `name` that it built.
fn built(arguments: &[&str], name: &str) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .args(arguments)
        .args(["--locked", "--message-format", "json-render-diagnostics"])
        .env("TQKV_COMMIT", commit().trim())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo {} failed", arguments.join(" ")));
    }
    program(&String::from_utf8_lossy(&output.stdout), name)
        .ok_or_else(|| format!("cargo {} built no {name}", arguments.join(" ")))
}

/// The program of a target in cargo's messages.
fn program(messages: &str, name: &str) -> Option<PathBuf> {
    let of_target = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let program = message["executable"].as_str().map(PathBuf::from)?;
        (message["target"]["name"] == name).then_some(program)
    };
    messages.lines().find_map(of_target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_of_a_target_is_found_in_what_cargo_says() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"tqkv"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"device"},"executable":"/a/device-1"}
{"reason":"compiler-artifact","target":{"name":"tqkv"},"executable":"/a/tqkv"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(program(messages, "tqkv"), Some(PathBuf::from("/a/tqkv")));
        assert_eq!(program(messages, "device"), Some(PathBuf::from("/a/device-1")));
        assert_eq!(program(messages, "xtask"), None);
    }

    #[test]
    fn scripts_are_shell_and_name_what_is_in_the_bundle() {
        let folder = std::env::temp_dir().join(format!("tqkv-gpu-bundle-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        write_texts(&folder).unwrap();
        for (name, text) in TEXTS.iter().filter(|(name, _)| name.ends_with(".sh")) {
            let status = Command::new("bash").arg("-n").arg(folder.join(name)).status().expect("bash");
            assert!(status.success(), "{name}");
            for word in text.split_whitespace().filter_map(|word| word.strip_prefix("./")) {
                let is_there = ["tqkv", "device", "driver"].contains(&word)
                    || TEXTS.iter().any(|(name, _)| *name == word);
                assert!(is_there, "{name}: {word} is not in the bundle");
            }
            let is_listed = TEXTS[0].1.contains(&format!("`{name}`"));
            assert!(is_listed, "{name} is not in the bundle's README.md");
        }
        let refused = bundle(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap_err();
        assert!(refused.contains("is not a bundle"), "{refused}");
        fs::remove_dir_all(&folder).unwrap();
    }

    /// Writes a program of the bundle that a test makes up.
    fn fake(folder: &Path, name: &str, text: &str) {
        let path = folder.join(name);
        fs::write(&path, format!("#!/bin/bash\n{text}\n")).unwrap();
        let status = Command::new("chmod").arg("+x").arg(&path).status().expect("chmod");
        assert!(status.success());
    }

    /// Runs all steps with programs that a test makes up. Returns if all were well, the output and the
    /// summary.
    fn run_all(name: &str, device: &str, arguments: &[&str]) -> (bool, String, String) {
        let folder = std::env::temp_dir().join(format!("tqkv-run-all-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        write_texts(&folder).unwrap();
        let row = r#"{"row":"speed","codec":"s4","shape":"63x1024+1x32768x8x4x128","local_bytes":0,"attend_seconds":{"p1":0.0001,"p50":0.00025,"p90":0.0003,"p99":0.0004},"read_share":0.855,"f16_ratio":9.9,"f16_read_ratio":3.5}"#;
        fake(&folder, "tqkv", &format!("case $* in *--attend*) exit 7;; *--json*) echo '{row}';; esac"));
        fake(&folder, "device", device);
        fake(&folder, "driver", "echo driver $*");
        // This Python has no torch.
        fake(&folder, "python3", "exit 1");
        let path = format!("{}:/usr/bin:/bin", folder.display());
        let mut bash = Command::new("bash");
        let output = bash.arg("run-all.sh").args(arguments).current_dir(&folder).env("PATH", path).output();
        let output = output.expect("bash");
        let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        let summary = fs::read_to_string(folder.join("out/summary.txt")).unwrap();
        if output.status.code() == Some(1) && name == "later" {
            let tuned = fs::read_to_string(folder.join("out/tune.jsonl")).unwrap();
            assert!(tuned.starts_with("{\"limit\":\"none\",\"row\""), "{tuned}");
            assert_eq!(tuned.lines().count(), 12, "five limits and seven cuts");
        }
        fs::remove_dir_all(&folder).unwrap();
        (output.status.success(), said, summary)
    }

    #[test]
    fn a_step_that_fails_does_not_stop_the_others() {
        let (is_well, said, summary) = run_all("later", "echo device $*", &[]);
        assert!(!is_well, "a step failed: {said}");
        let starts = |line: &str| summary.lines().any(|other| other.starts_with(line));
        for line in [
            "first: done",
            "batch: done",
            "baseline: not done: torch is not here",
            "python: not done: torch, pytest and tqkv are not here",
            "serve: not done: torch and tqkv are not here",
            "one: done",
            "unlike: done",
            "tests: FAILED with status 7",
            "shapes: done",
            "tune: done",
        ] {
            assert!(starts(line), "{line} is not in {summary}");
        }
        // Ignored tests are those that need a GPU, and those on paper need the fake driver.
        let runs: Vec<&str> = said.lines().filter(|line| line.starts_with("device ")).collect();
        assert!(runs.len() > 2 && runs.iter().all(|run| run.contains("--include-ignored")), "{said}");
        assert!(said.contains("driver --test-threads 1 --skip _on_paper"), "{said}");
        assert!(said.contains("nvidia-smi is not here: going on without it") || said.contains("nvidia-smi"));
        assert!(said.contains("s4   63x1024+1x32768x8x4x128"), "{said}");
        assert!(said.contains("250.0 us  85.5 % of read   3.50 times f16 read\n"), "{said}");
        assert_eq!(summary.matches("    expected: ").count(), 12, "{summary}");
    }

    #[test]
    fn a_short_visit_has_steps_of_its_own() {
        let (is_well, said, summary) = run_all("short", "echo device $*", &["short"]);
        assert!(!is_well, "a step failed: {said}");
        let mut rest = &*summary;
        for step in [
            "first: done",
            "card: not done",
            "quick: done",
            "tokens: not done",
            "registers: done",
            "codes: FAILED with status 7",
            "memcheck: ",
        ] {
            let at = rest.find(&format!("\n{step}")).unwrap_or_else(|| panic!("{step} is not in {summary}"));
            rest = &rest[at + 1..];
        }
        assert!(said.contains("== d256_r4 today") && said.contains("== d128_r4 128"), "{said}");
    }

    /// Returns true if a line is no directive of registers.
    fn is_no_limit(line: &&str) -> bool {
        ![".maxnreg", ".maxntid", ".minnctapersm"].iter().any(|directive| line.starts_with(directive))
    }

    /// One kernel gets another limit, and nothing else changes.
    #[test]
    fn the_limit_of_one_kernel_is_changed() {
        let script = TEXTS.iter().find(|(name, _)| *name == "run-all.sh").unwrap().1;
        let head = "awk -v entry=\"$entry\" -v limit=\"$limit\" '";
        let start = script.find(head).unwrap() + head.len();
        let program = &script[start..start + script[start..].find('\'').unwrap()];
        let ptx = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../gpu/ptx/sm_80.ptx");
        let original = fs::read_to_string(&ptx).unwrap();
        for (entry, limit) in
            [("d128_r4", "128"), ("d128_r8", "168"), ("d128_r8", "none"), ("d256_r4", "168")]
        {
            assert!(script.contains(&format!(" {entry}={limit}")), "{entry} {limit} is not timed");
            let given = [format!("entry={entry}"), format!("limit={limit}")];
            let mut awk = Command::new("awk");
            let output =
                awk.args(["-v", &given[0], "-v", &given[1], program]).arg(&ptx).output().expect("awk");
            let variant = String::from_utf8(output.stdout).unwrap();
            assert!(variant.lines().filter(is_no_limit).eq(original.lines().filter(is_no_limit)), "{entry}");
            let kernel = variant.find(&format!(".visible .entry attend_tensor_{entry}(")).unwrap();
            let body = variant[kernel..].find("\n{").unwrap();
            let expected = if limit == "none" { "\n)".into() } else { format!("\n)\n.maxnreg {limit}") };
            assert!(variant[kernel..][..body].ends_with(&expected), "{entry} {limit}");
            assert_ne!(variant, original, "{entry} {limit}: a time of today would be compared with itself");
        }
    }

    #[test]
    fn a_wrong_first_launch_stops_all() {
        let (is_well, said, summary) = run_all("first", "echo wrong codes; exit 101", &[]);
        assert!(!is_well, "{said}");
        assert!(summary.starts_with("commit "), "{summary}");
        assert!(summary.contains("\nfirst: FAILED with status 101: wrong codes"), "{summary}");
        assert!(summary.ends_with("the first launch was wrong: nothing else is run\n"), "{summary}");
        assert!(!summary.contains("batch"), "{summary}");
    }

    /// The script only changes the register limits of the kernels that it tunes.
    #[test]
    fn the_tuning_changes_the_limits_of_attention_alone() {
        let script = TEXTS.iter().find(|(name, _)| *name == "run-all.sh").unwrap().1;
        let start = script.find("awk -v limit=\"$limit\" '").unwrap() + "awk -v limit=\"$limit\" '".len();
        let program = &script[start..start + script[start..].find('\'').unwrap()];
        let ptx = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../gpu/ptx/sm_80.ptx");
        let variant = |limit: &str| {
            let output =
                Command::new("awk").args(["-v", &format!("limit={limit}"), program]).arg(&ptx).output();
            String::from_utf8(output.expect("awk").stdout).unwrap()
        };
        let original = fs::read_to_string(&ptx).unwrap();
        let counts =
            |text: &str| [".maxnreg ", ".maxntid ", ".minnctapersm "].map(|of| text.matches(of).count());
        let [limits, threads, blocks] = counts(&original);
        for (limit, kernels) in [("none", 0), ("144", 3)] {
            let limited = variant(limit);
            assert!(limited.lines().filter(is_no_limit).eq(original.lines().filter(is_no_limit)), "{limit}");
            assert_eq!(limited.matches("\n)\n.maxnreg 144\n{").count(), kernels, "scalar and trellis codes");
            // Four heads have a limit of registers, and eight have one of blocks.
            assert_eq!(counts(&limited), [limits - 1 + kernels, threads - 1, blocks - 1], "{limit}");
        }
    }
}
