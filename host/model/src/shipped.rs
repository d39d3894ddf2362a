//! The model that is compiled into the binary. It runs anywhere, without a download.
//!
//! `host/model/shipped/README.md` describes its training and its figures.

use crate::{Model, ModelError};

/// `config.json` of the shipped model.
pub const CONFIG: &[u8] = include_bytes!("../shipped/config.json");
/// `model.safetensors` of the shipped model, 4 MB.
pub const WEIGHTS: &[u8] = include_bytes!("../shipped/model.safetensors");
/// 200 KiB of ASCII text that the shipped model never saw in training.
pub const HELDOUT_TEXT: &[u8] = include_bytes!("../shipped/heldout.txt");
/// Name of the shipped model in reports.
pub const NAME: &str = "shipped";

impl Model {
    /// The shipped byte-level model: 2 M parameters, 4 layers, one KV head of 128, context 1024.
    ///
    /// # Errors
    /// No error is possible unless the files were changed before the build.
    pub fn shipped() -> Result<Self, ModelError> {
        Self::from_bytes(NAME, CONFIG, WEIGHTS, None)
    }
}
