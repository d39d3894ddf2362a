//! Arguments of the commands that run a model over a compressed cache. They open the model and make its
//! caches.
//!
//! `eval`, `generate` and `demo` are thin: they call the library with one cache factory per setting. The
//! first row of every comparison is the reference, `f16,f16` under the same window options. The pairs of
//! `--kv` follow, then the policies of `--policy`. `--hot` and `--sinks` default to
//! [`CacheSpec::DEFAULT_HOT`] and [`CacheSpec::DEFAULT_SINKS`], also in `plan`. `tqkv` without a command is
//! `demo`, with the defaults of its own argument definitions.

use std::path::{Path, PathBuf};

use crate::preset::{F16, Kv, KvCodecs, PRESETS};
use clap::{Args, ValueEnum};
use tqkv::attention::AttentionCache;
use tqkv::cache::{Arithmetic, Budget, CacheSpec, Centring, KvCache, LayerKind};
use tqkv::error::CacheError;
use tqkv_core::KvShape;
use tqkv_model::{Access, Config, Model};
use tqkv_reference::DecodedCache;

use crate::args::{EncodeArgs, KvArgs, ReferenceArgs, WindowArgs};
use crate::device::Place;
use crate::error::CliError;
use crate::output::Waiting;
use crate::policy::{self, LifeArgs, Policy, PolicyArg};

/// When the mean of the keys is subtracted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CentreArg {
    /// Always.
    On,
    /// Never.
    Off,
    /// If the mean holds enough of the energy of the keys.
    Auto,
}

/// Number format in which single queries meet encoded tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ArithmeticArg {
    /// Signed bytes with exact integer sums: fast, and equal on every machine.
    Int8,
    /// Exact levels with f32 sums.
    F32,
}

/// Options of the cache.
#[derive(Debug, Args)]
pub struct CacheArgs {
    #[command(flatten)]
    kv: KvArgs,
    /// A row with its own policy: codecs, then settings that differ from the options. May be repeated.
    /// Example: --policy "n4 hot=32 tier=256:n3 tier=512:n2". `--help` lists the settings.
    #[arg(long, value_name = "POLICY", long_help = policy::help())]
    policy: Vec<PolicyArg>,
    #[command(flatten)]
    life: LifeArgs,
    #[command(flatten)]
    encode: EncodeArgs,
    #[command(flatten)]
    reference: ReferenceArgs,
    /// Subtract the mean of the keys before encoding; attention adds its dot product back.
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = CentreArg::Auto)]
    centre: CentreArg,
    /// Number format in which queries meet encoded tokens. A query meets the tokens of its own chunk decoded.
    #[arg(long, value_name = "NUMBERS", value_enum, default_value_t = ArithmeticArg::Int8)]
    arithmetic: ArithmeticArg,
}

impl CacheArgs {
    /// The given pairs and policies, in order; the pairs of `default` if there are none.
    pub fn policies(&self, default: &[KvCodecs]) -> Vec<Policy> {
        self.life.policies(&self.kv, &self.policy, default)
    }

    /// The pairs of `--kv`, if any. A pair that no cache stores is an error, which names `what`.
    pub(crate) fn pairs(&self, what: &str) -> Result<Option<Vec<KvCodecs>>, CliError> {
        self.kv.own(what)
    }

    /// Refuses formats that no cache stores, because `what` needs a cache.
    pub fn check_stored(what: &str, policies: &[Policy]) -> Result<(), CliError> {
        let found = policies.iter().find(|policy| policy.is_reference());
        found.map_or(Ok(()), |policy| Err(CliError::not_stored(what, policy.name.kv)))
    }

    /// The row of f16, then the given rows; every preset if none is given.
    pub fn policies_beside_f16(&self) -> Vec<Policy> {
        let presets: Vec<KvCodecs> = PRESETS.iter().map(|preset| preset.codecs.into()).collect();
        let mut policies = vec![self.life.plain(F16)];
        for policy in self.policies(&presets) {
            if !policies.contains(&policy) {
                policies.push(policy);
            }
        }
        policies
    }

    /// Refuses policies that do not fit `base`, before any work is done.
    pub fn check(&self, place: &Place, base: &CacheSpec, policies: &[Policy]) -> Result<(), CliError> {
        let refused = |policy: &Policy, error| CliError::bad_input(format_args!("{}: {error}", policy.name));
        self.reference.check(policies.iter().flat_map(|policy| [policy.name.kv.k, policy.name.kv.v]))?;
        for policy in policies {
            match place {
                _ if policy.is_reference() => {
                    drop(self.decoded_cache(place, base, policy).map_err(|e| refused(policy, e))?);
                }
                Place::Cpu => {
                    drop(KvCache::new(self.spec(base.clone(), policy)).map_err(|e| refused(policy, e))?);
                }
                #[cfg(feature = "cuda")]
                Place::Cuda { or_cpu, .. } => match policy.refused_by_gpu() {
                    Some(why) if !or_cpu => return Err(CliError::bad_input(why)),
                    _ => {}
                },
            }
        }
        Ok(())
    }

    /// Refuses policies that do not fit a model, before any work is done. Files of moments must be of it.
    pub fn check_model(&self, place: &Place, config: &Config, policies: &[Policy]) -> Result<(), CliError> {
        let base = config.cache_spec();
        self.check(place, &base, policies)?;
        for policy in policies {
            let file = policy.apply(base.clone()).calibration;
            if file.is_some_and(|file| *file.model() != config.identity()) {
                return Err(CliError::bad_input(format_args!(
                    "{}: moments of another model: expected a file that tqkv calibrate made with this one",
                    policy.name
                )));
            }
        }
        Ok(())
    }

    /// Refuses a `context` so short that a policy would compress nothing: every figure would equal that of
    /// f16. `option` names the option that set `context`.
    pub fn check_compresses(policies: &[Policy], option: &str, context: usize) -> Result<(), CliError> {
        // Reference formats have no uncompressed window.
        let windowed = |policy: &&Policy| !policy.is_reference() && policy.name.kv != F16.into();
        for policy in policies.iter().filter(windowed) {
            let WindowArgs { hot, sinks } = policy.window;
            // Tokens leave the hot window four at a time.
            let least = hot.saturating_add(sinks).saturating_add(4);
            if context < least {
                return Err(CliError::bad_input(format_args!(
                    "nothing would be compressed: of {context} tokens the first {sinks} and the newest {hot} stay f16: \
                     expected {option} {least} or more, or smaller --hot and --sinks"
                )));
            }
        }
        Ok(())
    }

    /// Returns the bytes of f16 caches on the CPU, one per entry of `tokens`. Each cache takes `prompt`
    /// tokens at once, then single tokens up to its entry. If `shared`, all are forks of one cache that holds
    /// the prompt.
    pub(crate) fn f16_bytes(
        &self,
        config: &Config,
        prompt: usize,
        tokens: &[usize],
        shared: bool,
    ) -> Result<usize, CacheError> {
        // All KV heads of all layers of one kind are equal, so one head is measured per kind.
        let mut layers: Vec<(LayerKind, usize)> = Vec::new();
        for layer in 0..config.num_layers {
            let kind = config.cache_spec().kind(layer);
            match layers.iter_mut().find(|(of, _)| *of == kind) {
                Some((_, count)) => *count += 1,
                None => layers.push((kind, 1)),
            }
        }
        let bytes = layers.into_iter().map(|(kind, count)| {
            let mut base = config.cache_spec();
            let kv_heads = base.shape.num_kv_heads;
            base.shape = KvShape { num_layers: 1, num_heads: 1, num_kv_heads: 1, ..base.shape };
            base.sink_logits.clear();
            base.kinds = if config.kinds.is_empty() { Vec::new() } else { vec![kind] };
            let spec = self.spec(base, &self.life.plain(F16));
            Ok(layer_bytes(&spec, prompt, tokens, shared)? * count * kv_heads)
        });
        bytes.sum()
    }

    /// Makes an empty cache in `place` for a model of this shape.
    pub(crate) fn cache(
        &self,
        place: &Place,
        config: &Config,
        policy: &Policy,
    ) -> Result<Box<dyn AttentionCache>, CacheError> {
        match place {
            _ if policy.is_reference() => {
                Ok(Box::new(self.decoded_cache(place, &config.cache_spec(), policy)?))
            }
            Place::Cpu => Ok(Box::new(self.cpu_cache(config, policy)?)),
            #[cfg(feature = "cuda")]
            Place::Cuda { device, or_cpu } => {
                let spec = self.gpu_spec(config, policy);
                let slides = || {
                    // A sequence that fits the windows could be on the GPU, but its final length is not known
                    // here.
                    let why = "layers of the model slide, and a cache on the GPU has no windows";
                    (*or_cpu && !config.kinds.is_empty()).then(|| why.to_owned())
                };
                let refused = policy.refused_by_gpu().or_else(|| config.refused_by_gpu()).or_else(slides);
                match refused.clone().or_else(|| spec.check().err().map(|why| why.to_string())) {
                    Some(why) if *or_cpu => {
                        crate::output::note(format_args!("--device auto: {why}; running on the CPU"));
                        Ok(Box::new(self.cpu_cache(config, policy)?))
                    }
                    _ => match refused {
                        Some(why) => Err(CacheError::BadSpec(why)),
                        None => Ok(Box::new(tqkv::cuda::CudaCache::with_kinds(device, spec, &config.kinds)?)),
                    },
                }
            }
        }
    }

    #[cfg(feature = "cuda")]
    fn gpu_spec(&self, config: &Config, policy: &Policy) -> tqkv_gpu::GpuSpec {
        let CacheSpec { key, value, options, .. } = self.spec(config.cache_spec(), policy);
        let Config { num_layers, num_heads, num_kv_heads, head_dim, context, .. } = *config;
        tqkv_gpu::GpuSpec::new(num_layers, num_heads, num_kv_heads, head_dim)
            .codecs(key, value)
            .options(options)
            .sequences(1, context)
    }

    /// Makes an empty cache with the attention of `base` whose tokens pass through reference blocks.
    fn decoded_cache(
        &self,
        place: &Place,
        base: &CacheSpec,
        policy: &Policy,
    ) -> Result<DecodedCache, CacheError> {
        if !matches!(place, Place::Cpu) {
            let why = format!("{} is a format of the reference, which needs --device cpu", policy.name.kv);
            return Err(CacheError::BadSpec(why));
        }
        if !policy.is_uniform() || policy.name.policy.is_some() {
            let why = format!(
                "{}: formats of the reference have no policy; --tier, --spill and --layer-kv are for what caches store",
                policy.name
            );
            return Err(CacheError::BadSpec(why));
        }
        let Kv { k, v } = policy.name.kv;
        DecodedCache::new(base, [k, v], self.encode.options(), self.reference.rotation())
    }

    /// Makes an empty cache in main memory for a model of this shape.
    pub(crate) fn cpu_cache(&self, config: &Config, policy: &Policy) -> Result<KvCache, CacheError> {
        KvCache::new(self.spec(config.cache_spec(), policy))
    }

    /// The spec of a cache in main memory with the shape and the layer kinds of `base`.
    pub fn spec(&self, base: CacheSpec, policy: &Policy) -> CacheSpec {
        let centring = match self.centre {
            CentreArg::On => Centring::On,
            CentreArg::Off => Centring::Off,
            CentreArg::Auto => Centring::Auto,
        };
        let arithmetic = match self.arithmetic {
            ArithmeticArg::Int8 => Arithmetic::Int8,
            ArithmeticArg::F32 => Arithmetic::F32,
        };
        // The policy overrides the options.
        policy.apply(base.options(self.encode.options()).centring(centring).arithmetic(arithmetic))
    }
}

/// Bytes of the caches of one layer and KV head; see [`CacheArgs::f16_bytes`].
fn layer_bytes(spec: &CacheSpec, prompt: usize, tokens: &[usize], shared: bool) -> Result<usize, CacheError> {
    let KvShape { head_dim, value_dim, .. } = spec.shape;
    // A latent vector holds both key and value.
    let value_dim = if spec.position_dim > 0 { 0 } else { value_dim };
    let zeros = |dim: usize, tokens: usize| vec![0.0; dim * tokens];
    let budget = Budget::unlimited();
    let prompted = || {
        let mut cache = KvCache::within(spec.clone(), &budget)?;
        cache.append(0, &zeros(head_dim, prompt), &zeros(value_dim, prompt))?;
        Ok::<_, CacheError>(cache)
    };
    let (key, value) = (zeros(head_dim, 1), zeros(value_dim, 1));
    let first = prompted()?;
    let mut caches = Vec::with_capacity(tokens.len());
    for &tokens in tokens {
        let mut cache = if shared { first.fork()? } else { prompted()? };
        for _ in prompt..tokens {
            cache.append(0, &key, &value)?;
        }
        caches.push(cache);
    }
    drop(first);
    Ok(budget.used())
}

/// The model.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// The model: a .gguf file, or a folder [default: the shipped model].
    ///
    /// A folder holds config.json, .safetensors and tokenizer.json, or one .gguf file, or is a folder of a
    /// hub's cache.
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Read the weights from disk layer by layer, for a model that is larger than memory.
    ///
    /// The next layer is read while one is computed. The embedding and the output head stay in memory.
    #[arg(long, requires = "model")]
    stream_weights: bool,
    /// Begin texts without the model's BOS token.
    ///
    /// Some models predict badly without it. Figures of earlier versions had none.
    #[arg(long)]
    no_bos: bool,
}

impl ModelArgs {
    /// Loads the model. An error names the model and the missing part.
    pub fn load(&self) -> Result<Model, CliError> {
        let access = if self.stream_weights { Access::Streamed } else { Access::Mapped };
        let model = open_model(self.model.as_deref(), access)?;
        Ok(if self.no_bos { model.without_bos() } else { model })
    }
}

/// Opens a model, or the shipped one. An error names the model and the missing part.
pub(crate) fn open_model(path: Option<&Path>, access: Access) -> Result<Model, CliError> {
    let _waiting = Waiting::new("loading the model");
    let opened = match path {
        None => Model::shipped(),
        Some(path) if !path.exists() => {
            return Err(CliError::bad_input(format_args!(
                "{}: no such file or folder: expected {}",
                path.display(),
                tqkv_model::ACCEPTED
            )));
        }
        Some(path) => Model::open(path, access),
    };
    opened.map_err(|error| CliError::model(path, &error))
}
