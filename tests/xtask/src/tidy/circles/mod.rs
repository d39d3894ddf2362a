//! No files use each other in a circle, so each can be understood after those that it uses.
//!
//! The rules:
//!
//! * Nodes are the source files of a target: a library, a program, a test, an example, a fuzz target. All
//!   targets of all packages are read, also of those outside the workspace, and every `.rs` file belongs to
//!   one. A file that another package takes in by `#[path]`, and the code there that replaces its neighbours,
//!   counts in its own package.
//! * A file uses another one if a path in it leads to something that the other defines. Such a path stands in
//!   a `use` without export, a type, an expression, or the tokens of a macro or an attribute. Paths are
//!   followed through exports (`pub use`) to the file of the definition. So a file that takes an exported
//!   name from a folder's `mod.rs` uses the child alone.
//! * A `pub use` (of any visibility) uses nothing by itself; code next to it that says the exported name
//!   does. So a `mod.rs` may export its children and hold what they share, or hold code over its children,
//!   but not both.
//! * `mod child;` uses nothing, and neither does a path that ends at a module, as in `pub(in crate::a)`.
//! * Code under `#[cfg(test)]` or `#[test]`, or in documentation, does not count. Other conditions do not
//!   matter: both sides of them count.
//! * If a module calls macros among its items, they define every name that the module does not show.
//! * A call of a method and a field name no path, so they are no arrows; where the type comes from is one.

mod arrows;
mod source;

use super::tree::{Tree, root};
use arrows::Arrows;
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use source::{Target, Texts};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The circles: files that use each other, directly or through others.
fn circles(arrows: &Arrows) -> Vec<BTreeSet<&Path>> {
    let edges = arrows.keys().map(|(from, to)| (from.as_path(), to.as_path()));
    let graph: DiGraphMap<&Path, ()> = edges.collect();
    let groups = tarjan_scc(&graph).into_iter().filter(|group| group.len() > 1);
    groups.map(|group| group.into_iter().collect()).collect()
}

/// A circle, with the arrows in it.
fn describe(circle: &BTreeSet<&Path>, arrows: &Arrows) -> String {
    let mut text = format!("{} files use each other:", circle.len());
    for ((from, to), path) in arrows {
        if circle.contains(from.as_path()) && circle.contains(to.as_path()) {
            text += &format!("\n  {} -> {} ({path})", from.display(), to.display());
        }
    }
    text
}

/// The arrows between the files of these targets, and all files that were read.
fn read(targets: &BTreeMap<PathBuf, PathBuf>, texts: Texts) -> (Arrows, BTreeSet<PathBuf>) {
    let (mut arrows, mut files) = (Arrows::new(), BTreeSet::new());
    for (first, package) in targets {
        let target = Target::read(first, texts);
        target.arrows(package, &mut arrows);
        files.extend(target.modules.into_iter().map(|module| module.file));
        files.extend(target.tests);
    }
    (arrows, files)
}

/// The first files of all targets, and the folders of their packages, relative to the root.
fn targets(tree: &Tree) -> BTreeMap<PathBuf, PathBuf> {
    let manifests = tree.ending("Cargo.toml").filter(|path| path.rsplit('/').next() == Some("Cargo.toml"));
    let mut manifests: BTreeSet<PathBuf> = manifests.map(PathBuf::from).collect();
    let mut firsts = BTreeMap::new();
    while let Some(manifest) = manifests.pop_first() {
        let packages = metadata(&manifest);
        for package in packages["packages"].as_array().unwrap() {
            let manifest = below_root(&package["manifest_path"]);
            manifests.remove(manifest);
            let folder = manifest.parent().unwrap();
            let targets = package["targets"].as_array().unwrap().iter().map(|target| &target["src_path"]);
            firsts.extend(targets.map(|path| (below_root(path).to_path_buf(), folder.to_path_buf())));
        }
    }
    firsts
}

fn below_root(path: &serde_json::Value) -> &Path {
    Path::new(path.as_str().expect("cargo names a path")).strip_prefix(root()).expect("a package of the tree")
}

/// The metadata from cargo for the package or the workspace of a manifest.
fn metadata(manifest: &Path) -> serde_json::Value {
    let output = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline", "--manifest-path"])
        .arg(root().join(manifest))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Files that use each other in a circle, and files that no target reaches.
pub(super) fn circles_of_files(tree: &Tree) -> Vec<String> {
    let texts = |path: &Path| std::fs::read_to_string(root().join(path)).ok();
    let (arrows, seen) = read(&targets(tree), &texts);
    let unseen = tree.ending(".rs").filter(|path| !seen.contains(Path::new(path)));
    let unseen = unseen.map(|path| format!("{path}: no target reaches it"));
    unseen.chain(circles(&arrows).iter().map(|circle| describe(circle, &arrows))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The circles of a library made of these files.
    fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let texts =
            |path: &Path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, t)| t.to_string());
        let (arrows, _) = read(&BTreeMap::from([("lib.rs".into(), "".into())]), &texts);
        let text = |path: &Path| path.display().to_string();
        circles(&arrows).into_iter().map(|circle| circle.into_iter().map(text).collect()).collect()
    }

    #[test]
    fn files_that_import_each_other_are_a_circle() {
        let lib = ("lib.rs", "mod a; mod b;");
        let a = ("a.rs", "use crate::b::Two; pub struct One(Two);");
        for b in ["use crate::a::One; pub struct Two;", "pub struct Two(Option<Box<super::a::One>>);"] {
            assert_eq!(circles_of(&[lib, a, ("b.rs", b)]), [["a.rs", "b.rs"]], "{b}");
        }
        assert!(circles_of(&[lib, a, ("b.rs", "pub struct Two;")]).is_empty());
    }

    #[test]
    fn a_call_of_a_macro_is_code() {
        let lib = ("lib.rs", "mod a; mod b;");
        let a = ("a.rs", "pub const N: u32 = 1; fn f() { assert!(1 < crate::b::M); }");
        assert_eq!(
            circles_of(&[lib, a, ("b.rs", "pub use super::a::N; pub const M: u32 = N;")]),
            [["a.rs", "b.rs"]]
        );
        assert!(circles_of(&[lib, a, ("b.rs", "pub use super::a::N; pub const M: u32 = 2;")]).is_empty());
    }

    #[test]
    fn what_a_macro_makes_belongs_to_the_file_that_calls_it() {
        let lib = ("lib.rs", "mod a; mod b;");
        let a =
            ("a.rs", "macro_rules! one { () => { pub struct One; } } one!(); pub fn f(_: super::b::Two) {}");
        assert_eq!(circles_of(&[lib, a, ("b.rs", "pub struct Two(crate::a::One);")]), [["a.rs", "b.rs"]]);
    }

    #[test]
    fn a_folder_that_exports_its_children_is_no_circle() {
        let lib = ("lib.rs", "mod a;");
        let one = ("a/one.rs", "use super::Two; pub struct One(Two);");
        let two = ("a/two.rs", "pub struct Two;");
        assert!(
            circles_of(&[lib, ("a/mod.rs", "mod one; mod two; pub use {one::One, two::Two};"), one, two])
                .is_empty()
        );
        let user = "mod one; mod two; pub use {one::One, two::Two}; pub fn f(_: One) {}";
        assert!(circles_of(&[lib, ("a/mod.rs", user), one, two]).is_empty());
    }

    #[test]
    fn a_child_and_a_parent_that_use_each_other_are_a_circle() {
        let lib = ("lib.rs", "mod a;");
        let child = ("a/one.rs", "pub struct One([u8; super::N]);");
        let shared = "mod one; pub use one::One; pub const N: usize = 1;";
        assert!(circles_of(&[lib, ("a/mod.rs", shared), child]).is_empty());
        let both = format!("{shared} pub fn f(_: One) {{}}");
        assert_eq!(circles_of(&[lib, ("a/mod.rs", &both), child]), [["a/mod.rs", "a/one.rs"]]);
    }

    #[test]
    fn tests_and_documentation_are_no_code() {
        let lib = ("lib.rs", "mod a; mod b;");
        let a = ("a.rs", "use crate::b::Two; pub struct One(Two);");
        let b =
            "/// Beside [`crate::a::One`].\npub struct Two; #[cfg(test)] mod tests { use crate::a::One; }";
        assert!(circles_of(&[lib, a, ("b.rs", b)]).is_empty());
    }
}
