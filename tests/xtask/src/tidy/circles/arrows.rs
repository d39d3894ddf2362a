//! Which file uses which: every path is followed to the file that defines what it names.

use super::source::{Module, Named, Target, Words};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// From a file to a file, with a path that says so.
pub(super) type Arrows = BTreeMap<(PathBuf, PathBuf), String>;

/// The target of a path.
#[derive(Clone, Copy)]
enum Found {
    Module(usize),
    /// An item of this module.
    Item(usize),
}

/// The questions that one search has asked already: a module, a name in it, and true if the name ends a path.
type Asked = HashSet<(usize, String, bool)>;

impl Target {
    /// Adds the arrows from the files of this target that are below `folder`, the one of its package.
    pub(super) fn arrows(&self, folder: &Path, out: &mut Arrows) {
        let ours = |module: &&Module| module.file.starts_with(folder);
        for (id, module) in self.modules.iter().enumerate().filter(|(_, module)| ours(module)) {
            let mut add = |to: usize, path: &Words| {
                let to = &self.modules[to].file;
                if *to != module.file {
                    out.entry((module.file.clone(), to.clone()))
                        .or_insert_with(|| path.join("::").replace("::!", "!"));
                }
            };
            for path in &module.used {
                match (self.find(id, path, &mut Asked::new()), path.as_slice()) {
                    (Some(Found::Item(to)), _) => add(to, path),
                    // Macros are also known by the order of the text.
                    (None, [name, end]) if end == "!" => {
                        self.macros.get(name).iter().for_each(|&&to| add(to, path))
                    }
                    _ => {}
                }
            }
            for path in &module.used_globs {
                match self.find(id, path, &mut Asked::new()) {
                    Some(Found::Item(to)) => add(to, path),
                    Some(Found::Module(to)) if self.defines(to) => add(to, path),
                    _ => {}
                }
            }
        }
    }

    /// True if a module has an item of its own.
    fn defines(&self, module: usize) -> bool {
        self.modules[module].names.values().flatten().any(|named| matches!(named, Named::Item))
    }

    /// The target of `path`, which is written in a module. `None` if another crate defines it.
    fn find(&self, module: usize, path: &[String], asked: &mut Asked) -> Option<Found> {
        let path = path.strip_suffix(&["!".into()]).unwrap_or(path);
        let (first, mut rest) = path.split_first()?;
        let mut found = match first.as_str() {
            "crate" => Found::Module(0),
            "self" => Found::Module(module),
            "super" => Found::Module(self.modules[module].parent?),
            name => self.named(module, name, rest.is_empty(), asked)?,
        };
        while let (Found::Module(id), Some((name, after))) = (found, rest.split_first()) {
            found = match name.as_str() {
                "super" => Found::Module(self.modules[id].parent?),
                name => self.named(id, name, after.is_empty(), asked).or_else(|| self.made(id, name))?,
            };
            rest = after;
        }
        Some(found)
    }

    /// If a module calls macros that make items, they make every name that the module does not show.
    fn made(&self, id: usize, name: &str) -> Option<Found> {
        let module = &self.modules[id];
        (module.has_made && !module.names.contains_key(name)).then_some(Found::Item(id))
    }

    /// The meaning of a name in a module. At the end of a path, an item comes before a module of the same
    /// name.
    fn named(&self, module: usize, name: &str, last: bool, asked: &mut Asked) -> Option<Found> {
        // Modules that import all of each other ask in turns.
        if !asked.insert((module, name.to_string(), last)) {
            return None;
        }
        let here = &self.modules[module];
        let mut all: Vec<Found> = Vec::new();
        for named in here.names.get(name).into_iter().flatten() {
            all.extend(match named {
                Named::Module(child) => Some(Found::Module(*child)),
                Named::Item => Some(Found::Item(module)),
                // An import that begins with its own name is one of another crate or of a child.
                Named::Import(path) if path.first().is_some_and(|first| first == name) => None,
                Named::Import(path) => self.find(module, path, asked),
            });
        }
        let is_item = |found: &Found| matches!(found, Found::Item(_));
        let wanted = all.iter().find(|found| is_item(found) == last).or(all.first()).copied();
        wanted.or_else(|| here.globs.iter().find_map(|path| self.in_glob(module, path, name, last, asked)))
    }

    fn in_glob(
        &self,
        module: usize,
        path: &Words,
        name: &str,
        last: bool,
        asked: &mut Asked,
    ) -> Option<Found> {
        match self.find(module, path, asked)? {
            Found::Module(id) if id != module => self.named(id, name, last, asked),
            _ => None,
        }
    }
}
