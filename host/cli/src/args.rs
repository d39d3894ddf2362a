//! Arguments that several commands share.

use crate::error::CliError;
use crate::names;
use crate::preset::{Kv, KvCodecs};
use clap::Args;
use tqkv::Level;
use tqkv::cache::CacheSpec;
use tqkv_core::{CodecId, Effort, Options, ScaleMode};
use tqkv_reference::{Choice, ROWS, RotationKind};
use tqkv_storage::Budget;

/// How blocks are encoded.
#[derive(Debug, Args)]
pub struct EncodeArgs {
    /// Seed of the rotation's random signs.
    #[arg(long, value_name = "N", default_value_t = Options::default().seed)]
    pub(crate) seed: u64,
    /// How a block's scale is chosen: raw, preserving (the norm), unbiased (the dot products) or mmse
    /// (least error).
    #[arg(long, value_name = "MODE", value_parser = scale_mode, default_value = "unbiased")]
    pub(crate) scale_mode: ScaleMode,
    /// How far the encoder searches: fast, default or best; the format stays the same.
    #[arg(long, value_name = "EFFORT", value_parser = effort, default_value = "default")]
    pub(crate) effort: Effort,
}

impl EncodeArgs {
    pub fn options(&self) -> Options {
        Options::DEFAULT.seed(self.seed).scale_mode(self.scale_mode).effort(self.effort)
    }
}

/// The instruction set: what `TQKV_LEVEL` names, or the machine's fastest.
pub fn machine_level() -> Result<Level, CliError> {
    Level::detect().map_err(|error| CliError::bad_input(format_args!("TQKV_LEVEL: {error}")))
}

pub(crate) fn scale_mode(name: &str) -> Result<ScaleMode, String> {
    ScaleMode::from_name(name).ok_or_else(|| accepted(ScaleMode::ALL.map(ScaleMode::name)))
}

pub(crate) fn effort(name: &str) -> Result<Effort, String> {
    Effort::from_name(name).ok_or_else(|| accepted(Effort::ALL.map(Effort::name)))
}

/// Bits per value of the storage tier.
pub fn budget(text: &str) -> Result<Budget, String> {
    let bits = text.parse::<f32>().map_err(|_| "accepted are 0.5 to 5".to_owned())?;
    Budget::new(bits).map_err(|error| error.to_string())
}

fn accepted<const N: usize>(names: [&str; N]) -> String {
    format!("accepted are {}", names.join(", "))
}

/// Which codecs keep K and V.
#[derive(Debug, Args)]
pub(crate) struct KvArgs {
    /// Codecs of the cache: a preset (balanced), one codec for both (s4), or two as K,V (t4,t2); may be
    /// repeated. `tqkv codecs` lists them. eval, generate and plan also take yardsticks (tqkv codecs --all):
    /// these are simulated, so they save no memory, bytes are those of their blocks, and --hot, --sinks,
    /// --centre and --arithmetic do nothing.
    #[arg(long = "kv", visible_alias = "kv-cache-dtype", value_name = "PRESET|K,V", value_parser = names::kv)]
    kv: Vec<Kv>,
    /// The codec of K (that of V is f16 unless given); the name that llama.cpp uses.
    #[arg(long, value_name = "CODEC", value_parser = names::choice, conflicts_with = "kv")]
    cache_type_k: Option<Choice>,
    /// The codec of V (that of K is f16 unless given).
    #[arg(long, value_name = "CODEC", value_parser = names::choice, conflicts_with = "kv")]
    cache_type_v: Option<Choice>,
}

impl KvArgs {
    /// The pairs asked for, in order; `None` where none was.
    pub(crate) fn given(&self) -> Option<Vec<Kv>> {
        if self.cache_type_k.is_some() || self.cache_type_v.is_some() {
            let f16 = Choice::Core(CodecId::F16);
            return Some(vec![Kv {
                k: self.cache_type_k.unwrap_or(f16),
                v: self.cache_type_v.unwrap_or(f16),
            }]);
        }
        Some(self.kv.clone()).filter(|kv| !kv.is_empty())
    }

    /// The pairs that caches store, where `what` takes no others; `None` where none was asked for.
    pub(crate) fn own(&self, what: &str) -> Result<Option<Vec<KvCodecs>>, CliError> {
        let own = |kv: Kv| kv.own().ok_or_else(|| CliError::not_stored(what, kv));
        self.given().map(|pairs| pairs.into_iter().map(own).collect()).transpose()
    }
}

/// The rotation of the formats of the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RotationArg {
    /// A matrix of the Haar law, another for each layer: slow. Measured: its errors are those of hadamard.
    Dense,
    /// Random signs and a Hadamard transform; head dims that are powers of two.
    Hadamard,
}

/// How formats of the reference are made.
#[derive(Clone, Copy, Debug, Args)]
pub struct ReferenceArgs {
    /// The rotation of p2, p3, p4, tq3, tq4 and their like [default: that of the format's source].
    #[arg(long, value_name = "WHICH", value_enum)]
    rotation: Option<RotationArg>,
}

impl ReferenceArgs {
    /// The rotation asked for.
    pub fn rotation(self) -> Option<RotationKind> {
        self.rotation.map(|rotation| match rotation {
            RotationArg::Dense => RotationKind::Dense,
            RotationArg::Hadamard => RotationKind::Hadamard,
        })
    }

    /// Refuses a rotation of which none of `choices` has a choice.
    pub fn check(self, mut choices: impl Iterator<Item = Choice>) -> Result<(), CliError> {
        let has_rotations = |choice| matches!(choice, Choice::Reference(row) if row.has_rotations());
        if self.rotation.is_none() || choices.any(has_rotations) {
            return Ok(());
        }
        let rows: Vec<_> = ROWS.iter().filter(|row| row.has_rotations()).map(|row| row.name()).collect();
        Err(CliError::bad_input(format_args!(
            "--rotation: none of the codecs has a choice; {} have",
            rows.join(", ")
        )))
    }
}

/// The tokens that stay uncompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
pub struct WindowArgs {
    /// Newest tokens kept as f16.
    #[arg(long, value_name = "TOKENS", default_value_t = CacheSpec::DEFAULT_HOT)]
    pub hot: usize,
    /// First tokens kept as f16. Layers with a sliding window keep none: the model does not see them beside
    /// its window.
    #[arg(long, value_name = "TOKENS", default_value_t = CacheSpec::DEFAULT_SINKS)]
    pub sinks: usize,
}
