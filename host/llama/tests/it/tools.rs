//! The tools of the tests: the C compiler, headers, stock libraries and a model.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Prints the variable that a test lacks, also where the test runner captures output.
fn lacks(what: &str) -> bool {
    assert!(std::env::var_os("TQKV_REQUIRE_LLAMA").is_none(), "{what} is not set");
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "not tested beside llama.cpp: {what} is not set");
    false
}

/// Folders of headers, one per interface version.
pub(crate) fn headers() -> Vec<PathBuf> {
    let folders = std::env::var_os("TQKV_LLAMA_HEADERS");
    let folders: Vec<PathBuf> =
        folders.iter().flat_map(|list| std::env::split_paths(list).collect::<Vec<_>>()).collect();
    if folders.is_empty() {
        lacks("TQKV_LLAMA_HEADERS");
    }
    folders
}

/// The folder or file that a variable names.
pub(crate) fn path(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    path.or_else(|| {
        lacks(variable);
        None
    })
}

/// The library under test, which cargo builds beside the test.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    let name = format!("{}ggml_tqkv{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    test.with_file_name(name)
}

/// Compiles a C program with headers, and links the stock libraries if given.
pub(crate) fn compile(name: &str, source: &Path, headers: &Path, libraries: Option<&Path>) -> PathBuf {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    // Renamed only when it is complete, because another test may run it at the same time.
    let unfinished = program.with_extension(format!("new-{}", MADE.fetch_add(1, Ordering::Relaxed)));
    let mut gcc = Command::new("cc");
    gcc.arg("-O1").arg("-o").arg(&unfinished).arg(source);
    for folder in ["include", "ggml/include", "ggml/src"] {
        gcc.arg("-I").arg(headers.join(folder));
    }
    if let Some(libraries) = libraries {
        let files = std::fs::read_dir(libraries).expect("a folder of libraries");
        for file in files.map(|file| file.expect("an entry").path()) {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if ["libllama.", "libggml.", "libggml-base."].iter().any(|start| name.starts_with(start)) {
                gcc.arg(file);
            }
        }
        gcc.arg(format!("-Wl,-rpath,{}", libraries.display())).arg("-Wl,--allow-shlib-undefined");
    }
    let done = gcc.arg("-lm").output().expect("a C compiler");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    std::fs::rename(&unfinished, &program).expect("a program");
    program
}

/// Runs a program with variables set. Returns its output and errors, as `Err` if it fails.
pub(crate) fn run(program: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Result<String, String> {
    let mut command = Command::new(program);
    let done = command.args(arguments).envs(variables.iter().copied()).output().expect("the program runs");
    let (out, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    if done.status.success() { Ok(format!("{out}{errors}")) } else { Err(format!("{out}{errors}")) }
}
