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

/// Options of the block encoder.
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

/// The codecs of K and V.
#[derive(Debug, Args)]
pub(crate) struct KvArgs {
    /// Codecs of the cache: a preset (balanced), one codec for both (s4), or two as K,V (t4,t2). May be
    /// repeated. `tqkv codecs` lists all names.
    ///
    /// eval, generate and plan also take yardsticks (tqkv codecs --all): these are simulated, so they save no
    /// memory. Their bytes are those of their blocks, and --hot, --sinks, --centre and --arithmetic have no
    /// effect.
    #[arg(long = "kv", visible_alias = "kv-cache-dtype", value_name = "PRESET|K,V", value_parser = names::kv)]
    kv: Vec<Kv>,
    /// Codec of K, with the option name of llama.cpp; the codec of V is f16 unless given.
    #[arg(long, value_name = "CODEC", value_parser = names::choice, conflicts_with = "kv")]
    cache_type_k: Option<Choice>,
    /// Codec of V, with the option name of llama.cpp; the codec of K is f16 unless given.
    #[arg(long, value_name = "CODEC", value_parser = names::choice, conflicts_with = "kv")]
    cache_type_v: Option<Choice>,
}

impl KvArgs {
    /// The pairs of `--kv` or `--cache-type-k` and `-v`, in order; `None` if none is given.
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

    /// The given pairs; `None` if none is given. A pair that no cache stores is an error, which names `what`.
    pub(crate) fn own(&self, what: &str) -> Result<Option<Vec<KvCodecs>>, CliError> {
        let own = |kv: Kv| kv.own().ok_or_else(|| CliError::not_stored(what, kv));
        self.given().map(|pairs| pairs.into_iter().map(own).collect()).transpose()
    }
}

/// The rotation of the reference formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RotationArg {
    /// A Haar-distributed matrix, a different one per layer: slow. Measured: the errors equal those of
    /// hadamard.
    Dense,
    /// Random signs and a Hadamard transform; needs a head dim that is a power of two.
    Hadamard,
}

/// Options of the reference formats.
#[derive(Clone, Copy, Debug, Args)]
pub struct ReferenceArgs {
    /// Rotation of p2, p3, p4, tq3, tq4 and their variants [default: the rotation of the format's source].
    #[arg(long, value_name = "WHICH", value_enum)]
    rotation: Option<RotationArg>,
}

impl ReferenceArgs {
    /// Returns the rotation of `--rotation`.
    pub fn rotation(self) -> Option<RotationKind> {
        self.rotation.map(|rotation| match rotation {
            RotationArg::Dense => RotationKind::Dense,
            RotationArg::Hadamard => RotationKind::Hadamard,
        })
    }

    /// Refuses `--rotation` if none of `choices` has more than one rotation.
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
    /// Number of newest tokens that stay f16.
    #[arg(long, value_name = "TOKENS", default_value_t = CacheSpec::DEFAULT_HOT)]
    pub hot: usize,
    /// Number of first tokens that stay f16. Layers with a sliding window have none, because the model sees
    /// only the window there.
    #[arg(long, value_name = "TOKENS", default_value_t = CacheSpec::DEFAULT_SINKS)]
    pub sinks: usize,
}
