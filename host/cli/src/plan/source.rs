//! The model of a plan: its config, and the place of its weights.

use std::path::{Path, PathBuf};

use tqkv_model::{ModelError, ModelKv, WeightBytes};

use super::CacheShape;
use crate::error::CliError;
use crate::input;

/// A model, and the path that it came from.
pub(crate) struct PlanSource {
    path: PathBuf,
    kv: ModelKv,
    /// The bytes of `path` if it is a single `config.json`.
    config: Option<Vec<u8>>,
}

impl PlanSource {
    /// Reads the header of a GGUF file of any family, a folder with `config.json`, or a `config.json`.
    pub(crate) fn read(path: &Path) -> Result<Self, CliError> {
        let is_json = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("json"));
        let config = (input::is_stdin(path) || is_json)
            .then(|| input::read(path).map(tqkv_model::without_mark))
            .transpose()?;
        let kv = match &config {
            Some(json) => ModelKv::from_json(json)
                .map_err(|error| CliError::bad_input(format_args!("{}: {error}", path.display())))?,
            None => ModelKv::of(path).map_err(|error| CliError::model(Some(path), &error))?,
        };
        Ok(Self { path: path.to_owned(), kv, config })
    }

    /// The keys and values that the model keeps in each layer.
    pub(crate) fn kv(&self) -> &ModelKv {
        &self.kv
    }

    pub(crate) fn shape(&self) -> CacheShape {
        CacheShape::from(&self.kv)
    }

    /// Bytes of the model's own weights in their stored form.
    pub(crate) fn weights(&self) -> Result<WeightBytes, CliError> {
        let folder = if self.config.is_some() { self.folder()? } else { &self.path };
        WeightBytes::of(folder).map_err(|error| CliError::model(Some(folder), &error))
    }

    /// Bytes of the weights at `bits` bits per weight.
    pub(crate) fn weights_of(&self, bits: f64) -> Result<WeightBytes, CliError> {
        let json = match &self.config {
            Some(json) => json.clone(),
            None => tqkv_model::config_json(&self.path)
                .map_err(|error| CliError::model(Some(&self.path), &error))?,
        };
        WeightBytes::of_config(&json, bits)
            .map_err(|error| self.bad(format_args!("{error}; --weights counts those in a model's files")))
    }

    /// The folder of the model.
    fn folder(&self) -> Result<&Path, CliError> {
        let name = self.path.file_name();
        let folder = self.path.parent().filter(|_| name.is_some_and(|name| name == "config.json"));
        let Some(folder) = folder else {
            return Err(
                self.bad("weights are counted beside a file called config.json; --weight-bits needs none")
            );
        };
        // The parent of a bare file name is an empty path.
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let other = match tqkv_model::config_json(folder) {
            Ok(json) if Some(&json) == self.config.as_ref() => return Ok(folder),
            Ok(_) => "the weights beside it are of another model; give that as --model".to_owned(),
            Err(error @ ModelError::Io { .. }) => return Err(CliError::model(Some(folder), &error)),
            Err(error) => error.to_string(),
        };
        Err(self.bad(other))
    }

    fn bad(&self, error: impl std::fmt::Display) -> CliError {
        CliError::bad_input(format_args!("{}: {error}", self.path.display()))
    }
}
