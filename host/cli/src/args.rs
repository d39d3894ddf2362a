//! Arguments that several commands share.

use crate::error::CliError;
use clap::Args;
use tqkv::Level;
use tqkv_core::{Effort, Options, ScaleMode};
use tqkv_storage::Budget;

/// Options of the block encoder, for files of vectors and of weights.
#[derive(Debug, Args)]
pub struct EncodeArgs {
    /// Seed of the random signs of the rotation.
    #[arg(long, value_name = "N", default_value_t = Options::default().seed)]
    pub(crate) seed: u64,
    /// Rule that chooses the scale of a block: raw (no correction), preserving (keeps the norm), unbiased
    /// (keeps dot products) or mmse (least squared error).
    #[arg(long, value_name = "MODE", value_parser = scale_mode, default_value = "unbiased")]
    pub(crate) scale_mode: ScaleMode,
    /// Search effort of the encoder: fast, default or best. The format stays the same.
    #[arg(long, value_name = "EFFORT", value_parser = effort, default_value = "default")]
    pub(crate) effort: Effort,
}

impl EncodeArgs {
    pub fn options(&self) -> Options {
        Options::DEFAULT.seed(self.seed).scale_mode(self.scale_mode).effort(self.effort)
    }
}

/// The instruction set: the one that `TQKV_LEVEL` names, or the fastest of the machine.
pub fn machine_level() -> Result<Level, CliError> {
    Level::detect().map_err(|error| CliError::bad_input(format_args!("TQKV_LEVEL: {error}")))
}

pub(crate) fn scale_mode(name: &str) -> Result<ScaleMode, String> {
    ScaleMode::from_name(name).ok_or_else(|| expected(ScaleMode::ALL.map(ScaleMode::name)))
}

pub(crate) fn effort(name: &str) -> Result<Effort, String> {
    Effort::from_name(name).ok_or_else(|| expected(Effort::ALL.map(Effort::name)))
}

/// Reads the bits per value of the storage tier.
pub fn budget(text: &str) -> Result<Budget, String> {
    let bits = text.parse::<f32>().map_err(|_| "expected 0.5 to 5".to_owned())?;
    Budget::new(bits).map_err(|error| error.to_string())
}

fn expected<const N: usize>(names: [&str; N]) -> String {
    format!("expected {}", names.join(", "))
}
