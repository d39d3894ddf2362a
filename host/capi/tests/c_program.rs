//! `examples/cache.c` compiled by the machine's C compiler against the static library, run, and read; once more with a
//! sanitizer where TQKV_SANITIZE names one (`address`), and under valgrind. The header is compiled as C++ too.
//!
//! A tool that is missing is said aloud, past the capture of the test's output; with TQKV_REQUIRE_TOOLS=1 it is a failure.
// A binary of its own: it needs compilers, and CI runs it once more under a sanitizer.
#![allow(missing_docs, reason = "a test crate")]
#![cfg(unix)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What Rust's standard library wants of the system (`rustc --print native-static-libs`); the README names them too.
const SYSTEM_LIBRARIES: [&str; 3] = ["-lpthread", "-ldl", "-lm"];
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// What the example says of each codec at head dim 128: name, bytes of a block.
const BLOCKS: [(&str, usize); 6] =
    [("f16", 256), ("i8", 130), ("s4", 66), ("s3", 50), ("t2", 34), ("q4_0", 72)];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The static library that was built with this test: it lies beside it, or a folder above.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let named = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        (name == "libtqkv_capi.a" || name.starts_with("libtqkv_capi-")) && name.ends_with(".a")
    };
    let entries = [deps, deps.parent().unwrap()].into_iter().filter_map(|folder| folder.read_dir().ok());
    let found = entries.flatten().filter_map(|entry| Some(entry.ok()?.path())).filter(|path| named(path));
    let newest = found.max_by_key(|path| path.metadata().and_then(|m| m.modified()).ok());
    newest.unwrap_or_else(|| panic!("no libtqkv_capi.a at {}", deps.display()))
}

/// Whether a tool is here; says so where it is not.
fn has(tool: &str, what_for: &str) -> bool {
    let version = Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let here = version.is_ok_and(|status| status.success());
    if !here {
        let line = format!("WARNING: no {tool} on this machine: NOT checked here: {what_for}\n");
        assert!(std::env::var_os("TQKV_REQUIRE_TOOLS").is_none_or(|value| value != "1"), "{line}");
        // Not by `eprintln!`, which a test that passes keeps to itself.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    here
}

/// Runs a command that must succeed; what it printed.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{stdout}\n{stderr}", output.status);
    stdout
}

/// Compiles the example; with a sanitizer, if one is named.
fn compile(program: &Path, sanitizer: Option<&str>) {
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O1", "-g"]).args(WARNINGS);
    if let Some(sanitizer) = sanitizer {
        cc.args([&format!("-fsanitize={sanitizer}"), "-fno-omit-frame-pointer"]);
    }
    cc.arg("-I").arg(root().join("include")).arg(root().join("examples/cache.c")).arg(library());
    cc.args(SYSTEM_LIBRARIES).arg("-o").arg(program);
    output(&mut cc);
}

fn check(printed: &str) {
    let line = |start: &str| {
        let found = printed.lines().find(|line| line.trim_start().starts_with(start));
        found.unwrap_or_else(|| panic!("no line {start:?} in\n{printed}"))
    };
    assert!(printed.starts_with(&format!("tqkv {}\n", env!("CARGO_PKG_VERSION"))), "{printed}");
    assert!(printed.ends_with("every check holds\n"), "{printed}");
    for (name, bytes) in BLOCKS {
        assert_eq!(line(&format!("{name} ")).split_whitespace().nth(1), Some(bytes.to_string().as_str()));
    }
    assert!(line("truncated").contains("200 tokens"));
    assert!(line("reset").contains("0 tokens: 0 sinks, 0 hot, 0 warm"));
    assert!(line("a key with NaN").contains("TQKV_BAD_VECTOR"));
    assert!(line("a key with NaN").contains("layer 0, key of token 10, KV head 1"));
    assert!(line("a damaged snapshot").contains("TQKV_BAD_SNAPSHOT"));
    assert!(line("a budget used up").contains("TQKV_NO_BUDGET"));
    assert!(!printed.contains("FAILED"), "{printed}");
}

#[test]
fn the_example_holds_under_every_checker_of_this_machine() {
    if !has("cc", "the C example") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("cache");
    compile(&program, None);
    let printed = output(&mut Command::new(&program));
    check(&printed);
    // The demonstration is for readers: `--nocapture` shows it.
    println!("{printed}");

    if let Ok(sanitizer) = std::env::var("TQKV_SANITIZE") {
        let program = folder.path().join("sanitized");
        compile(&program, Some(&sanitizer));
        let printed = output(Command::new(&program).env("ASAN_OPTIONS", "detect_leaks=1"));
        check(&printed);
    }
    if has("valgrind", "the C example under valgrind") {
        // Threads that live as long as the process hold their stacks: reachable or possibly lost, never lost.
        let suppressed = format!("--suppressions={}", root().join("tests/valgrind.supp").display());
        let arguments =
            ["--quiet", "--error-exitcode=1", "--leak-check=full", "--errors-for-leak-kinds=definite"];
        let printed = output(
            Command::new("valgrind")
                .args(arguments)
                .args(["--show-leak-kinds=definite", &suppressed])
                .arg(&program),
        );
        check(&printed);
    }
}

#[test]
fn the_header_is_c_and_cpp() {
    let header = root().join("include/tqkv.h");
    for (compiler, language, standard) in [("cc", "c", "-std=c99"), ("c++", "c++", "-std=c++11")] {
        if has(compiler, "the header as a program includes it") {
            let mut command = Command::new(compiler);
            command.args(["-x", language, standard, "-fsyntax-only"]).args(WARNINGS);
            // A header that is the program itself has `#pragma once` and unused functions warned of; it has neither.
            output(command.arg(&header));
        }
    }
}
