//! ARCHITECTURE.md has tables that are read as data: crates, seams, the unsafe inventory, and what a new codec,
//! option or command would touch.

use super::tree::{Tree, code, expand, is_source, names, read, spans, table};
use std::collections::BTreeSet;

/// Files that may contain `unsafe`: instruction sets (also of a benchmark), launches, C pointers, foreign
/// tensors, leaf files of the library, bare machines.
const MAY_BE_UNSAFE: [&str; 18] = [
    "core/mcu/capi-fixed/src/",
    "core/mcu/capi-lm/src/",
    "core/mcu/firmware/",
    "core/mcu/workload/",
    "simd/src/",
    "benches/src/q4_0.rs",
    "benches/src/read.rs",
    "gpu/src/",
    "gpu/kernels/src/",
    "gpu/rust-cuda/src/",
    "tests/cuda/src/",
    "host/capi/src/",
    "host/python/src/dlpack.rs",
    "host/llama/src/",
    "host/src/matmul.rs",
    "host/src/mmap.rs",
    "host/src/reserve/",
    "host/src/threads/team",
];

fn guide(heading: &str) -> Vec<Vec<String>> {
    table(&read("ARCHITECTURE.md"), heading)
}

/// Returns true if code has an unsafe block, function, trait or implementation. Attributes and lints do not
/// count.
fn is_unsafe(code: &str) -> bool {
    code.match_indices("unsafe").any(|(at, word)| {
        let rest = code[at + word.len()..].trim_start();
        !code[..at].ends_with(['_', '(', '"'])
            && ["{", "fn ", "impl", "trait ", "extern "].iter().any(|next| rest.starts_with(next))
    })
}

/// The table "Unsafe inventory" lists every source file with unsafe code, which only some may have.
pub(super) fn unsafe_inventory(tree: &Tree) -> Vec<String> {
    let listed: BTreeSet<String> = guide("Unsafe inventory")
        .iter()
        .flat_map(|row| spans(&row[0]).flat_map(expand).collect::<Vec<_>>())
        .collect();
    let sources = tree.paths.iter().filter(|path| is_source(path) && is_unsafe(&code(path)));
    let found: BTreeSet<String> = sources.cloned().collect();
    let forbidden = found.iter().filter(|path| !MAY_BE_UNSAFE.iter().any(|may| path.starts_with(may)));
    let forbidden = forbidden.map(|path| format!("{path} has unsafe code; tidy/guide.rs lists who may"));
    let absent = found.difference(&listed).map(|path| format!("the unsafe inventory lacks {path}"));
    let extra =
        listed.difference(&found).map(|path| format!("{path} is in the inventory and has no unsafe code"));
    forbidden.chain(absent).chain(extra).collect()
}

/// The table of crates has every crate, by its name.
pub(super) fn crates(tree: &Tree) -> Vec<String> {
    let rows = guide("Crates");
    let mut wrong = Vec::new();
    for row in &rows {
        let cell: Vec<&str> = spans(&row[0]).collect();
        let manifest = read(&format!("{}/Cargo.toml", cell[0]));
        let other = cell[1..].iter().filter(|name| !manifest.contains(&format!("\nname = \"{name}\"\n")));
        wrong.extend(other.map(|name| format!("ARCHITECTURE.md: {} is not {name}", cell[0])));
    }
    let listed: BTreeSet<&str> = rows.iter().filter_map(|row| spans(&row[0]).next()).collect();
    // Programs to copy are no crates of the project.
    let crates = tree.ending("/Cargo.toml").filter_map(|path| path.strip_suffix("/Cargo.toml"));
    let crates = crates.filter(|path| !path.starts_with("tests/") && !path.contains("/example"));
    wrong.extend(
        crates
            .filter(|path| !listed.contains(path))
            .map(|path| format!("ARCHITECTURE.md lacks the crate {path}")),
    );
    wrong
}

/// Traits and types of the table "The seams" are defined where it says.
pub(super) fn seams(_: &Tree) -> Vec<String> {
    let mut wrong = Vec::new();
    for row in guide("The seams") {
        let code: String = spans(&row[1]).map(code).collect();
        let is_defined = |name: &&str| {
            ["trait", "struct", "enum"].iter().any(|kind| names(&code, &format!("{kind} {name}")))
        };
        let absent = spans(&row[0]).filter(|name| !is_defined(name));
        wrong.extend(absent.map(|name| format!("ARCHITECTURE.md: {name} is not defined in {}", row[1])));
    }
    wrong
}

/// Rows of "I want to add ..." whose words stand in other files than those that the row lists.
pub(super) fn additions(tree: &Tree) -> Vec<String> {
    let sources: Vec<(&String, String)> =
        tree.paths.iter().filter(|path| is_source(path)).map(|path| (path, code(path))).collect();
    let mut differing = Vec::new();
    for row in guide("I want to add ...") {
        let (folders, words): (Vec<&str>, Vec<&str>) = spans(&row[1]).partition(|word| word.ends_with('/'));
        let listed: BTreeSet<String> = spans(&row[3]).flat_map(expand).collect();
        let found: BTreeSet<String> = sources
            .iter()
            .filter(|(path, _)| folders.is_empty() || folders.iter().any(|folder| path.starts_with(folder)))
            .filter(|(_, text)| words.iter().any(|word| names(text, word)))
            .map(|(path, _)| (*path).clone())
            .collect();
        if found != listed || row[2] != found.len().to_string() {
            let (new, gone): (Vec<_>, Vec<_>) =
                (found.difference(&listed).collect(), listed.difference(&found).collect());
            differing.push(format!("{}: {} files; not listed {new:?}, listed {gone:?}", row[0], found.len()));
        }
    }
    differing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_code_is_told_from_lints() {
        assert!(
            is_unsafe("let x = unsafe { y }") && is_unsafe("pub unsafe fn f()") && is_unsafe("unsafe impl A")
        );
        assert!(!is_unsafe("#![forbid(unsafe_code)]") && !is_unsafe("#![deny(unsafe_op_in_unsafe_fn)]"));
    }
}
