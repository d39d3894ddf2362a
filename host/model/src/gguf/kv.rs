//! The keys and values that a model of any architecture keeps per token, from the header of its GGUF file.
//!
//! Heads and widths are keys of the header in every architecture. Newer headers also say which layers have a
//! window, and which keep nothing. For the others llama.cpp has that in its code, and here it is in
//! [`ARCHITECTURES`]. A header that leaves it open otherwise is refused.

use std::path::Path;

use super::{File, FileHead, Info, List, Value, open, parts};
use crate::checkpoint::{Access, NumberKind, TensorFormat, TensorSource};
use crate::error::ModelError;
use crate::kv::{LayerKv, MOST, MOST_LAYERS, ModelKv, bad};

/// The facts that the header of an architecture leaves out.
struct KnownArchitecture {
    name: &'static str,
    layers: LayerPattern,
}

/// The kinds of layers of an architecture.
#[derive(Clone, Copy)]
enum LayerPattern {
    /// Every layer sees all tokens, whatever the header says of windows.
    Full,
    /// Every n-th layer sees all tokens.
    Every(usize),
    /// Every n-th layer sees all tokens, from the first on.
    FirstOf(usize),
    /// Every n-th layer sees all tokens, the others the given window where the header has none.
    EveryOr(usize, usize),
    /// Every n-th layer has attention, by default; the others are recurrent.
    Recurrent(usize),
    /// Attention next to a recurrent state in every layer.
    Hybrid,
}

/// The architectures whose kinds of layers are in llama.cpp's code.
#[rustfmt::skip]
const ARCHITECTURES: [KnownArchitecture; 25] = [
    KnownArchitecture { name: "llama", layers: LayerPattern::Full },
    KnownArchitecture { name: "qwen2", layers: LayerPattern::Full },
    KnownArchitecture { name: "qwen2moe", layers: LayerPattern::Full },
    KnownArchitecture { name: "qwen3", layers: LayerPattern::Full },
    KnownArchitecture { name: "qwen3moe", layers: LayerPattern::Full },
    KnownArchitecture { name: "starcoder2", layers: LayerPattern::Full },
    KnownArchitecture { name: "phi3", layers: LayerPattern::Full },
    KnownArchitecture { name: "gemma2", layers: LayerPattern::EveryOr(2, 4096) },
    // Chunks of attention.
    KnownArchitecture { name: "llama4", layers: LayerPattern::EveryOr(4, 8192) },
    KnownArchitecture { name: "gemma3", layers: LayerPattern::Every(6) },
    KnownArchitecture { name: "gemma3n", layers: LayerPattern::Every(5) },
    KnownArchitecture { name: "gemma-embedding", layers: LayerPattern::Every(6) },
    KnownArchitecture { name: "cohere2", layers: LayerPattern::Every(4) },
    KnownArchitecture { name: "gpt-oss", layers: LayerPattern::Every(2) },
    KnownArchitecture { name: "olmo2", layers: LayerPattern::Every(4) },
    KnownArchitecture { name: "exaone4", layers: LayerPattern::Every(4) },
    KnownArchitecture { name: "exaone-moe", layers: LayerPattern::Every(4) },
    KnownArchitecture { name: "afmoe", layers: LayerPattern::Every(4) },
    KnownArchitecture { name: "smallthinker", layers: LayerPattern::FirstOf(4) },
    KnownArchitecture { name: "qwen3next", layers: LayerPattern::Recurrent(4) },
    KnownArchitecture { name: "qwen35", layers: LayerPattern::Recurrent(4) },
    KnownArchitecture { name: "qwen35moe", layers: LayerPattern::Recurrent(4) },
    KnownArchitecture { name: "falcon-h1", layers: LayerPattern::Hybrid },
    KnownArchitecture { name: "mamba", layers: LayerPattern::Full },
    KnownArchitecture { name: "mamba2", layers: LayerPattern::Full },
];

/// Gemma 3n keeps keys and values in this many first layers; no key has the number.
const GEMMA3N_OWN_LAYERS: usize = 20;

/// Reads the header of a file. The first part of a split model has that of all parts, which need not be there. No
/// tensor is read.
pub(crate) fn kv(path: &Path) -> Result<ModelKv, ModelError> {
    let parts = parts::names(path);
    let first = TensorSource::open(&parts[0], Access::Streamed)?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let head = FileHead::read(&first)?;
    let file = File::parse(&first.name, &head.bytes)?;
    if parts.len() > 1 {
        parts::check_numbers(&file, &first, 0, parts.len())?;
    }
    Header::new(&file).and_then(|header| header.model()).map_err(|error| super::said_of(&name, error))
}

/// Name and bytes of each tensor of a model of any architecture. Those in a format that is not read here take
/// the distance to the next one. No tensor is read.
pub(crate) fn tensor_bytes(path: &Path) -> Result<Vec<(String, u64)>, ModelError> {
    let sources = open(path, Access::Streamed)?;
    let heads: Vec<_> = sources.iter().map(FileHead::read).collect::<Result<_, _>>()?;
    let files = heads.iter().map(|head| File::parse(&head.source.name, &head.bytes));
    let files: Vec<_> = files.collect::<Result<_, _>>()?;
    parts::check(&files, &sources.iter().collect::<Vec<_>>())?;
    let mut all = Vec::new();
    for (source, file) in sources.iter().zip(&files) {
        let mut tensors: Vec<_> = file.tensors.iter().collect();
        tensors.sort_unstable_by_key(|tensor| tensor.offset);
        let data = source.len.saturating_sub(file.data);
        let nexts = tensors.iter().skip(1).map(|tensor| tensor.offset).chain([data]);
        for (Info { name, shape, kind, offset }, next) in tensors.iter().zip(nexts) {
            let known =
                NumberKind::numbered(*kind).and_then(|kind| TensorFormat::Plain(kind).bytes_of(shape).ok());
            let taken = known.map_or(next.saturating_sub(*offset), |bytes| bytes as u64);
            if offset.saturating_add(taken) > data {
                return Err(source.bad(format!(
                    "it ends early: it has {} bytes, and its tensor {name} ends at {}",
                    source.len,
                    file.data.saturating_add(*offset).saturating_add(taken)
                )));
            }
            all.push(((*name).to_owned(), taken));
        }
    }
    Ok(all)
}

/// The keys of the architecture.
struct Header<'a> {
    file: &'a File<'a>,
    architecture: &'a str,
    /// Layers of the file, as long as its lists.
    blocks: usize,
    /// Those that may have a cache.
    layers: usize,
}

impl<'a> Header<'a> {
    fn new(file: &'a File<'a>) -> Result<Self, ModelError> {
        let Some(Value::Text(architecture)) = file.metadata.get("general.architecture") else {
            return Err(bad("general.architecture is missing"));
        };
        let mut header = Self { file, architecture, blocks: 0, layers: 0 };
        // Layers that predict further tokens have no cache of their own here.
        let predicting = header.count("nextn_predict_layers")?.unwrap_or(0);
        header.blocks = header.count("block_count")?.ok_or_else(|| header.missing("block_count"))?;
        header.layers = header.blocks.saturating_sub(predicting);
        if !(1..=MOST_LAYERS).contains(&header.layers) {
            return Err(bad(format!("{} layers; accepted: 1 to {MOST_LAYERS}", header.layers)));
        }
        Ok(header)
    }

    fn model(&self) -> Result<ModelKv, ModelError> {
        if self.value("attention.causal") == Some(&Value::Bool(false)) {
            return Err(bad(format!(
                "{} attends to later tokens too, so it has no cache",
                self.architecture
            )));
        }
        let (windows, kept) = (self.windows()?, self.kept()?);
        let layer = |layer: usize| match kept[layer] {
            true => self.layer(layer, windows[layer]),
            false => Ok(None),
        };
        let layers: Vec<Option<LayerKv>> = (0..self.layers).map(layer).collect::<Result<_, _>>()?;
        if layers.iter().all(Option::is_none) {
            return Err(bad("no layer with attention, so there is no cache of keys and values"));
        }
        let context = self.count("context_length")?.map(|tokens| tokens as u64);
        let has_indexer = self.count("attention.indexer.key_length")?.is_some();
        Ok(ModelKv { layers, context, has_indexer })
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn value(&self, name: &str) -> Option<&Value<'a>> {
        self.file.metadata.get(self.key(name).as_str())
    }

    /// The error of a number that is needed, and is missing or 0.
    fn missing(&self, name: &str) -> ModelError {
        let key = self.key(name);
        bad(match self.value(name) {
            None => format!("{key} is missing"),
            Some(value) => format!("{key} is {value}: expected 1 or more"),
        })
    }

    /// Refuses a list that has not one entry per layer, as llama.cpp does.
    fn check_list(&self, name: &str, list: &List<'_>) -> Result<(), ModelError> {
        if list.len() == self.blocks {
            return Ok(());
        }
        Err(bad(format!("{}: {} entries for {} layers", self.key(name), list.len(), self.blocks)))
    }

    /// A number for all layers. `None` if it is missing or 0.
    fn count(&self, name: &str) -> Result<Option<usize>, ModelError> {
        self.value(name).map_or(Ok(None), |value| self.number(name, value))
    }

    fn number(&self, name: &str, value: &Value<'_>) -> Result<Option<usize>, ModelError> {
        let number = value.whole().filter(|number| *number <= MOST);
        let number = number
            .ok_or_else(|| bad(format!("{}: expected a whole number, at most 2^40", self.key(name))))?;
        Ok(usize::try_from(number).ok().filter(|number| *number > 0))
    }

    /// A number of a layer, which may be one for all.
    fn of_layer(&self, name: &str, layer: usize) -> Result<Option<usize>, ModelError> {
        match self.value(name) {
            Some(Value::List(list)) => {
                self.check_list(name, list)?;
                list.iter().nth(layer).map_or(Ok(None), |value| self.number(name, &value))
            }
            _ => self.count(name),
        }
    }

    fn known(&self) -> Option<LayerPattern> {
        ARCHITECTURES.iter().find(|known| known.name == self.architecture).map(|known| known.layers)
    }

    /// The window of each layer.
    fn windows(&self) -> Result<Vec<Option<usize>>, ModelError> {
        let hidden = match self.known() {
            Some(LayerPattern::EveryOr(_, window)) => Some(window),
            _ => None,
        };
        let window = self.count("attention.sliding_window")?.or(hidden);
        let Some(window) = window else { return Ok(vec![None; self.layers]) };
        let slides: Vec<bool> = match (self.value("attention.sliding_window_pattern"), self.known()) {
            (Some(Value::List(list)), _) => {
                self.check_list("attention.sliding_window_pattern", list)?;
                let slides = |value: Value<'_>| match value {
                    Value::Bool(slides) => slides,
                    other => other.whole().is_some_and(|number| number > 0),
                };
                list.iter().take(self.layers).map(slides).collect()
            }
            (Some(value), _) => {
                let every = self.number("attention.sliding_window_pattern", value)?.unwrap_or(1);
                (0..self.layers).map(|layer| !(layer + 1).is_multiple_of(every)).collect()
            }
            (None, Some(LayerPattern::Every(every) | LayerPattern::EveryOr(every, _))) => {
                (0..self.layers).map(|layer| !(layer + 1).is_multiple_of(every)).collect()
            }
            (None, Some(LayerPattern::FirstOf(every))) => {
                (0..self.layers).map(|layer| !layer.is_multiple_of(every)).collect()
            }
            (None, Some(LayerPattern::Full | LayerPattern::Recurrent(_) | LayerPattern::Hybrid)) => {
                vec![false; self.layers]
            }
            (None, None) => {
                return Err(bad(format!(
                    "{} is set, and it is not known which layers of {} slide: expected {}",
                    self.key("attention.sliding_window"),
                    self.architecture,
                    self.key("attention.sliding_window_pattern")
                )));
            }
        };
        Ok(slides.into_iter().map(|slides| slides.then_some(window)).collect())
    }

    /// The layers that keep keys and values of their own.
    fn kept(&self) -> Result<Vec<bool>, ModelError> {
        let shared = match (self.count("attention.shared_kv_layers")?, self.architecture) {
            (Some(shared), _) => shared,
            (None, "gemma3n") => self.layers.saturating_sub(GEMMA3N_OWN_LAYERS),
            (None, _) => 0,
        };
        let own = self.layers.saturating_sub(shared);
        let is_listed = matches!(self.value("attention.head_count_kv"), Some(Value::List(_)));
        let is_recurrent = self.file.metadata.keys().any(|key| {
            let own = key.strip_prefix(self.architecture).and_then(|rest| rest.strip_prefix('.'));
            own.is_some_and(|own| {
                ["ssm.", "shortconv.", "wkv.", "kda."].iter().any(|part| own.starts_with(part))
            })
        });
        let attends: Vec<bool> = match self.known() {
            Some(LayerPattern::Recurrent(every)) if !is_listed => {
                let every = self.count("full_attention_interval")?.unwrap_or(every);
                (0..self.layers).map(|layer| (layer + 1).is_multiple_of(every)).collect()
            }
            // A layer without KV heads has no attention.
            _ if is_listed => (0..self.layers)
                .map(|layer| Ok(self.of_layer("attention.head_count_kv", layer)?.is_some()))
                .collect::<Result<_, ModelError>>()?,
            None if is_recurrent => {
                return Err(bad(format!(
                    "{} has recurrent layers, and it is not known which: expected a list in {}",
                    self.architecture,
                    self.key("attention.head_count_kv")
                )));
            }
            _ => vec![self.of_layer("attention.head_count", 0)?.is_some(); self.layers],
        };
        Ok(attends.into_iter().enumerate().map(|(layer, attends)| attends && layer < own).collect())
    }

    /// A width of a layer: that of layers with a window where it is one and the header has it.
    fn width(&self, name: &str, window: Option<usize>) -> Result<Option<usize>, ModelError> {
        let swa = window.map_or(Ok(None), |_| self.count(&format!("{name}_swa")))?;
        if swa.is_some() { Ok(swa) } else { self.count(name) }
    }

    fn layer(&self, layer: usize, window: Option<usize>) -> Result<Option<LayerKv>, ModelError> {
        let heads = self.of_layer("attention.head_count", layer)?;
        let Some(num_kv_heads) = self.of_layer("attention.head_count_kv", layer)?.or(heads) else {
            return Ok(None);
        };
        let head_dim = match self.width("attention.key_length", window)? {
            Some(dim) => dim,
            None => {
                let hidden =
                    self.count("embedding_length")?.ok_or_else(|| self.missing("embedding_length"))?;
                let heads = heads.ok_or_else(|| self.missing("attention.head_count"))?;
                hidden / heads
            }
        };
        let value_dim = match self.width("attention.value_length", window)? {
            Some(dim) => dim,
            None => head_dim,
        };
        // One head as wide as the latent vector and its positional part is the latent vector. Older files
        // have the heads that it expands to.
        if let Some(rank) = self.count("attention.kv_lora_rank")?
            && num_kv_heads == 1
            && head_dim > rank
            && value_dim == rank
        {
            return Ok(Some(LayerKv {
                window,
                num_kv_heads,
                head_dim,
                value_dim,
                position_dim: head_dim - rank,
            }));
        }
        if head_dim == 0 {
            return Err(self.missing("attention.key_length"));
        }
        Ok(Some(LayerKv { window, num_kv_heads, head_dim, value_dim, position_dim: 0 }))
    }
}
