//! `cargo xtask sizes`: bytes of what is built on this machine, and lines of each package. A report, no limit.

use flate2::{Compression, write::GzEncoder};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The arguments of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A folder with wheels, besides those that a build leaves in the tree
    #[arg(long)]
    wheels: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the root of the repository");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    println!("{:>10} {:>10}  what", "bytes", "gzip -9");
    for (name, path) in [
        ("the command, release", target.join("release/tqkv")),
        ("the back end of llama.cpp, release", target.join("release/libggml_tqkv.so")),
        ("the C library, release", target.join("release/libtqkv_capi.so")),
    ] {
        print_file(name, &path);
    }
    let mut folders = vec![
        ("the wheel, release", root.join("host/python/target/wheels")),
        ("the wheel, release", target.join("wheels")),
    ];
    folders.extend(args.wheels.clone().map(|folder| ("the wheel", folder)));
    // Continuous integration builds it without optimisation.
    folders.push(("the wheel, not optimised", target.join("python/wheels")));
    let wheels: Vec<_> =
        folders.iter().flat_map(|(name, folder)| wheels(folder).map(move |path| (*name, path))).collect();
    wheels.iter().for_each(|(name, path)| print_file(name, path));
    if wheels.is_empty() {
        println!("{:>21}  the wheel", "not built");
    }
    println!("\n{:>10} {:>10}  package", "source", "tests");
    let (mut source, mut tests) = (0, 0);
    for (package, lines) in packages(root) {
        println!("{:>10} {:>10}  {package}", lines[0], lines[1]);
        source += lines[0];
        tests += lines[1];
    }
    println!("{source:>10} {tests:>10}  all lines of Rust");
    ExitCode::SUCCESS
}

/// Wheels in a folder.
fn wheels(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "whl"))
}

/// The size of a file and of what `gzip -9` makes of it. Release builds are stripped already.
fn print_file(name: &str, path: &Path) {
    match std::fs::read(path) {
        Ok(bytes) => println!("{:>10} {:>10}  {name}", bytes.len(), packed(&bytes)),
        Err(_) => println!("{:>21}  {name}", "not built"),
    }
}

fn packed(bytes: &[u8]) -> usize {
    let mut packer = GzEncoder::new(Vec::new(), Compression::best());
    // Writing to a vector cannot fail.
    packer.write_all(bytes).and_then(|()| packer.finish()).map_or(0, |packed| packed.len())
}

/// Lines of source and of tests of each package, by its folder. Lines of a test module in a source are tests.
fn packages(root: &Path) -> BTreeMap<String, [usize; 2]> {
    let mut found = BTreeMap::new();
    add_lines(root, root, "", &mut found);
    found
}

fn add_lines(root: &Path, folder: &Path, package: &str, out: &mut BTreeMap<String, [usize; 2]>) {
    let own = folder.strip_prefix(root).unwrap_or(folder).to_string_lossy().into_owned();
    let package = if folder.join("Cargo.toml").exists() { own.as_str() } else { package };
    for entry in std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" && name != "node_modules" {
                add_lines(root, &path, package, out);
            }
        } else if name.ends_with(".rs") {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let [source, tests] = lines(&path.strip_prefix(root).unwrap_or(&path).to_string_lossy(), &text);
            let sums = out.entry(package.to_owned()).or_default();
            *sums = [sums[0] + source, sums[1] + tests];
        }
    }
}

/// Lines of source and of tests in a file.
fn lines(path: &str, text: &str) -> [usize; 2] {
    let all = text.lines().count();
    // Below `tests` at the top, only what other packages use is no test by itself.
    let is_test = path.split('/').skip(1).any(|part| part == "tests" || part == "tests.rs");
    let source = match text.split_once("#[cfg(test)]\nmod ") {
        _ if is_test => 0,
        // Not a module in a file of its own.
        Some((before, after)) if after.lines().next().is_some_and(|line| line.ends_with('{')) => {
            before.lines().count()
        }
        _ => all,
    };
    [source, all - source]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_tests_are_told_from_source() {
        let inside = "fn f() {}\n\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n";
        assert_eq!(lines("core/src/lib.rs", inside), [2, 4]);
        assert_eq!(lines("core/src/lib.rs", "fn f() {}\n#[cfg(test)]\nmod tests;\n"), [3, 0]);
        assert_eq!(lines("core/tests/it/main.rs", "fn f() {}\n"), [0, 1]);
        assert_eq!(lines("core/src/fixed/tests.rs", "fn f() {}\n"), [0, 1]);
    }

    #[test]
    fn the_tree_has_its_packages() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let found = packages(root);
        assert!(found["core"][0] > 1000 && found["core"][1] > 500, "{:?}", found["core"]);
        assert!(found.contains_key("tests/xtask"));
    }

    #[test]
    fn bytes_that_repeat_are_packed() {
        assert!(packed(&[7; 10_000]) < 100 && packed(b"") > 0);
    }
}
