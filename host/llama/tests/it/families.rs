//! The families that llama.cpp knows, each as a small model with random weights: what the library holds of it, and
//! how far its predictions are from those of stock f16. `tests/families.txt` is the list.

use crate::programs::divergence;
use crate::tools::{self, Stock};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Largest divergence of f16 from f16: both have sums in another order. Stock attentions differ as much.
const EQUAL: f64 = 1e-4;
/// By how much a divergence may exceed that of the list: other processors round otherwise.
const SLACK: f64 = 4.0;

/// A line of the list: `name | what is held | f16 | i8 | s4 | shift | image | settings of the model`. `-` is a run that the
/// host itself cannot do.
#[derive(Clone, Debug)]
struct Family {
    name: String,
    held: String,
    /// "equal", or a divergence, for f16 with a restored state, i8, s4, f16 after a shift, and f16 after the
    /// embeddings of an image, which all see each other.
    runs: [String; 5],
    settings: String,
}

impl Family {
    fn read(line: &str) -> Option<Self> {
        let parts: Vec<&str> = line.splitn(8, '|').map(str::trim).collect();
        let [name, held, f16, i8, s4, shift, image, settings] = parts[..] else { return None };
        let runs = [f16, i8, s4, shift, image].map(str::to_owned);
        Some(Self { name: name.into(), held: held.into(), runs, settings: settings.into() })
    }

    fn line(&self) -> String {
        let line = format!("{} | {} | {} | {}", self.name, self.held, self.runs.join(" | "), self.settings);
        line.trim_end().to_owned()
    }

    /// True if another run found the same, as far as numbers may differ.
    fn is_like(&self, found: &Self) -> bool {
        let number = |text: &str| text.parse::<f64>().ok();
        let runs =
            self.runs.iter().zip(&found.runs).all(|(listed, found)| match (number(listed), number(found)) {
                (Some(listed), Some(found)) => found <= SLACK * listed,
                (Some(_), None) => found == "equal",
                _ => listed == found,
            });
        runs && self.held == found.held
    }
}

/// What the library says that it holds, without bytes and without the reason's introduction.
fn held(said: &str) -> String {
    let ours = said.lines().filter_map(|line| line.strip_prefix("tqkv: "));
    let short = |line: &str| {
        let line = line.strip_prefix("KV cache of ").unwrap_or(line);
        let end = line.find(": ").unwrap_or(line.len());
        line[..end]
            .replace(" stays in f16, slowly, because", " in f16:")
            .replace(" stay in f16, slowly, because", " in f16:")
    };
    let lines: Vec<String> = ours.map(short).collect();
    if lines.is_empty() { "no cache".to_owned() } else { lines.join("; ") }
}

/// A program that makes a model of a family; see `tests/family.c`.
struct Maker<'a> {
    stock: &'a Stock,
    program: PathBuf,
    library: String,
}

impl Maker<'_> {
    /// What the model predicts, by the width of a row, and what was printed.
    fn run(&self, family: &Family, variables: &[(&str, &str)]) -> Result<(usize, Vec<f64>, String), String> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("family-{}", MADE.fetch_add(1, Ordering::Relaxed));
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let (path, libraries) = (file.display().to_string(), self.stock.libraries());
        let mut arguments = vec![libraries.as_str(), &path, &family.name];
        arguments.extend(family.settings.split_whitespace());
        // A host that cannot do something ends, and would first start a debugger.
        let own = [("GGML_BACKEND_PATH", self.library.as_str()), ("GGML_NO_BACKTRACE", "1")];
        let all = [&own, variables].concat();
        let said = self.stock.run(&self.program, &arguments, &all);
        let bytes = std::fs::read(&file).unwrap_or_default();
        let _ = std::fs::remove_file(&file);
        let said = said?;
        let width = said.lines().find_map(|line| line.parse().ok()).ok_or("no width")?;
        let rows = bytes.as_chunks::<4>().0.iter().map(|x| f64::from(f32::from_ne_bytes(*x)));
        Ok((width, rows.collect(), said))
    }

    /// The family as this run finds it.
    fn find(&self, listed: &Family) -> Result<Family, String> {
        let stock = ("LAYERS", "0");
        let (width, wanted, _) = self.run(listed, &[stock])?;
        let kl = |found: &[f64], wanted: &[f64]| {
            let kl = divergence(width, wanted, found);
            if kl < EQUAL { "equal".to_owned() } else { format!("{kl:.0e}") }
        };
        // Some families are not the same after a restore in the host itself.
        let restore = ("RESTORE", "1");
        let (_, restored, _) = self.run(listed, &[stock, restore])?;
        let (_, f16, _) = self.run(listed, &[("TQKV_KV", "f16"), restore])?;
        let (_, i8, _) = self.run(listed, &[("TQKV_KV", "i8 hot=8")])?;
        let (_, s4, said) = self.run(listed, &[("TQKV_KV", "s4 hot=8")])?;
        let with = |what| match self.run(listed, &[stock, what]) {
            Ok((_, wanted, _)) => Ok(kl(&self.run(listed, &[what, ("TQKV_KV", "f16")])?.1, &wanted)),
            Err(_) => Ok::<_, String>("-".to_owned()),
        };
        let (shifted, image) = (with(("SHIFT", "1"))?, with(("IMAGE", "1"))?);
        let runs = [kl(&f16, &restored), kl(&i8, &wanted), kl(&s4, &wanted), shifted, image];
        Ok(Family { held: held(&said), runs, ..listed.clone() })
    }
}

#[test]
fn each_family_is_held_and_predicts_as_the_list_says() {
    let list = include_str!("../families.txt");
    let listed: Vec<Family> =
        list.lines().filter(|line| !line.starts_with('#')).filter_map(Family::read).collect();
    let (library, all) = (tools::library().display().to_string(), Stock::all());
    // The oldest supported versions cannot make a model without a file.
    let maker = all.iter().find_map(|stock| {
        let maker = Maker { stock, program: stock.program("family"), library: library.clone() };
        maker.run(&listed[0], &[("LAYERS", "0")]).is_ok().then_some(maker)
    });
    let Some(maker) = maker else { return };
    let (next, found) = (AtomicUsize::new(0), Mutex::new(vec![String::new(); listed.len()]));
    let different = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(family) = listed.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let now = maker.find(family);
                    let line =
                        now.as_ref().map_or_else(|why| format!("{}: {why}", family.name), Family::line);
                    if !now.is_ok_and(|now| family.is_like(&now)) {
                        different.lock().expect("a list").push(format!("{}\n    {line}", family.line()));
                    }
                    let at = listed.iter().position(|other| other.name == family.name).expect("listed");
                    found.lock().expect("a list")[at] = line;
                }
            });
        }
    });
    if let Some(file) = std::env::var_os("TQKV_LLAMA_FAMILIES") {
        std::fs::write(file, found.into_inner().expect("a list").join("\n") + "\n").expect("a file");
    }
    let different = different.into_inner().expect("a list");
    assert!(different.is_empty(), "listed, and found:\n{}", different.join("\n"));
}
