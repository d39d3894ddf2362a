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
    paths("TQKV_LLAMA_HEADERS")
}

/// The folders that a variable lists.
fn paths(variable: &str) -> Vec<PathBuf> {
    let folders = std::env::var_os(variable);
    let folders: Vec<PathBuf> =
        folders.iter().flat_map(|list| std::env::split_paths(list).collect::<Vec<_>>()).collect();
    if folders.is_empty() {
        lacks(variable);
    }
    folders
}

/// Stock libraries of one version.
pub(crate) struct Stock {
    folder: PathBuf,
    headers: PathBuf,
}

impl Stock {
    /// Those of `TQKV_LLAMA_LIBS`. Headers in the folder itself come before those of `TQKV_LLAMA_HEADERS`.
    pub(crate) fn all() -> Vec<Self> {
        let others = headers().into_iter().next();
        let stock = |folder: PathBuf| {
            let own = folder.join("include").is_dir().then(|| folder.clone());
            own.or(others.clone()).map(|headers| Self { folder, headers })
        };
        paths("TQKV_LLAMA_LIBS").into_iter().filter_map(stock).collect()
    }

    /// The folder, as an argument of programs.
    pub(crate) fn libraries(&self) -> String {
        self.folder.display().to_string()
    }

    /// True for a build with OpenMP, whose runtime lies in the folder.
    pub(crate) fn has_openmp(&self) -> bool {
        self.folder.join("libgomp.so.1").exists()
    }

    /// Compiles a program of the tests.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        let version = self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(format!("{name}.c"));
        compile(&format!("{name}-{version}"), &source, &self.headers, Some(&self.folder))
    }

    /// Same as [`run`], with the C library that lies in the folder, if there is one.
    pub(crate) fn run(
        &self,
        program: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<String, String> {
        let loader = self.folder.join("ld-linux-x86-64.so.2");
        if !loader.exists() {
            return run(program, arguments, variables);
        }
        let (libraries, program) = (self.libraries(), program.display().to_string());
        let all = [&["--library-path", &libraries, &program], arguments].concat();
        run(&loader, &all, variables)
    }
}

/// The first of the folders or files that a variable names.
pub(crate) fn path(variable: &str) -> Option<PathBuf> {
    paths(variable).into_iter().next()
}

/// The library under test, which cargo builds next to the test.
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
