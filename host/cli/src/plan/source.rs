//! The model of a plan: its config, and the place of its weights.

use std::path::{Path, PathBuf};

use tqkv_model::{Config, ModelError, WeightBytes};

use super::CacheShape;
use crate::error::CliError;
use crate::input;

/// The config of a model, and the path that it came from.
pub(crate) struct PlanSource {
    path: PathBuf,
    json: Vec<u8>,
    /// True if `path` is a single `config.json`.
    is_config: bool,
}

impl PlanSource {
    /// Reads a GGUF file, a folder with `config.json`, or a `config.json`.
    pub(crate) fn read(path: &Path) -> Result<Self, CliError> {
        let is_json = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("json"));
        let is_config = input::is_stdin(path) || is_json;
        let json = match is_config {
            true => tqkv_model::without_mark(input::read(path)?),
            false => tqkv_model::config_json(path).map_err(|error| CliError::model(Some(path), &error))?,
        };
        Ok(Self { path: path.to_owned(), json, is_config })
    }

    pub(crate) fn shape(&self) -> Result<CacheShape, CliError> {
        CacheShape::from_config(&String::from_utf8_lossy(&self.json)).map_err(|error| self.bad(error))
    }

    /// Bytes of the model's own weights in their stored form.
    pub(crate) fn weights(&self) -> Result<WeightBytes, CliError> {
        let folder = if self.is_config { self.folder()? } else { &self.path };
        WeightBytes::of(folder).map_err(|error| CliError::model(Some(folder), &error))
    }

    /// Bytes of the weights at `bits` bits per weight.
    pub(crate) fn weights_of(&self, bits: f64) -> Result<WeightBytes, CliError> {
        let config = Config::from_json(&self.json).map_err(|error| self.bad(error))?;
        Ok(WeightBytes::of_config(&config, bits))
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
            Ok(json) if json == self.json => return Ok(folder),
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
