//! What a model's cache takes, computed from its config alone, as `tqkv plan` does.

use crate::errors::{Failure, refused, refused_in};
use pyo3::prelude::*;
use std::path::PathBuf;
use tqkv_cli::plan::{CacheShape, Plan as CachePlan};
use tqkv_cli::policy::Policy;
use tqkv_model::ModelKv;

/// The bytes of a cache as a function of its tokens.
#[pyclass(frozen, module = "tqkv._native")]
pub(crate) struct Plan {
    plan: CachePlan,
    context: Option<u64>,
}

#[pymethods]
impl Plan {
    /// Of the text of a config.json, or of a GGUF file, a folder with a config.json, or such a file.
    #[new]
    fn new(config: Option<&str>, path: Option<PathBuf>, kv: &str) -> Result<Self, Failure> {
        let policy = kv.parse::<Policy>().map_err(|error| refused(error.to_string()))?;
        // The errors of a config name it; those of a model's files do not name their folder.
        let model = match (config, &path) {
            (Some(json), _) => ModelKv::from_json(&tqkv_model::without_mark(json.as_bytes().to_vec()))
                .map_err(|error| refused(error.to_string())),
            (None, Some(path)) => {
                ModelKv::of(path).map_err(|error| refused_in(&path.display().to_string(), error))
            }
            (None, None) => Err(refused("a plan needs a config or the path of a model")),
        };
        let shape = CacheShape::from(&model?);
        let plan = shape.plan(&policy).map_err(|error| refused(error.to_string()))?;
        Ok(Self { plan, context: shape.context })
    }

    #[getter]
    fn context(&self) -> Option<u64> {
        self.context
    }

    #[getter]
    fn bytes_per_token(&self) -> Result<u64, Failure> {
        self.plan.bytes_per_token().map_err(|error| refused(error.to_string()))
    }

    fn bytes(&self, tokens: u64) -> Result<u64, Failure> {
        self.plan.bytes(tokens).map_err(|error| refused(error.to_string()))
    }

    fn longest(&self, memory: u64) -> Option<u64> {
        Some(self.plan.max_tokens(memory)).filter(|&tokens| tokens < u64::MAX)
    }
}
