//! The packages that the project was asked to use: those in the first column of the table "The card" in
//! ARCHITECTURE.md. Each is a dependency, and the source next to its manifest names it. DECISIONS.md has
//! those that nothing here links.

use super::tree::{Tree, read, root, spans, table};

/// Packages that no build of this machine links, so a decision says what was tried.
const NOT_BUILT: [&str; 2] = ["cuda_std", "cuda_builder"];

/// True if a table of dependencies of the manifest names the package.
fn depends(manifest: &str, package: &str) -> bool {
    let mut in_dependencies = false;
    manifest.lines().any(|line| {
        if line.starts_with('[') {
            in_dependencies = line.trim_end_matches(']').ends_with("dependencies");
        }
        let key = line.split(['=', '.']).next().unwrap_or_default().trim();
        in_dependencies && key == package
    })
}

/// True if a crate depends on the package and names it in its source.
fn is_used(tree: &Tree, package: &str) -> bool {
    let (path, import) = (format!("{package}::"), format!("use {package}"));
    // The root has versions for all crates and no source of its own.
    let manifests = tree.ending("/Cargo.toml").filter(|manifest| depends(&read(manifest), package));
    let mut folders = manifests.filter_map(|manifest| manifest.strip_suffix("Cargo.toml"));
    folders.any(|folder| {
        tree.ending(".rs").filter(|source| source.starts_with(folder)).any(|source| {
            let text = read(source);
            let mut code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            code.any(|line| line.contains(&path) || line.trim_start().starts_with(&import))
        })
    })
}

/// Every package of the card is in use, and every folder at the top is one of the card's.
pub(super) fn packages_and_folders(tree: &Tree) -> Vec<String> {
    let decisions = read("DECISIONS.md");
    let (mut wrong, mut named) = (Vec::new(), vec!["docs".to_string()]);
    for row in table(&read("ARCHITECTURE.md"), "The card") {
        let words: Vec<&str> = spans(&row[0]).collect();
        if row[0].ends_with("at the top") {
            named.extend(words.iter().map(ToString::to_string));
            continue;
        }
        // Other words of the clauses are those of the language.
        for package in words.into_iter().filter(|word| !["std", "core::arch"].contains(word)) {
            let is_decided = !NOT_BUILT.contains(&package) || decisions.contains(&format!("`{package}`"));
            if !is_used(tree, package) || !is_decided {
                wrong.push(format!("{package} of the card: no crate uses it, or no decision says why not"));
            }
        }
    }
    let is_shown = |name: &String| !name.starts_with('.') && name != "target" && root().join(name).is_dir();
    let entries = std::fs::read_dir(root()).into_iter().flatten().filter_map(Result::ok);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut folders: Vec<String> = names.filter(is_shown).collect();
    folders.sort_unstable();
    named.sort_unstable();
    if folders != named {
        wrong.push(format!("the folders at the top are {folders:?}, the card's {named:?}"));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_is_only_named_in_a_manifest_is_found_out() {
        assert!(depends("[dependencies]\nlibm = \"0.2\"", "libm"));
        assert!(depends("[target.'cfg(unix)'.dev-dependencies]\nlibm.workspace = true", "libm"));
        assert!(!depends("[package]\nlibm = 1\n[dependencies]\nlibmx = 1", "libm"));
    }
}
