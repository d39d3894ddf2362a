//! The contents of the files of one target: modules, the names in them, and the paths that their code
//! follows.

use proc_macro2::{TokenStream, TokenTree};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

/// A path as it is written, segment by segment; that of a macro which is called ends with `!`.
pub(super) type Words = Vec<String>;

/// The meaning of a name in a module.
pub(super) enum Named {
    /// A child, by its place in [`Target::modules`].
    Module(usize),
    /// Something that the module defines.
    Item,
    /// An import of this path.
    Import(Words),
}

/// A module of a target.
pub(super) struct Module {
    /// The file that it stands in.
    pub(super) file: PathBuf,
    pub(super) parent: Option<usize>,
    pub(super) names: HashMap<String, Vec<Named>>,
    /// Paths of which everything is imported.
    pub(super) globs: Vec<Words>,
    /// Paths that the module uses: its code, and its imports that are not exported again.
    pub(super) used: Vec<Words>,
    /// The same of [`Self::globs`].
    pub(super) used_globs: Vec<Words>,
    /// True if a macro makes items here. Their names are not seen.
    pub(super) has_made: bool,
}

/// A library, a program, a test or an example, with the modules that its first file reaches.
pub(super) struct Target {
    /// The first one is that of the first file.
    pub(super) modules: Vec<Module>,
    /// Modules that define a macro of this name.
    pub(super) macros: HashMap<String, usize>,
    /// Files that only tests see.
    pub(super) tests: Vec<PathBuf>,
}

/// Reads the text of a file; tests hand in texts that stand nowhere.
pub(super) type Texts<'a> = &'a dyn Fn(&Path) -> Option<String>;

impl Target {
    /// The target that begins with file `first`.
    pub(super) fn read(first: &Path, texts: Texts) -> Self {
        let folder = first.parent().expect("a file is in a folder");
        Self::read_in(first, folder, texts)
    }

    fn read_in(first: &Path, folder: &Path, texts: Texts) -> Self {
        let mut target = Self { modules: Vec::new(), macros: HashMap::new(), tests: Vec::new() };
        target.file(first, folder, None, texts);
        target
    }

    /// Adds the module of a whole file, whose children's files are in `folder`.
    fn file(&mut self, path: &Path, folder: &Path, parent: Option<usize>, texts: Texts) -> usize {
        let text = texts(path).unwrap_or_else(|| panic!("{} is not there", path.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        self.module(path, folder, parent, &parsed.items, texts)
    }

    fn module(
        &mut self,
        file: &Path,
        folder: &Path,
        parent: Option<usize>,
        items: &[syn::Item],
        texts: Texts,
    ) -> usize {
        let id = self.modules.len();
        let file = file.to_path_buf();
        let (names, globs, used, used_globs) = Default::default();
        self.modules.push(Module {
            file: file.clone(),
            parent,
            names,
            globs,
            used,
            used_globs,
            has_made: false,
        });
        for item in items {
            match item {
                syn::Item::Mod(child) if only_tests(&child.attrs) && child.content.is_none() => {
                    let (path, folder) = place(child, &file, folder, texts);
                    let below = Self::read_in(&path, &folder, texts);
                    self.tests.extend(below.modules.into_iter().map(|module| module.file));
                }
                _ if only_tests(attributes(item)) => {}
                syn::Item::Mod(child) => {
                    let name = child.ident.to_string();
                    let below = match &child.content {
                        Some((_, items)) => {
                            self.module(&file, &inner(child, &file, folder), Some(id), items, texts)
                        }
                        None => {
                            let (path, folder) = place(child, &file, folder, texts);
                            self.file(&path, &folder, Some(id), texts)
                        }
                    };
                    self.name(id, name, Named::Module(below));
                }
                syn::Item::Use(item) => self.import(id, item),
                _ => self.item(id, item),
            }
        }
        id
    }

    fn name(&mut self, module: usize, name: String, named: Named) {
        self.modules[module].names.entry(name).or_default().push(named);
    }

    fn item(&mut self, id: usize, item: &syn::Item) {
        if let Some(name) = name_of(item) {
            if let syn::Item::Macro(item) = item {
                self.macros.insert(name.clone(), id);
                if item.attrs.iter().any(|a| a.path().is_ident("macro_export")) && id != 0 {
                    let mut path = self.path_of(id);
                    path.push(name.clone());
                    self.name(0, name.clone(), Named::Import(path));
                }
            }
            self.name(id, name, Named::Item);
        } else if matches!(item, syn::Item::Macro(_)) {
            self.modules[id].has_made = true;
        }
        let mut code = Code::default();
        code.visit_item(item);
        self.modules[id].used.extend(code.paths);
        for item in code.imports {
            self.import(id, &item);
        }
    }

    /// The path of a module, from the crate on.
    fn path_of(&self, id: usize) -> Words {
        let Some(parent) = self.modules[id].parent else { return vec!["crate".into()] };
        let mut path = self.path_of(parent);
        let is_it = |named: &Named| matches!(named, Named::Module(child) if *child == id);
        let name = self.modules[parent].names.iter().find(|(_, named)| named.iter().any(is_it));
        path.extend(name.map(|(name, _)| name.clone()));
        path
    }

    fn import(&mut self, id: usize, item: &syn::ItemUse) {
        let private = matches!(item.vis, syn::Visibility::Inherited);
        let mut leaves = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut leaves);
        for (name, path) in leaves {
            let module = &mut self.modules[id];
            match name {
                Some(name) => {
                    if private {
                        module.used.push(path.clone());
                    }
                    self.name(id, name, Named::Import(path));
                }
                None => {
                    if private {
                        module.used_globs.push(path.clone());
                    }
                    module.globs.push(path);
                }
            }
        }
    }
}

/// Where the file of `mod child;` is, and where those of its children are.
fn place(child: &syn::ItemMod, file: &Path, folder: &Path, texts: Texts) -> (PathBuf, PathBuf) {
    if let Some(path) = path_attribute(child, file) {
        let folder = path.parent().expect("a file is in a folder").to_path_buf();
        return (path, folder);
    }
    let name = child.ident.to_string();
    let name = name.trim_start_matches("r#");
    let beside = folder.join(format!("{name}.rs"));
    let below = folder.join(name);
    if texts(&beside).is_some() { (beside, below) } else { (below.join("mod.rs"), below) }
}

/// Where the files of children are that a module in braces declares.
fn inner(child: &syn::ItemMod, file: &Path, folder: &Path) -> PathBuf {
    path_attribute(child, file).unwrap_or_else(|| folder.join(child.ident.to_string()))
}

/// A path without `..`.
fn tidy(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        if part == std::path::Component::ParentDir {
            out.pop();
        } else {
            out.push(part)
        }
    }
    out
}

/// The path that an attribute gives a module of this file.
fn path_attribute(child: &syn::ItemMod, file: &Path) -> Option<PathBuf> {
    let text = child.attrs.iter().find_map(|attribute| {
        let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
        let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &pair.value else { return None };
        pair.path.is_ident("path").then(|| text.value())
    })?;
    Some(tidy(&file.parent().expect("a file is in a folder").join(text)))
}

/// The leaves of a tree of imports: a name, or nothing for `*`, and the path behind it.
fn flatten(tree: &syn::UseTree, prefix: &mut Words, out: &mut Vec<(Option<String>, Words)>) {
    match tree {
        syn::UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, out);
            prefix.pop();
        }
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, prefix, out)),
        syn::UseTree::Glob(_) => out.push((None, prefix.clone())),
        syn::UseTree::Name(name) => leaf(&name.ident, &name.ident, prefix, out),
        syn::UseTree::Rename(name) => leaf(&name.ident, &name.rename, prefix, out),
    }
}

fn leaf(last: &syn::Ident, name: &syn::Ident, prefix: &Words, out: &mut Vec<(Option<String>, Words)>) {
    let mut path = prefix.clone();
    // `a::{self}` is `a`.
    if last != "self" {
        path.push(last.to_string());
    }
    let name = if name == "self" { path.last().cloned().unwrap_or_default() } else { name.to_string() };
    out.push((Some(name), path));
}

/// True if an attribute limits its item to tests.
fn only_tests(attributes: &[syn::Attribute]) -> bool {
    let needs_test =
        |text: &str| text == "test" || text.starts_with("all (test") || text.starts_with("all(test");
    attributes.iter().any(|a| match &a.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && needs_test(&list.tokens.to_string()),
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::NameValue(_) => false,
    })
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    use syn::Item::{Const, Enum, Fn, Impl, Macro, Mod, Static, Struct, Trait, Type, Union, Use};
    match item {
        Const(i) => &i.attrs,
        Enum(i) => &i.attrs,
        Fn(i) => &i.attrs,
        Impl(i) => &i.attrs,
        Macro(i) => &i.attrs,
        Mod(i) => &i.attrs,
        Static(i) => &i.attrs,
        Struct(i) => &i.attrs,
        Trait(i) => &i.attrs,
        Type(i) => &i.attrs,
        Union(i) => &i.attrs,
        Use(i) => &i.attrs,
        _ => &[],
    }
}

fn name_of(item: &syn::Item) -> Option<String> {
    use syn::Item::{Const, Enum, Fn, Macro, Static, Struct, Trait, Type, Union};
    let ident = match item {
        Const(i) => &i.ident,
        Enum(i) => &i.ident,
        Fn(i) => &i.sig.ident,
        Macro(i) => i.ident.as_ref()?,
        Static(i) => &i.ident,
        Struct(i) => &i.ident,
        Trait(i) => &i.ident,
        Type(i) => &i.ident,
        Union(i) => &i.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// The paths in code, and the imports within bodies.
#[derive(Default)]
struct Code {
    paths: Vec<Words>,
    imports: Vec<syn::ItemUse>,
}

impl<'a> Visit<'a> for Code {
    fn visit_item(&mut self, item: &'a syn::Item) {
        if !only_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        if !only_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.imports.push(item.clone());
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        if path.leading_colon.is_none() {
            self.paths.push(path.segments.iter().map(|s| s.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        let mut path: Words = call.path.segments.iter().map(|s| s.ident.to_string()).collect();
        path.extend(["!".into()]);
        self.paths.push(path);
        tokens(call.tokens.clone(), &mut self.paths);
    }

    /// Documentation names what it likes; derived code uses what its attributes say.
    fn visit_attribute(&mut self, attribute: &'a syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta
            && !list.path.is_ident("cfg")
        {
            tokens(list.tokens.clone(), &mut self.paths);
        }
    }
}

/// The paths in the tokens of a macro, or of a call of one.
fn tokens(stream: TokenStream, out: &mut Vec<Words>) {
    let (mut path, mut colons, mut field) = (Words::new(), 0, false);
    for token in stream {
        match token {
            TokenTree::Ident(ident) if colons == 2 && !path.is_empty() => path.push(ident.to_string()),
            TokenTree::Ident(ident) => {
                out.push(std::mem::take(&mut path));
                // A field, a method, or the rest of a path that does not begin with a name.
                if !field && colons == 0 {
                    path.push(ident.to_string());
                }
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' => {
                colons += 1;
                continue;
            }
            TokenTree::Punct(punct) => {
                if punct.as_char() == '!' && !path.is_empty() {
                    path.push("!".into());
                }
                out.push(std::mem::take(&mut path));
                (colons, field) = (0, punct.as_char() == '.' || punct.as_char() == '\'');
                continue;
            }
            TokenTree::Group(group) => {
                out.push(std::mem::take(&mut path));
                tokens(group.stream(), out);
            }
            TokenTree::Literal(_) => out.push(std::mem::take(&mut path)),
        }
        (colons, field) = (0, false);
    }
    out.push(path);
    out.retain(|path| !path.is_empty());
}
