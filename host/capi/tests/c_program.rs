//! Compiles the examples with the C compiler of the machine and the static library, runs them, and checks
//! their output. If TQKV_SANITIZE names a sanitizer (`address`), they run once more with it. They also run
//! under valgrind. The header is compiled as C++ too.
//!
//! A missing tool is reported on stderr, past the capture of test output. With TQKV_REQUIRE_TOOLS=1 it is a
//! failure.
// A separate binary, because it needs compilers, and CI runs it once more with a sanitizer.
#![allow(missing_docs, reason = "a test crate")]
#![cfg(unix)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// System libraries that Rust's standard library needs (`rustc --print native-static-libs`). The README names
/// them too.
const SYSTEM_LIBRARIES: [&str; 3] = ["-lpthread", "-ldl", "-lm"];
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// The name of each codec and its bytes per block at head dim 128, as the example prints them.
const BLOCKS: [(&str, usize); 6] =
    [("f16", 256), ("i8", 130), ("s4", 66), ("s3", 50), ("t2", 34), ("q4_0", 72)];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The static library that was built with this test.
fn library() -> PathBuf {
    built(".a")
}

/// A library that was built with this test. It is in the same folder or in a parent folder.
fn built(ending: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let named = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let stem = name.strip_suffix(ending).unwrap_or_default();
        stem == "libtqkv_capi" || stem.starts_with("libtqkv_capi-")
    };
    let entries = [deps, deps.parent().unwrap()].into_iter().filter_map(|folder| folder.read_dir().ok());
    let found = entries.flatten().filter_map(|entry| Some(entry.ok()?.path())).filter(|path| named(path));
    let newest = found.max_by_key(|path| path.metadata().and_then(|m| m.modified()).ok());
    newest.unwrap_or_else(|| panic!("no libtqkv_capi{ending} at {}", deps.display()))
}

/// True if a tool exists. Reports a missing one.
fn has(tool: &str, what_for: &str) -> bool {
    let here = may_have(tool, what_for);
    let required = std::env::var_os("TQKV_REQUIRE_TOOLS").is_some_and(|value| value == "1");
    assert!(here || !required, "no {tool} on this machine, which {what_for} needs");
    here
}

/// Like [`has`], for a tool that may be missing everywhere.
fn may_have(tool: &str, what_for: &str) -> bool {
    let version = Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let here = version.is_ok_and(|status| status.success());
    if !here {
        let line = format!("WARNING: no {tool} on this machine: NOT checked here: {what_for}\n");
        // Not with `eprintln!`, whose output a passing test hides.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    here
}

/// Runs a command that must succeed, and returns its output.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{stdout}\n{stderr}", output.status);
    stdout
}

/// Compiles an example, with a sanitizer if one is named.
fn compile(example: &str, program: &Path, sanitizer: Option<&str>) {
    let sanitize = sanitizer.map(|sanitizer| format!("-fsanitize={sanitizer}"));
    let flags = sanitize.iter().flat_map(|sanitize| [sanitize, "-fno-omit-frame-pointer"]);
    compile_with(example, program, flags);
}

fn compile_with<'a>(example: &str, program: &Path, flags: impl IntoIterator<Item = &'a str>) {
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O1", "-g"]).args(WARNINGS).args(flags);
    cc.arg("-I").arg(root().join("include")).arg(root().join("examples").join(example)).arg(library());
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
    under_every_checker("cache.c", check);
}

#[test]
fn continuous_batching_is_near_dense_attention_under_every_checker() {
    under_every_checker("batching.c", |printed| {
        assert!(printed.ends_with("every result is near\n"), "{printed}");
    });
}

/// The call after `tqkv_follow_openmp` starts the two other threads of a team of three. A pool would start none.
#[test]
#[cfg(target_os = "linux")]
fn calls_run_on_the_threads_of_openmp() {
    if !has("gcc", "the C example of OpenMP") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("openmp");
    compile_with("openmp.c", &program, ["-fopenmp"]);
    let printed = output(Command::new(&program).env_remove("OMP_NUM_THREADS").env_remove("OMP_THREAD_LIMIT"));
    let [refused, rest @ ..] = &printed.lines().collect::<Vec<_>>()[..] else { panic!("nothing printed") };
    assert!(refused.contains("'no-such-library'"), "{refused}");
    assert_eq!(rest, ["a pool: 1 of 2 threads", "OpenMP: 3 of 4 threads", "results are equal"]);
}

/// Compiles an example and runs it, plainly and with each checker of this machine.
fn under_every_checker(example: &str, check: impl Fn(&str)) {
    if !has("cc", "the C examples") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("plain");
    compile(example, &program, None);
    let printed = output(&mut Command::new(&program));
    check(&printed);
    // With `--nocapture` a reader sees the output of the example.
    println!("{printed}");

    if let Ok(sanitizer) = std::env::var("TQKV_SANITIZE") {
        let program = folder.path().join("sanitized");
        compile(example, &program, Some(&sanitizer));
        let printed = output(Command::new(&program).env("ASAN_OPTIONS", "detect_leaks=1"));
        check(&printed);
    }
    if has("valgrind", "the C examples under valgrind") {
        // Threads that never end hold their stacks. Valgrind reports these as reachable or possibly lost,
        // never as lost.
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
#[cfg(feature = "session")]
fn a_program_packs_a_state_and_refuses_a_damaged_one() {
    if !has("cc", "the C example of sessions") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let sanitizer = std::env::var("TQKV_SANITIZE").ok();
    compile("session.c", &at("session"), sanitizer.as_deref());
    let state = std::fs::read(root().join("../session/tests/golden/coded.state")).unwrap();
    std::fs::write(at("state"), &state).unwrap();
    let run = || Command::new(at("session")).args([at("state"), at("pack"), at("back")]).output().unwrap();
    let done = run();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let length = |name: &str| std::fs::metadata(at(name)).unwrap().len();
    let said = format!("{} of {} bytes\n", length("pack"), state.len());
    assert_eq!((String::from_utf8(done.stdout).unwrap(), length("back")), (said, state.len() as u64));
    let coded = length("pack");
    let mut in_basis = Command::new(at("session"));
    in_basis
        .args([at("state"), at("pack"), at("back")])
        .arg(root().join("../session/tests/golden/basis.tqb"));
    let done = in_basis.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(length("pack") < coded && length("back") == state.len() as u64);
    let pack = std::fs::read(at("pack")).unwrap();
    std::fs::write(at("state"), &state[..state.len() / 2]).unwrap();
    let refused = run();
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(1) && text.contains("pack: TQKV_BAD_SESSION"), "{text}");
    assert_eq!(std::fs::read(at("pack")).unwrap(), pack, "the old pack stays");
}

#[test]
fn the_header_is_c_and_cpp() {
    let header = root().join("include/tqkv.h");
    for (compiler, language, standard) in [("cc", "c", "-std=c99"), ("c++", "c++", "-std=c++11")] {
        if has(compiler, "the header as a program includes it") {
            let mut command = Command::new(compiler);
            command.args(["-x", language, standard, "-fsyntax-only"]).args(WARNINGS);
            // A compiler warns of `#pragma once` and of unused functions in a header that it compiles
            // directly. This header has neither.
            output(command.arg(&header));
        }
    }
}

/// All three headers name things in one style, and no name is in two of them.
#[test]
fn the_three_headers_go_into_one_program() {
    let source = "#include \"tqkv.h\"\n#include \"tqkv_fixed.h\"\n#include \"tqkv_lm.h\"\n\
        int main(void) {\n\
            tqkv_status cache = TQKV_NULL_POINTER;\n\
            tqkv_fixed_status fixed = TQKV_FIXED_NULL_POINTER;\n\
            tqkv_lm_status lm = TQKV_LM_NULL_POINTER;\n\
            return (int)cache - (int)fixed + (int)lm - TQKV_LM_NULL_POINTER + TQKV_OK + TQKV_FIXED_OK + TQKV_LM_OK;\n\
        }\n";
    let headers = [
        ("include", "tqkv.h"),
        ("../../core/mcu/capi-fixed", "tqkv_fixed.h"),
        ("../../core/mcu/capi-lm", "tqkv_lm.h"),
    ];
    for (folder, name) in headers {
        let text = std::fs::read_to_string(root().join(folder).join(name)).unwrap();
        assert!(!text.contains("Tqkv"), "{name} has names of Rust");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("three.c");
    std::fs::write(&path, source).unwrap();
    for (compiler, standard) in [("cc", "-std=c99"), ("c++", "-std=c++11")] {
        if has(compiler, "the three headers together") {
            let mut command = Command::new(compiler);
            command.args(["-x", if compiler == "cc" { "c" } else { "c++" }, standard, "-fsyntax-only"]);
            command.args(headers.map(|(folder, _)| format!("-I{}", root().join(folder).display())));
            output(command.args(WARNINGS).arg(&path));
        }
    }
}

/// Runs `make install` with some variables on the libraries that were built with this test.
fn install(built_at: &Path, variables: &[String]) {
    for ending in [".a", ".so"] {
        std::fs::copy(built(ending), built_at.join(format!("libtqkv_capi{ending}"))).unwrap();
    }
    let mut make = Command::new("make");
    make.arg("--silent").arg("-C").arg(root()).arg("install").arg(format!("BUILT={}", built_at.display()));
    output(make.args(variables).env_remove("MAKEFLAGS"));
}

/// Collects every file and link below a folder.
fn files(folder: &Path, below: &str, out: &mut Vec<String>) {
    for entry in folder.read_dir().unwrap() {
        let entry = entry.unwrap();
        let name = format!("{below}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            files(&entry.path(), &format!("{name}/"), out);
        } else {
            out.push(name);
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn an_installed_library_is_found_by_pkg_config_and_by_cmake() {
    if !(has("make", "the target install") && has("cc", "an installed library")) {
        return;
    }
    let (version, folder) = (env!("CARGO_PKG_VERSION"), tempfile::tempdir().unwrap());
    let abi = version.rsplit_once('.').unwrap().0;
    let at = |name: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    };
    // Installs below the root of a package, with the folders of the target system.
    let (built_at, package, prefix) = (at("built"), at("package"), at("a prefix"));
    let libraries = "LIBDIR=/usr/lib/x86_64-linux-gnu".to_owned();
    install(&built_at, &["PREFIX=/usr".to_owned(), format!("DESTDIR={}", package.display()), libraries]);
    let mut found = Vec::new();
    files(&package, "", &mut found);
    found.sort();
    let library = |name: String| format!("usr/lib/x86_64-linux-gnu/{name}");
    let mut expected =
        ["cmake/tqkv/tqkv-config.cmake", "cmake/tqkv/tqkv-config-version.cmake", "pkgconfig/tqkv.pc"]
            .map(|name| library(name.to_owned()))
            .to_vec();
    expected.push("usr/include/tqkv.h".to_owned());
    expected
        .extend(["a".to_owned(), "so".to_owned()].map(|ending| library(format!("libtqkv_capi.{ending}"))));
    expected.extend([abi, version].map(|number| library(format!("libtqkv_capi.so.{number}"))));
    expected.sort();
    assert_eq!(found, expected);
    for name in ["pkgconfig/tqkv.pc", "cmake/tqkv/tqkv-config.cmake", "cmake/tqkv/tqkv-config-version.cmake"]
    {
        let text = std::fs::read_to_string(package.join(library(name.to_owned()))).unwrap();
        assert!(!text.contains('@') && !text.contains(package.to_str().unwrap()), "{text}");
    }

    install(&built_at, &[format!("PREFIX={}", prefix.display())]);
    if has("pkg-config", "what an installed library says of itself") {
        with_pkg_config(&prefix, abi);
    }
    if may_have("cmake", "find_package(tqkv)") {
        with_cmake(&prefix, &at("project"), abi);
    }
}

/// Compiles the example with the flags of `pkg-config`, and runs it.
#[cfg(target_os = "linux")]
fn with_pkg_config(prefix: &Path, abi: &str) {
    let library = prefix.join("lib");
    let said = |flags: &[&str]| {
        let mut command = Command::new("pkg-config");
        command.args(flags).arg("tqkv").env("PKG_CONFIG_PATH", library.join("pkgconfig"));
        // `pkg-config` escapes a space in a path as a shell does.
        output(&mut command).trim().to_owned()
    };
    assert_eq!(said(&["--modversion"]), env!("CARGO_PKG_VERSION"));
    let (shared, fixed) = (prefix.join("a.out"), prefix.join("static"));
    let example = root().join("examples/cache.c");
    // The line of the README, in a folder where its `main.c` is the example.
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let line = readme.lines().find(|line| line.starts_with("cc main.c ")).expect("the line that links");
    std::fs::copy(&example, prefix.join("main.c")).unwrap();
    // A prefix without spaces needs no escapes, so there the shell may run `pkg-config` itself.
    let flags = said(&["--cflags", "--libs"]);
    assert!(line.contains("$(pkg-config --cflags --libs tqkv)"), "{line}");
    let line = line.replace("$(pkg-config --cflags --libs tqkv)", &flags);
    output(Command::new("sh").args(["-c", &line]).current_dir(prefix));
    // Without this link, compilers find the static library, and programs ask for the shared one by its
    // versioned name.
    let link = library.join("libtqkv_capi.so");
    std::fs::rename(&link, library.join("away")).unwrap();
    let flags = said(&["--static", "--cflags", "--libs"]);
    let line = format!("cc -std=c11 '{}' -o '{}' {flags}", example.display(), fixed.display());
    output(Command::new("sh").args(["-c", &line]));
    let mut shared = Command::new(&shared);
    shared.env("LD_LIBRARY_PATH", &library);
    check(&output(&mut shared));
    check(&output(&mut Command::new(&fixed)));
    std::fs::rename(library.join("away"), &link).unwrap();
    std::fs::rename(library.join(format!("libtqkv_capi.so.{abi}")), library.join("away")).unwrap();
    let missing = shared.output().unwrap();
    let text = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(!missing.status.success() && text.contains(&format!("libtqkv_capi.so.{abi}")), "{text}");
    std::fs::rename(library.join("away"), library.join(format!("libtqkv_capi.so.{abi}"))).unwrap();
}

/// Builds the example as a CMake project with both libraries, and runs it.
#[cfg(target_os = "linux")]
fn with_cmake(prefix: &Path, project: &Path, abi: &str) {
    let example = root().join("examples/cache.c");
    let lists = |version: &str| {
        format!(
            "cmake_minimum_required(VERSION 3.13)\nproject(example C)\nfind_package(tqkv {version} REQUIRED)\n\
             add_executable(shared \"{0}\")\ntarget_link_libraries(shared tqkv::tqkv m)\n\
             add_executable(fixed \"{0}\")\ntarget_link_libraries(fixed tqkv::static)\n",
            example.display()
        )
    };
    let configure = |version: &str| {
        std::fs::write(project.join("CMakeLists.txt"), lists(version)).unwrap();
        let mut cmake = Command::new("cmake");
        cmake.arg("-S").arg(project).arg("-B").arg(project.join("build"));
        cmake.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())).output().unwrap()
    };
    let made = configure(abi);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    output(Command::new("cmake").arg("--build").arg(project.join("build")));
    for program in ["shared", "fixed"] {
        check(&output(&mut Command::new(project.join("build").join(program))));
    }
    let newer = configure("99.0");
    let text = String::from_utf8_lossy(&newer.stderr).into_owned();
    assert!(!newer.status.success() && text.contains("99.0"), "{text}");
}
