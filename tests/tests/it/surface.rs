//! What two libraries show to the world, as lists that a change shows in: `tests/surface`.
//!
//! An item is a name that another crate can say: of a module, a type, a trait, a function, a constant, an
//! alias or a macro, by each path that is public and not hidden from the documentation; and a method or
//! constant of a type that is one. Fields, variants and what traits ask belong to their item. What macros
//! make is not seen: those are the types of codecs. Run the test with `TQKV_WRITE_SURFACE=1` to write the
//! lists anew.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use syn::{Item, UseTree, Visibility};

/// Each library, and the most items that it may show: to be lowered where a list becomes shorter.
const LIBRARIES: [(&str, usize); 2] = [("core", 238), ("host", 188)];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is above this crate")
}

/// A module that is written down: its items, its files, and its name from the crate on.
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

    /// Adds the items of this module, and of its public modules.
    fn list(&self, out: &mut BTreeSet<String>) {
        for item in &self.items {
            if let Item::Mod(child) = item
                && shows(&child.vis, &child.attrs)
            {
                out.insert(format!("mod {}::{}", self.path, child.ident));
                self.child(child).list(out);
            } else if let Item::Use(export) = item
                && shows(&export.vis, &export.attrs)
            {
                let mut names = Vec::new();
                leaves(&export.tree, &mut names);
                out.extend(names.into_iter().map(|name| format!("use {}::{name}", self.path)));
            } else if let Some((kind, name)) = named(item) {
                out.insert(format!("{kind} {}::{name}", self.path));
            }
        }
    }

    /// Adds what does not depend on where it stands: macros, and methods of types that are shown.
    fn list_anywhere(&self, out: &mut BTreeSet<String>) {
        for item in &self.items {
            match item {
                Item::Mod(child) if !is_test(&child.attrs) => self.child(child).list_anywhere(out),
                Item::Macro(made) if has(&made.attrs, "macro_export") && !is_hidden(&made.attrs) => {
                    out.extend(made.ident.iter().map(|name| format!("macro crate::{name}")));
                }
                Item::Impl(block) if block.trait_.is_none() && !is_test(&block.attrs) => methods(block, out),
                _ => {}
            }
        }
    }
}

/// Adds the public methods and constants in a block of a type that is shown.
fn methods(block: &syn::ItemImpl, out: &mut BTreeSet<String>) {
    let syn::Type::Path(path) = &*block.self_ty else { return };
    let Some(of) = path.path.segments.last().map(|segment| segment.ident.to_string()) else { return };
    if !out.iter().any(|line| line.ends_with(&format!("::{of}"))) {
        return;
    }
    for item in &block.items {
        let (kind, ident, visibility, attributes) = match item {
            syn::ImplItem::Fn(i) => ("fn", &i.sig.ident, &i.vis, &i.attrs),
            syn::ImplItem::Const(i) => ("const", &i.ident, &i.vis, &i.attrs),
            _ => continue,
        };
        if shows(visibility, attributes) {
            out.insert(format!("{kind} {of}.{ident}"));
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

fn is_hidden(attributes: &[syn::Attribute]) -> bool {
    says(attributes, "doc", "hidden")
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    says(attributes, "cfg", "test") || says(attributes, "cfg", "all (loom , test)")
}

fn shows(visibility: &Visibility, attributes: &[syn::Attribute]) -> bool {
    matches!(visibility, Visibility::Public(_)) && !is_hidden(attributes) && !is_test(attributes)
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

/// Kind and name of an item that is public.
fn named(item: &Item) -> Option<(&'static str, String)> {
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
    shows(visibility, attributes).then(|| (kind, ident.to_string()))
}

#[test]
fn libraries_show_what_their_lists_say() {
    for (library, most) in LIBRARIES {
        let source = root().join(library).join("src");
        let place = Place::of_file(&source.join("lib.rs"), source, "crate".into());
        let mut shown = BTreeSet::new();
        place.list(&mut shown);
        place.list_anywhere(&mut shown);
        let text: String = shown.iter().map(|line| format!("{line}\n")).collect();
        let path = root().join(format!("tests/surface/{library}.txt"));
        if std::env::var_os("TQKV_WRITE_SURFACE").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let listed =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let listed: BTreeSet<String> = listed.lines().map(str::to_string).collect();
        let new: Vec<_> = shown.difference(&listed).collect();
        let gone: Vec<_> = listed.difference(&shown).collect();
        assert!(new.is_empty() && gone.is_empty(), "{library}: new {new:#?}, gone {gone:#?}");
        assert!(shown.len() <= most, "{library}: {} items, accepted are {most}", shown.len());
    }
}
