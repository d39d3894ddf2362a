//! Finds the files of a model at a path: a GGUF file, a folder of a checkpoint, or its folder in a hub's
//! cache.

use std::path::{Path, PathBuf};

use crate::error::ModelError;

/// The model at a path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A GGUF file. If the model is split, its first part.
    Gguf(PathBuf),
    /// A folder with `config.json`.
    Folder(PathBuf),
}

/// `SINGLE` holds all weights. `INDEX` lists the files that hold them.
const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Sorted names in a folder.
struct Names(Vec<String>);

impl Names {
    fn of(dir: &Path) -> Result<Self, ModelError> {
        let io = |source| ModelError::Io { path: dir.to_owned(), source };
        let entries = std::fs::read_dir(dir).map_err(io)?;
        let mut names: Vec<_> = entries
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .collect();
        names.sort();
        Ok(Self(names))
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|other| other == name)
    }

    fn ending(&self, end: &str) -> Vec<&str> {
        self.0.iter().map(String::as_str).filter(|name| name.to_ascii_lowercase().ends_with(end)).collect()
    }

    /// The first names, for messages.
    fn shown(&self) -> String {
        let names: Vec<_> = self.0.iter().map(String::as_str).collect();
        if names.is_empty() { "nothing".to_owned() } else { listed(&names) }
    }
}

fn listed(names: &[&str]) -> String {
    const SHOWN: usize = 8;
    let more = if names.len() > SHOWN { " and more" } else { "" };
    names[..names.len().min(SHOWN)].join(", ") + more
}

fn refused(path: &Path, reason: String) -> ModelError {
    ModelError::NoModel { path: path.to_owned(), reason }
}

/// The file of a folder that says what its model is.
pub(crate) const CONFIG: &str = "config.json";

/// Reads a text file of a model, such as `config.json`.
pub(crate) fn read_text(path: &Path) -> Result<Vec<u8>, ModelError> {
    let text = std::fs::read(path).map_err(|source| ModelError::Io { path: path.to_owned(), source })?;
    Ok(without_mark(text))
}

/// A text less the byte order mark that some editors write before it. No reader of JSON accepts one.
pub fn without_mark(mut text: Vec<u8>) -> Vec<u8> {
    const MARK: &[u8] = b"\xef\xbb\xbf";
    if text.starts_with(MARK) {
        text.drain(..MARK.len());
    }
    text
}

/// Finds the model to load at `path`.
pub(crate) fn model(path: &Path) -> Result<Found, ModelError> {
    if !path.is_dir() {
        return file(path);
    }
    let names = Names::of(path)?;
    if names.has("snapshots") && !names.has("config.json") {
        let snapshot = snapshot(path)?;
        let names = Names::of(&snapshot)?;
        return folder(&snapshot, &names);
    }
    folder(path, &names)
}

fn file(path: &Path) -> Result<Found, ModelError> {
    let kind = path.extension().map(|end| end.to_string_lossy().to_ascii_lowercase());
    let kind = kind.unwrap_or_default();
    match kind.as_str() {
        "safetensors" | "json" => {
            Err(refused(path, format!("a .{kind} file is one part of a model; give its folder")))
        }
        "bin" | "pt" | "pth" | "ckpt" => {
            Err(refused(path, format!("weights of PyTorch (.{kind}) are not read")))
        }
        // The first bytes of any other file tell its format.
        _ => Ok(Found::Gguf(path.to_owned())),
    }
}

fn folder(dir: &Path, names: &Names) -> Result<Found, ModelError> {
    let (gguf, config) = (names.ending(".gguf"), names.has("config.json"));
    if config && (gguf.is_empty() || !names.ending(".safetensors").is_empty() || names.has(INDEX)) {
        return Ok(Found::Folder(dir.to_owned()));
    }
    // The first part of a split model stands for all parts.
    let is_later_part = |name: &&&str| {
        let parts = crate::gguf::part_names(&dir.join(name));
        parts.len() > 1 && parts[0].exists() && parts[0] != dir.join(name)
    };
    let models: Vec<_> = gguf.iter().filter(|name| !is_later_part(name)).copied().collect();
    match models.as_slice() {
        [] => Err(refused(dir, format!("no config.json; it has {}", names.shown()))),
        [one] => Ok(Found::Gguf(dir.join(one))),
        several => Err(refused(
            dir,
            format!("{} .gguf files, of which one must be given: {}", several.len(), listed(several)),
        )),
    }
}

/// The snapshot of `refs/main` in a hub's cache, or else the only snapshot.
fn snapshot(root: &Path) -> Result<PathBuf, ModelError> {
    let all = root.join("snapshots");
    if let Ok(revision) = std::fs::read_to_string(root.join("refs").join("main")) {
        let revision = revision.trim();
        let dir = all.join(revision);
        // Only a plain name is accepted, so that it cannot lead outside the cache.
        if Path::new(revision).file_name().is_some_and(|name| name == revision) && dir.is_dir() {
            return Ok(dir);
        }
    }
    let names = Names::of(&all)?;
    match names.0.as_slice() {
        [one] => Ok(all.join(one)),
        _ => Err(refused(
            &all,
            format!(
                "no refs/main that names a snapshot, and not exactly one snapshot; it has {}",
                names.shown()
            ),
        )),
    }
}

/// The name of a model for reports. It is the name of its file or folder. In a hub's cache it is the part of
/// the folder's name after the last `--`.
pub(crate) fn name(given: &Path, found: &Found) -> String {
    let text = |path: &Path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    match found {
        Found::Gguf(file) => {
            file.file_stem().map_or_else(|| text(file), |stem| stem.to_string_lossy().into_owned())
        }
        Found::Folder(dir) if dir == given => text(dir),
        Found::Folder(_) => text(given).rsplit("--").next().unwrap_or_default().to_owned(),
    }
}

/// The file in a checkpoint's folder that holds the weights, or the index of the files that hold them.
pub(crate) fn weights(dir: &Path) -> Result<String, ModelError> {
    let names = Names::of(dir)?;
    if let Some(name) = [SINGLE, INDEX].into_iter().find(|name| names.has(name)) {
        return Ok(name.to_owned());
    }
    match names.ending(".safetensors").as_slice() {
        [] => Err(refused(dir, format!("no .safetensors file; it has {}", names.shown()))),
        [one] if crate::gguf::part_names(Path::new(one)).len() == 1 => Ok((*one).to_owned()),
        parts => Err(refused(dir, format!("no {SINGLE} and no {INDEX} for {}", listed(parts)))),
    }
}
