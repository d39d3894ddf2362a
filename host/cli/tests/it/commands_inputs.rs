//! The files that commands of documents read, and the names of those that they write.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tqkv_cli::Tqkv;
use tqkv_cli::output::Output;
use tqkv_cli::program::{self, Program as _};

use crate::arrays::npy;

/// A state of llama.cpp, its pack, and a basis that fits it.
const STATE: &[u8] = include_bytes!("../../../session/tests/golden/coded.state");
const PACK: &[u8] = include_bytes!("../../../session/tests/golden/coded.tqs");
const BASIS: &[u8] = include_bytes!("../../../session/tests/golden/basis.tqb");

/// Commands whose last word is the file that they write.
const WRITERS: [&str; 7] = ["pack", "unpack", "encode", "decode", "basis", "export", "picture"];
/// Options whose value is a file that the command writes.
const WRITTEN: [&str; 4] = ["--out", "--sums", "--save", ">"];

/// The words of a line that name files which it writes.
pub(crate) fn written(words: &[String]) -> BTreeSet<&String> {
    let mut found = BTreeSet::new();
    for command in words.split(|word| word == "&&") {
        let has = |name: &str| command.iter().any(|word| word == name);
        if WRITERS.iter().any(|name| has(name)) {
            found.extend(command.iter().rfind(|word| !word.starts_with("--")));
        }
        if let Some(at) = command.iter().position(|word| word == "compress") {
            found.insert(&command[at + 2]);
        }
        let values = if has("decode") { "--values" } else { "" };
        for pair in command.windows(2) {
            if WRITTEN.contains(&&*pair[0]) || pair[0] == values {
                found.insert(&pair[1]);
            }
        }
    }
    found
}

/// Files by the names that documents give them, each made once.
pub(crate) struct Inputs {
    made: TempDir,
    names: RefCell<BTreeSet<&'static str>>,
}

/// The shipped model, in place of every other one.
fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../host/model/shipped").canonicalize().unwrap()
}

/// The shipped model with a chat template, which it was not trained for.
pub(crate) fn lay_chat_model(folder: &Path) {
    put(
        &folder.join("chat_template.jinja"),
        b"{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:",
    );
    for name in ["config.json", "model.safetensors"] {
        std::os::unix::fs::symlink(model().join(name), folder.join(name)).unwrap();
    }
}

/// Runs a command of `tqkv` in this process: the tests of `tqkv-lab` cannot run the program.
fn tqkv(words: &[&str]) {
    let done = program::parse::<Tqkv>(words).and_then(|line| line.run(&mut Output::keeping()));
    done.unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

/// Names of models and texts. The texts begin at different bytes of the held-out text.
const MODELS: [&str; 7] = ["DIR", "FILE", "MODEL", "llama", "llama-t3", "Llama-3.3-70B", "model.gguf"];
const TEXTS: [(&str, usize); 7] = [
    ("a.txt", 0),
    ("learn.txt", 0),
    ("manual.txt", 0),
    ("book.txt", 60_000),
    ("other.txt", 60_000),
    ("yours.txt", 60_000),
    ("b.txt", 120_000),
];
/// Other files that [`Inputs::make`] makes.
const FILES: [&str; 20] = [
    "keys.npy",
    "q.npy",
    "k.npy",
    "v.npy",
    "mine.npy",
    "keys.safetensors",
    "exact.safetensors",
    "other.safetensors",
    "model.safetensors",
    "keys.tqk",
    "a.tqk",
    "b.tqk",
    "keys-a.tqk",
    "keys-b.tqk",
    "a.tqa",
    "model.tqb",
    "manual.tqb",
    "model.tqlm",
    "prefix.tqc",
    "run.tqs",
];

impl Inputs {
    pub(crate) fn new() -> Self {
        Self { made: tempfile::tempdir().unwrap(), names: RefCell::default() }
    }

    /// Puts the files that a word of a command names into `folder`.
    pub(crate) fn lay(&self, folder: &Path, words: &[String], word: &str) {
        let is_session = words.iter().any(|word| word == "session");
        let is_chat = words.iter().any(|word| word == "chat" || word == "--chat");
        for part in word.split(['"', '\'', ' ', '=', ':']) {
            let part = part.strip_prefix("~/").unwrap_or(part);
            let target = folder.join(part);
            let models = MODELS.iter().find(|name| part.split('/').next() == Some(name));
            if part == "model.gguf" && is_session {
                let config = fs::read_to_string(model().join("config.json")).unwrap();
                // The heads of the state.
                let config = config.replace("\"head_dim\": 128", "\"head_dim\": 64");
                put(&target.join("config.json"), config.as_bytes());
            } else if part == "model.gguf" && is_chat {
                lay_chat_model(&target);
            } else if let Some(name) = models.filter(|name| !folder.join(name).exists()) {
                std::os::unix::fs::symlink(model(), folder.join(name)).unwrap();
            } else if part == "slots/chat.bin" {
                put(&target, STATE);
            } else if part == "chat.tqs" {
                put(&target, PACK);
                if words.iter().any(|word| word == "--basis") {
                    put(&target.with_file_name("state"), STATE);
                    put(&target.with_file_name("basis"), BASIS);
                    let [state, basis] = ["state", "basis"].map(|name| folder.join(name));
                    let paths = [&basis, &state, &target].map(|path| path.to_str().unwrap());
                    let pack = ["session", "pack", "--force", "--storage", "1.1", "--basis"];
                    tqkv(&[&pack[..], &paths].concat());
                }
            } else if part == "model.tqb" && is_session {
                put(&target, BASIS);
            } else if part == "answers.txt" {
                let text = &tqkv_model::shipped::HELDOUT_TEXT[..600];
                put(&target, &[&text[..300], b"<<", &text[300..340], b">>", &text[340..]].concat());
            } else if part == "docs/quality.md" {
                put(&target, &fs::read(model().join("../../..").join(part)).unwrap());
            } else if let Some((_, from)) = TEXTS.iter().find(|(name, _)| *name == part) {
                put(&target, &tqkv_model::shipped::HELDOUT_TEXT[*from..from + 24_000]);
            } else if let Some(name) = FILES.iter().find(|name| **name == part) {
                put(&target, &fs::read(self.make(name)).unwrap());
            }
        }
    }

    /// The path of a file that is made once.
    fn make(&self, name: &'static str) -> PathBuf {
        let path = self.made.path().join(name);
        if !self.names.borrow_mut().insert(name) {
            return path;
        }
        let at = path.to_str().unwrap();
        let made = |name: &'static str| self.make(name).display().to_string();
        let text = self.made.path().join("learned.txt");
        put(&text, &tqkv_model::shipped::HELDOUT_TEXT[..24_000]);
        let learn = ["--context", "512", "--windows", "2", "--text", text.to_str().unwrap()];
        let zeros = |shape: &str, rows: usize| npy(&path, "<f4", shape, &random(rows * 128));
        match name.rsplit('.').next().unwrap() {
            "npy" if name.len() == 5 && name != "q.npy" => zeros("(4, 64, 1, 128)", 256),
            "npy" => zeros("(64, 128)", 64),
            "safetensors" => put(&path, &fs::read(model().join("kv_sample.safetensors")).unwrap()),
            "tqk" => tqkv(&["encode", "--codec", "s4", &made("keys.npy"), at]),
            "tqa" => tqkv(&[&["basis", "--sums", at][..], &learn, &[&format!("{at}.tqb")]].concat()),
            "tqb" => tqkv(&[&["basis"][..], &learn, &[at]].concat()),
            "tqlm" => tqkv(&["export", "--target", "mcu", model().to_str().unwrap(), at]),
            "tqc" => {
                let [basis, values, keys] = ["model.tqb", "v.npy", "k.npy"].map(made);
                tqkv(&["encode", "--storage", "1.1", "--basis", &basis, "--values", &values, &keys, at]);
            }
            _ => panic!("{name}: no way to make it"),
        }
        path
    }
}

/// Numbers between -1 and 1 as little-endian bytes, equal in every run.
fn random(count: usize) -> Vec<u8> {
    let mut numbers = fastrand::Rng::with_seed(1);
    (0..count).flat_map(|_| (numbers.f32() * 2.0 - 1.0).to_le_bytes()).collect()
}

/// Writes a file, and the folders above it.
fn put(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}
