//! What an evaluation measures: a model, a text, and settings of caches.

use serde::Serialize;
use tqkv::attention::AttentionCache;
use tqkv::error::CacheError;
use tqkv_model::Model;
use tqkv_model::eval::{Marked, Setting};

use crate::cache_args;
use crate::device::Place;
use crate::error::CliError;
use crate::memory::Memory;
use crate::policy::Policy;
use crate::preset::F16;

/// The output of an evaluation for programs.
#[derive(Serialize)]
pub(super) struct Report<Row> {
    model: String,
    context: usize,
    windows: usize,
    /// Time of all settings together, without loading the model.
    seconds: f64,
    #[serde(flatten)]
    memory: Memory,
    results: Vec<Row>,
}

impl<Row> Report<Row> {
    /// The report on a subject, with a row per setting.
    pub(super) fn new(subject: &Subject, seconds: f64, results: Vec<Row>) -> Self {
        let Subject { model, context, windows, .. } = subject;
        Self {
            model: model.name().to_owned(),
            context: *context,
            windows: *windows,
            seconds,
            memory: Memory::of(model),
            results,
        }
    }
}

/// A model and the text to measure it on.
pub struct Subject {
    pub model: Model,
    /// Without marks.
    pub text: Vec<u8>,
    /// The text with the parts that are scored, if it has marks.
    pub(super) marked: Option<Marked>,
    /// Tokens per window.
    pub context: usize,
    pub windows: usize,
    pub(super) place: Place,
}

/// The settings of some policies; the first is the reference, which is on the CPU for every device.
pub(super) fn settings<'a>(
    model: &'a Model,
    place: &'a Place,
    (policies, context): (&[Policy], usize),
) -> Result<Vec<Setting<'a>>, CliError> {
    if matches!(place, Place::Cpu) {
        cache_args::check_compresses(policies, "--context", context)?;
    }
    cache_args::check_model(place, model.config(), policies)?;
    let setting = |policy: &Policy| {
        let place = if policy.name.kv == F16.into() { &Place::Cpu } else { place };
        let (name, policy) = (policy.name.to_string(), policy.clone());
        let new_cache = move || -> Result<Box<dyn AttentionCache>, CacheError> {
            cache_args::cache(place, model.config(), &policy)
        };
        Setting { name, new_cache: Box::new(new_cache) }
    };
    Ok(policies.iter().map(setting).collect())
}
