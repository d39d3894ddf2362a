//! Arguments of the commands that run a model over a compressed cache, and what they make: a model,
//! and caches for it.
//!
//! `eval`, `generate` and `demo` are thin: they call the library with one cache factory per setting. The reference of
//! every comparison is `f16,f16` under the same window options, always the first row. The defaults of `--hot` and
//! `--sinks` are [`CacheSpec::DEFAULT_HOT`] and [`CacheSpec::DEFAULT_SINKS`], the one place where they stand, `plan`
//! included. `tqkv` without a command is `demo`, whose defaults are read from its own argument definitions.

use std::path::PathBuf;

use crate::preset::{KvCodecs, PRESETS};
use clap::{Args, ValueEnum};
use tqkv::attention::AttentionCache;
use tqkv::cache::{Arithmetic, CacheSpec, Centring, KvCache};
use tqkv::error::CacheError;
use tqkv_core::{CodecId, KvShape};
use tqkv_model::{Config, Model};

use crate::args::{EncodeArgs, KvArgs, WindowArgs};
use crate::device::Place;
use crate::error::CliError;

/// Whether keys are stored less their mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CentreArg {
    /// Always.
    On,
    /// Never.
    Off,
    /// Where the mean holds a stated share of the energy.
    Auto,
}

/// Numbers in which single queries meet encoded tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ArithmeticArg {
    /// Signed bytes, exact integer sums: fast, the same on every machine.
    Int8,
    /// Exact levels, f32 sums.
    F32,
}

/// How the cache compresses.
#[derive(Debug, Args)]
pub(crate) struct CacheArgs {
    #[command(flatten)]
    kv: KvArgs,
    #[command(flatten)]
    window: WindowArgs,
    #[command(flatten)]
    encode: EncodeArgs,
    /// Subtract the keys' mean before encoding; attention adds its dot back.
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = CentreArg::Auto)]
    centre: CentreArg,
    /// Numbers in which single queries meet encoded tokens; chunks of eight and more are decoded.
    #[arg(long, value_name = "NUMBERS", value_enum, default_value_t = ArithmeticArg::Int8)]
    arithmetic: ArithmeticArg,
}

/// The uncompressed cache that others are compared with.
pub(crate) const F16: KvCodecs = KvCodecs { k: CodecId::F16, v: CodecId::F16 };

impl CacheArgs {
    /// The pairs asked for, in order; `default` where none was.
    pub(crate) fn pairs(&self, default: &[KvCodecs]) -> Vec<KvCodecs> {
        self.kv.pairs(default)
    }

    /// f16, then the pairs asked for, by default every preset.
    pub(crate) fn pairs_beside_f16(&self) -> Vec<KvCodecs> {
        let presets: Vec<_> = PRESETS.iter().map(|preset| preset.codecs).collect();
        let mut pairs = vec![F16];
        for pair in self.kv.pairs(&presets) {
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
        pairs
    }

    /// The tokens that stay uncompressed.
    pub(crate) fn window(&self) -> WindowArgs {
        self.window
    }

    /// Refuses sequences of `context` tokens, as `option` asked for, of which nothing would be compressed: every figure
    /// would be f16's own.
    pub(crate) fn check_compresses(&self, option: &str, context: usize) -> Result<(), CliError> {
        let WindowArgs { hot, sinks } = self.window;
        // Tokens leave the hot window in fours.
        let least = hot.saturating_add(sinks).saturating_add(4);
        if context >= least {
            return Ok(());
        }
        Err(CliError::bad_input(format_args!(
            "nothing would be compressed: of {context} tokens the first {sinks} and the newest {hot} stay f16; \
             accepted are {option} {least} and more, or smaller --hot and --sinks"
        )))
    }

    /// Bytes of an f16 cache on the CPU that got `prompt` tokens at once and then one by one up to `tokens`.
    pub(crate) fn f16_bytes(
        &self,
        config: &Config,
        prompt: usize,
        tokens: usize,
    ) -> Result<usize, CacheError> {
        // All KV heads of all layers are alike, so one tells.
        let spec = CacheSpec::new(1, 1, 1, config.head_dim).codecs(CodecId::F16, CodecId::F16);
        let mut cache = KvCache::new(spec.sinks(self.window.sinks).hot(self.window.hot))?;
        let zeros = vec![0.0; prompt * config.head_dim];
        cache.append(0, &zeros, &zeros)?;
        for _ in prompt..tokens {
            cache.append(0, &zeros[..config.head_dim], &zeros[..config.head_dim])?;
        }
        Ok(cache.stats().allocated_bytes * config.num_layers * config.num_kv_heads)
    }

    /// An empty cache in `place` for a model of this shape.
    pub(crate) fn cache(
        &self,
        place: &Place,
        config: &Config,
        codecs: KvCodecs,
    ) -> Result<Box<dyn AttentionCache>, CacheError> {
        match place {
            Place::Cpu => Ok(Box::new(self.cpu_cache(config, codecs)?)),
            #[cfg(feature = "cuda")]
            Place::Cuda { device, or_cpu } => {
                let spec = self.gpu_spec(config, codecs);
                match spec.check() {
                    Err(why) if *or_cpu => {
                        eprintln!("tqkv: --device auto: {why}; running on the CPU");
                        Ok(Box::new(self.cpu_cache(config, codecs)?))
                    }
                    _ => Ok(Box::new(tqkv::cuda::CudaCache::new(device, spec)?)),
                }
            }
        }
    }

    #[cfg(feature = "cuda")]
    fn gpu_spec(&self, config: &Config, codecs: KvCodecs) -> tqkv_gpu::GpuSpec {
        let Config { num_layers, num_heads, num_kv_heads, head_dim, context, .. } = *config;
        tqkv_gpu::GpuSpec::new(num_layers, num_heads, num_kv_heads, head_dim)
            .codecs(codecs.k, codecs.v)
            .options(self.encode.options())
            .sequences(1, context)
    }

    fn cpu_cache(&self, config: &Config, codecs: KvCodecs) -> Result<KvCache, CacheError> {
        KvCache::new(self.spec(config.kv_shape(), codecs))
    }

    /// A cache in main memory of this shape.
    pub(crate) fn spec(&self, shape: KvShape, codecs: KvCodecs) -> CacheSpec {
        let centring = match self.centre {
            CentreArg::On => Centring::On,
            CentreArg::Off => Centring::Off,
            CentreArg::Auto => Centring::Auto,
        };
        let arithmetic = match self.arithmetic {
            ArithmeticArg::Int8 => Arithmetic::Int8,
            ArithmeticArg::F32 => Arithmetic::F32,
        };
        CacheSpec::from(shape)
            .codecs(codecs.k, codecs.v)
            .options(self.encode.options())
            .sinks(self.window.sinks)
            .hot(self.window.hot)
            .centring(centring)
            .arithmetic(arithmetic)
    }
}

/// Which model.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// Folder with config.json, .safetensors and tokenizer.json [default: the shipped model].
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Scale some key channels up and the same query channels down, which leaves the model's function
    /// as it is and its keys with outliers.
    #[arg(long)]
    outlier_variant: bool,
    /// Add a constant of FACTOR times the mean key norm to every key of the first and last layer, which
    /// leaves the model's function as it is and its keys with a bias, as some large models have.
    #[arg(long, value_name = "FACTOR")]
    biased_keys: Option<f32>,
}

impl ModelArgs {
    /// Loads the model; an error names the folder and what it lacks.
    pub(crate) fn load(&self) -> Result<Model, CliError> {
        let loaded = match &self.model {
            None => Model::shipped(),
            Some(folder) if !folder.is_dir() => {
                return Err(CliError::bad_input(format_args!(
                    "{}: no such folder; accepted is one with config.json, .safetensors and tokenizer.json",
                    folder.display()
                )));
            }
            Some(folder) => Model::load(folder),
        };
        let model = if self.outlier_variant { loaded.and_then(Model::into_outlier_variant) } else { loaded };
        let model = match self.biased_keys {
            Some(factor) => model.and_then(|model| model.into_biased_variant(factor)),
            None => model,
        };
        model.map_err(|e| CliError::model(self.model.as_deref(), &e))
    }
}

/// What a setting is called in a table: the pair, and the preset's name where it is one.
pub(crate) fn label(pair: KvCodecs) -> String {
    match PRESETS.iter().find(|preset| preset.codecs == pair) {
        Some(preset) => format!("{pair} {}", preset.name),
        None => pair.to_string(),
    }
}
