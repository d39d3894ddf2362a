//! The public items of two libraries, as lists in `tests/surface`: a change of an interface shows there.
//!
//! An item is a name that another crate can use, by each public path. Modules, types, traits, functions,
//! constants, aliases and macros are items. So are the public methods and constants of a public type. Fields,
//! variants and the items of a trait count with their owner. The test does not see items that macros make,
//! such as the types of codecs. Run it with `TQKV_WRITE_SURFACE=1` to write the lists anew.
//!
//! A library has two lists. `core.txt` has the items for users, and their number has a limit.
//! `core-unstable.txt` has those that the documentation hides: the module `unstable`, which serves the other
//! crates of this project, and hidden methods.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use syn::{Item, UseTree, Visibility};

/// Each library, and the most items that it may show to users. Lower the number when a list becomes shorter.
const LIBRARIES: [(&str, usize); 2] = [("core", 140), ("host", 176)];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is above this crate")
}

/// Public items: those for users, and those that the documentation hides.
#[derive(Default)]
struct Surface {
    shown: BTreeSet<String>,
    hidden: BTreeSet<String>,
}

impl Surface {
    fn add(&mut self, line: String, is_hidden: bool) {
        if is_hidden {
            self.hidden.insert(line)
        } else {
            self.shown.insert(line)
        };
    }
}

/// A module: its items, the folder of its children, its path from the crate on.
struct Place {
    items: Vec<Item>,
    folder: PathBuf,
    path: String,
}

impl Place {
    fn of_file(file: &Path, folder: PathBuf, path: String) -> Self {
        let text =
            std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let items =
            syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display())).items;
        Self { items, folder, path }
    }

    fn child(&self, child: &syn::ItemMod) -> Self {
        let (name, path) = (child.ident.to_string(), format!("{}::{}", self.path, child.ident));
        let folder = self.folder.join(&name);
        match &child.content {
            Some((_, items)) => Self { items: items.clone(), folder, path },
            None => {
                let beside = self.folder.join(format!("{name}.rs"));
                let file = if beside.exists() { beside } else { folder.join("mod.rs") };
                Self::of_file(&file, folder, path)
            }
        }
    }

    /// Adds the public items of this module, and of its public modules.
    fn list(&self, is_hidden: bool, out: &mut Surface) {
        let hides = |attributes: &[syn::Attribute]| is_hidden || hides(attributes);
        for item in &self.items {
            if let Item::Mod(child) = item
                && is_public(&child.vis, &child.attrs)
            {
                out.add(format!("mod {}::{}", self.path, child.ident), hides(&child.attrs));
                self.child(child).list(hides(&child.attrs), out);
            } else if let Item::Use(export) = item
                && is_public(&export.vis, &export.attrs)
            {
                let mut names = Vec::new();
                leaves(&export.tree, &mut names);
                for name in names {
                    out.add(format!("use {}::{name}", self.path), hides(&export.attrs));
                }
            } else if let Some((kind, name, attributes)) = named(item) {
                out.add(format!("{kind} {}::{name}", self.path), hides(attributes));
            }
        }
    }

    /// Adds what does not depend on its place: macros, and methods of types that are public.
    fn list_anywhere(&self, out: &mut Surface) {
        for item in &self.items {
            match item {
                Item::Mod(child) if !is_test(&child.attrs) => self.child(child).list_anywhere(out),
                Item::Macro(made) if has(&made.attrs, "macro_export") => {
                    if let Some(name) = &made.ident {
                        out.add(format!("macro crate::{name}"), hides(&made.attrs));
                    }
                }
                Item::Impl(block) if block.trait_.is_none() && !is_test(&block.attrs) => methods(block, out),
                _ => {}
            }
        }
    }
}

/// Adds the public methods and constants in a block of a public type.
fn methods(block: &syn::ItemImpl, out: &mut Surface) {
    let syn::Type::Path(path) = &*block.self_ty else { return };
    let Some(of) = path.path.segments.last().map(|segment| segment.ident.to_string()) else { return };
    let end = format!("::{of}");
    let has_type = |lines: &BTreeSet<String>| {
        lines.iter().any(|line| line.ends_with(&end) && !line.starts_with("trait "))
    };
    let is_shown = has_type(&out.shown);
    if !is_shown && !has_type(&out.hidden) {
        return;
    }
    for item in &block.items {
        let (kind, ident, visibility, attributes) = match item {
            syn::ImplItem::Fn(i) => ("fn", &i.sig.ident, &i.vis, &i.attrs),
            syn::ImplItem::Const(i) => ("const", &i.ident, &i.vis, &i.attrs),
            _ => continue,
        };
        if is_public(visibility, attributes) {
            out.add(format!("{kind} {of}.{ident}"), !is_shown || hides(attributes));
        }
    }
}

fn has(attributes: &[syn::Attribute], name: &str) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident(name))
}

fn says(attributes: &[syn::Attribute], name: &str, word: &str) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident(name) && list.tokens.to_string() == word,
        _ => false,
    })
}

/// True if an attribute hides the item from the documentation.
fn hides(attributes: &[syn::Attribute]) -> bool {
    says(attributes, "doc", "hidden")
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    says(attributes, "cfg", "test") || says(attributes, "cfg", "all (loom , test)")
}

fn is_public(visibility: &Visibility, attributes: &[syn::Attribute]) -> bool {
    matches!(visibility, Visibility::Public(_)) && !is_test(attributes)
}

/// The names that an import makes.
fn leaves(tree: &UseTree, out: &mut Vec<String>) {
    match tree {
        UseTree::Path(path) => leaves(&path.tree, out),
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, out)),
        UseTree::Glob(_) => out.push("*".into()),
        UseTree::Name(name) => out.push(name.ident.to_string()),
        UseTree::Rename(name) => out.push(name.rename.to_string()),
    }
}

/// Kind, name and attributes of an item that is public.
fn named(item: &Item) -> Option<(&'static str, String, &[syn::Attribute])> {
    let (kind, ident, visibility, attributes) = match item {
        Item::Const(i) => ("const", &i.ident, &i.vis, &i.attrs),
        Item::Enum(i) => ("enum", &i.ident, &i.vis, &i.attrs),
        Item::Fn(i) => ("fn", &i.sig.ident, &i.vis, &i.attrs),
        Item::Static(i) => ("static", &i.ident, &i.vis, &i.attrs),
        Item::Struct(i) => ("struct", &i.ident, &i.vis, &i.attrs),
        Item::Trait(i) => ("trait", &i.ident, &i.vis, &i.attrs),
        Item::Type(i) => ("type", &i.ident, &i.vis, &i.attrs),
        Item::Union(i) => ("union", &i.ident, &i.vis, &i.attrs),
        _ => return None,
    };
    is_public(visibility, attributes).then(|| (kind, ident.to_string(), attributes.as_slice()))
}

/// Compares items with a list, or writes the list if asked to.
fn compare(name: &str, items: &BTreeSet<String>) {
    let path = root().join(format!("tests/surface/{name}.txt"));
    if std::env::var_os("TQKV_WRITE_SURFACE").is_some() {
        let text: String = items.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(&path, text).unwrap();
    }
    let listed = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let listed: BTreeSet<String> = listed.lines().map(str::to_string).collect();
    let new: Vec<_> = items.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(items).collect();
    assert!(new.is_empty() && gone.is_empty(), "{name}: new {new:#?}, gone {gone:#?}");
}

#[test]
fn libraries_show_what_their_lists_say() {
    for (library, most) in LIBRARIES {
        let source = root().join(library).join("src");
        let place = Place::of_file(&source.join("lib.rs"), source, "crate".into());
        let mut surface = Surface::default();
        place.list(false, &mut surface);
        place.list_anywhere(&mut surface);
        compare(library, &surface.shown);
        compare(&format!("{library}-unstable"), &surface.hidden);
        let count = surface.shown.len();
        assert!(count <= most, "{library}: {count} items, accepted are {most}");
    }
}
