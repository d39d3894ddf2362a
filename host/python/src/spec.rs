//! Turns the arguments of a Python cache into a `CacheSpec`, through the texts of the library.

use crate::errors::{Failure, refused};
use pyo3::prelude::*;
use tqkv::cache::CacheSpec;
use tqkv::cache::KvPair;
use tqkv::unstable::cache::pair_of;
use tqkv::unstable::cache::{Door, OPTIONS, OptionPart, least_shares};

/// The spec of the first text, with what each further one says.
pub(crate) fn read(texts: &[String]) -> Result<CacheSpec, Failure> {
    let (first, others) = texts.split_first().map_or(("", texts), |(first, others)| (first.as_str(), others));
    Ok(others.iter().try_fold(first.parse::<CacheSpec>()?, |spec, text| spec.with(text))?)
}

/// Codecs of keys and values: a preset, "t4,t3", or one for both.
pub(crate) fn pair(kv: &str) -> Result<KvPair, Failure> {
    Ok(pair_of(kv)?)
}

/// What the texts of a cache say, for Python, which reads none of them itself.
#[pyclass(frozen, module = "tqkv._native")]
pub(crate) struct Spec(CacheSpec);

#[pymethods]
impl Spec {
    #[new]
    fn new(texts: Vec<String>) -> Result<Self, Failure> {
        Ok(Self(read(&texts)?))
    }

    #[getter]
    fn num_heads(&self) -> usize {
        self.0.shape.num_heads
    }

    #[getter]
    fn sinks(&self) -> usize {
        self.0.sinks
    }

    #[getter]
    fn hot(&self) -> usize {
        self.0.hot
    }

    #[getter]
    fn seed(&self) -> u64 {
        self.0.options.seed
    }

    #[getter]
    fn scale_mode(&self) -> &'static str {
        self.0.options.scale_mode.name()
    }

    #[getter]
    fn effort(&self) -> &'static str {
        self.0.options.effort.name()
    }

    /// Codecs of keys and values of each layer.
    fn codecs(&self) -> Vec<String> {
        codecs(&self.0)
    }

    /// Shares of the energy of a layer's keys and of its values from which means are subtracted.
    fn least_shares(&self, layer: usize) -> (Option<f32>, Option<f32>) {
        let [keys, values] = least_shares(&self.0, layer);
        (keys, values)
    }

    /// The options of the cache of this name, a column of docs/options.md.
    #[staticmethod]
    fn accepted(door: &str) -> Result<String, Failure> {
        Ok(named(door)?.accepted(&[OptionPart::Policy]))
    }

    /// Words that the cache of this name, a column of docs/options.md, cannot follow.
    fn refused(&self, door: &str) -> Result<Vec<String>, Failure> {
        Ok(named(door)?.refused(&self.0))
    }
}

/// The cache of a name.
fn named(door: &str) -> Result<Door, Failure> {
    let found = Door::ALL.into_iter().find(|other| other.name() == door);
    let names = || Door::ALL.map(Door::name).join(", ");
    found.ok_or_else(|| refused(format!("the cache {door} is not valid: expected one of {}", names())))
}

/// Codecs of keys and values of each layer.
pub(crate) fn codecs(spec: &CacheSpec) -> Vec<String> {
    let codecs = (0..spec.shape.num_layers).map(|layer| spec.codecs_at(layer));
    codecs.map(|(key, value)| format!("{},{}", key.name(), value.name())).collect()
}

/// Name and example of every option of a cache.
pub(crate) fn options() -> Vec<(&'static str, &'static str)> {
    OPTIONS.iter().map(|option| (option.name, option.example)).collect()
}
