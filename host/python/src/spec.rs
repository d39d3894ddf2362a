//! Converts the options of a Python cache to a `CacheSpec`.

use crate::codec::{id, options};
use crate::errors::{Failure, refused};
use pyo3::prelude::*;
use std::path::PathBuf;
use tqkv::cache::{Arithmetic, CacheSpec, Centring, Cold, KvPair, LayerKind, LayerPolicy};
use tqkv_core::KvShape;

/// The dict that the constructor of the Python class passes. The names are the same there.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Spec {
    num_layers: usize,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    value_dim: usize,
    kv: String,
    layers: Option<Vec<String>>,
    sinks: usize,
    hot: usize,
    windows: Option<Vec<Option<usize>>>,
    sliding_window: Option<usize>,
    cold: Vec<(usize, String)>,
    spill: Option<(usize, PathBuf)>,
    centring: String,
    arithmetic: String,
    seed: u64,
    scale_mode: String,
    effort: String,
    scale: Option<f32>,
    soft_cap: Option<f32>,
    sink_logits: Vec<f32>,
    sparse_values: f32,
    /// The most bytes that the cache and its forks hold together.
    pub(crate) max_bytes: Option<usize>,
}

impl Spec {
    pub(crate) fn read(self) -> Result<CacheSpec, Failure> {
        let shape = KvShape::new(self.num_layers, self.num_heads, self.num_kv_heads, self.head_dim);
        let (key, value) = pair(&self.kv)?;
        let centrings = [("auto", Centring::Auto), ("on", Centring::On), ("off", Centring::Off)];
        let arithmetics = [("int8", Arithmetic::Int8), ("f32", Arithmetic::F32)];
        let mut spec = CacheSpec::from(shape.with_value_dim(self.value_dim))
            .codecs(key, value)
            .options(options(self.seed, &self.scale_mode, &self.effort)?)
            .sinks(self.sinks)
            .hot(self.hot)
            .centring(one_of("centring", &self.centring, &centrings)?)
            .arithmetic(one_of("arithmetic", &self.arithmetic, &arithmetics)?)
            .sink_logits(self.sink_logits)
            .sparse_values(self.sparse_values);
        if let Some(layers) = self.layers {
            let pairs = layers.iter().map(|layer| pair(layer)).collect::<Result<_, _>>()?;
            spec = spec.layers(LayerPolicy::Custom(pairs));
        }
        if let Some(windows) = self.windows {
            let kind = |window: Option<usize>| window.map_or(LayerKind::Full, LayerKind::Sliding);
            spec = spec.kinds(windows.into_iter().map(kind).collect());
        }
        for (after, codecs) in self.cold {
            let (key, value) = pair(&codecs)?;
            spec = spec.cold(after, Cold::Demote { key, value });
        }
        if let Some((after, folder)) = self.spill {
            spec = spec.cold(after, Cold::Spill(folder));
        }
        // No builder takes `None` for these.
        (spec.scale, spec.soft_cap, spec.sliding_window) = (self.scale, self.soft_cap, self.sliding_window);
        Ok(spec)
    }
}

/// Codecs of keys and values: "t4,t3", or one for both.
pub(crate) fn pair(kv: &str) -> Result<KvPair, Failure> {
    let (key, value) = kv.split_once(',').unwrap_or((kv, kv));
    Ok((id(key.trim())?, id(value.trim())?))
}

fn one_of<T: Copy>(what: &str, name: &str, all: &[(&str, T)]) -> Result<T, Failure> {
    all.iter().find(|(known, _)| *known == name).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|(known, _)| *known).collect();
        refused(format!("{what} '{name}'; accepted are {}", names.join(", ")))
    })
}
