//! The option `--kv` and the models of commands that run a model over a compressed cache, and their caches.
//!
//! `eval`, `generate` and `demo` are thin: they call the library with one cache factory per setting. The
//! first row of every comparison is the reference, `f16,f16`. A row for each `--kv` follows. `tqkv` without a
//! command is `demo`, with the defaults of its own argument definitions.

use std::path::{Path, PathBuf};

use crate::preset::{F16, Kv, KvCodecs};
use clap::Args;
use tqkv::attention::AttentionCache;
use tqkv::cache::{Budget, CacheSpec, KvCache, LayerKind, PRESETS};
use tqkv::error::CacheError;
use tqkv_core::{CodecId, KvShape, Options};
use tqkv_model::compress::CompressSpec;
use tqkv_model::{Access, Config, Model, ModelError, ModelKv, shipped};
use tqkv_reference::{Choice, DecodedCache, WindowedCache};

use crate::device::Place;
use crate::error::CliError;
use crate::names;
use crate::output::Waiting;
use crate::plan::{CacheShape, PlanSource};
use crate::policy::{self, Policy, Uncompressed};

/// The caches to compare.
#[derive(Debug, Args)]
pub struct CacheArgs {
    /// The cache: a preset (balanced), a codec (s4), two as K,V (t4,t2), or a text with settings, such as
    /// "t4,t2 hot=32 tier=4096:t2". May be repeated.
    #[arg(long = "kv", visible_alias = "kv-cache-dtype", value_name = "CACHE", long_help = policy::short_help())]
    kv: Vec<Policy>,
    /// Codec of K, with the option name of llama.cpp; the codec of V is f16 unless given.
    #[arg(long, value_name = "CODEC", value_parser = names::choice, conflicts_with = "kv")]
    cache_type_k: Option<Choice>,
    /// Codec of V, with the option name of llama.cpp; the codec of K is f16 unless given.
    #[arg(long, value_name = "CODEC", value_parser = names::choice, conflicts_with = "kv")]
    cache_type_v: Option<Choice>,
}

impl CacheArgs {
    /// The given rows, in order; empty if none is given.
    pub(crate) fn given(&self) -> Vec<Policy> {
        if self.cache_type_k.is_none() && self.cache_type_v.is_none() {
            return self.kv.clone();
        }
        let f16 = Choice::Core(CodecId::F16);
        let (k, v) = (self.cache_type_k.unwrap_or(f16), self.cache_type_v.unwrap_or(f16));
        vec![Kv { k, v }.into()]
    }

    /// The given rows, in order; those of `default` if none is given.
    pub fn policies(&self, default: impl FnOnce() -> Vec<Policy>) -> Vec<Policy> {
        let given = self.given();
        if given.is_empty() { default() } else { given }
    }

    /// The given rows, in order; the preset balanced if none is given.
    pub(crate) fn or_balanced(&self) -> Vec<Policy> {
        let balanced = || PRESETS.iter().filter(|preset| preset.name == "balanced");
        self.policies(|| balanced().map(Policy::from).collect())
    }

    /// The pairs of codecs, if any is given. A row that is more or less than a pair that caches store is an
    /// error, which names `what`.
    pub(crate) fn pairs(&self, what: &str) -> Result<Option<Vec<KvCodecs>>, CliError> {
        let pair = |policy: &Policy| match &policy.name.policy {
            Some(text) => Err(CliError::bad_input(format_args!(
                "{what} takes codecs without settings: expected --kv K,V, not \"{text}\""
            ))),
            None => policy.name.kv.own().ok_or_else(|| CliError::not_stored(what, &policy.name)),
        };
        let pairs = self.given().iter().map(pair).collect::<Result<Vec<_>, _>>()?;
        Ok(Some(pairs).filter(|pairs| !pairs.is_empty()))
    }

    /// The row of f16, then the given rows; every preset that a cache at `place` can have if none is given.
    pub fn policies_beside_f16(&self, place: &Place) -> Vec<Policy> {
        let presets = || PRESETS.iter().map(Policy::from).filter(|policy| place.holds(policy)).collect();
        let mut policies = vec![Policy::from(F16)];
        for policy in self.policies(presets) {
            if !policies.contains(&policy) {
                policies.push(policy);
            }
        }
        policies
    }
}

/// Refuses formats that no cache stores, because `what` needs a cache.
pub fn check_stored(what: &str, policies: &[Policy]) -> Result<(), CliError> {
    let found = policies.iter().find(|policy| policy.is_reference());
    found.map_or(Ok(()), |policy| Err(CliError::not_stored(what, &policy.name)))
}

/// Refuses policies that do not fit `base`, before any work is done.
pub fn check(place: &Place, base: &CacheSpec, policies: &[Policy]) -> Result<(), CliError> {
    let refused = |policy: &Policy, error| CliError::bad_input(format_args!("{}: {error}", policy.name));
    for policy in policies {
        match place {
            _ if policy.is_reference() => {
                drop(simulated_cache(place, base, policy).map_err(|e| refused(policy, e))?);
            }
            Place::Cpu => {
                drop(KvCache::new(policy.apply(base.clone())).map_err(|e| refused(policy, e))?);
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

/// Refuses policies that do not fit a model, before any work is done.
pub fn check_model(place: &Place, config: &Config, policies: &[Policy]) -> Result<(), CliError> {
    check(place, &config.cache_spec(), policies)
}

/// Refuses a `context` so short that a policy would compress nothing: every figure would equal that of f16.
/// `option` names the option that set `context`.
pub fn check_compresses(policies: &[Policy], option: &str, context: usize) -> Result<(), CliError> {
    for policy in policies.iter().filter(|policy| policy.is_compressed()) {
        let (Uncompressed { sinks, hot }, least) = (policy.window(), policy.least_compressed());
        if context < least {
            return Err(CliError::bad_input(format_args!(
                "nothing would be compressed: of {context} tokens the first {sinks} and the newest {hot} stay f16: \
                 expected {option} {least} or more, or smaller hot= and sinks= in --kv"
            )));
        }
    }
    Ok(())
}

/// Returns the bytes of f16 caches on the CPU, one per entry of `tokens`. Each cache takes `prompt`
/// tokens at once, then single tokens up to its entry. If `shared`, all are forks of one cache that holds
/// the prompt.
pub(crate) fn f16_bytes(
    config: &Config,
    prompt: usize,
    tokens: &[usize],
    shared: bool,
) -> Result<usize, CacheError> {
    // All KV heads of equal layers take equal bytes, so one head is measured for them.
    let base = config.cache_spec().codecs(F16.k, F16.v);
    let mut heads: Vec<(CacheSpec, usize)> = Vec::new();
    for layer in (0..config.num_layers).filter(|&layer| base.kind(layer) != LayerKind::None) {
        let mut one = base.one_layer(layer)?;
        let count = one.shape.num_kv_heads;
        (one.shape.num_heads, one.shape.num_kv_heads) = (1, 1);
        // They take no bytes of a token.
        one.sink_logits.clear();
        // In f16 a window of the model holds as much with any hot window, which must not be wider.
        if let LayerKind::Sliding(window) = one.kind(0) {
            one.hot = one.hot.min(window);
        }
        match heads.iter_mut().find(|(of, _)| *of == one) {
            Some((_, known)) => *known += count,
            None => heads.push((one, count)),
        }
    }
    heads.iter().map(|(spec, count)| Ok(head_bytes(spec, prompt, tokens, shared)? * count)).sum()
}

/// Makes an empty cache in `place` for a model of this shape.
pub(crate) fn cache(
    place: &Place,
    config: &Config,
    policy: &Policy,
) -> Result<Box<dyn AttentionCache>, CacheError> {
    match place {
        _ if policy.is_reference() => simulated_cache(place, &config.cache_spec(), policy),
        Place::Cpu => Ok(Box::new(cpu_cache(config, policy)?)),
        #[cfg(feature = "cuda")]
        Place::Cuda { device, or_cpu } => {
            let spec = gpu_spec(config, policy);
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
                    Ok(Box::new(cpu_cache(config, policy)?))
                }
                _ => match refused {
                    Some(why) => Err(CacheError::BadSpec(why)),
                    None => Ok(Box::new(tqkv::cuda::CudaCache::new(device, spec, &config.kinds)?)),
                },
            }
        }
    }
}

#[cfg(feature = "cuda")]
fn gpu_spec(config: &Config, policy: &Policy) -> tqkv_gpu::GpuSpec {
    let CacheSpec { key, value, options, sinks, hot, max_tokens, .. } = policy.apply(config.cache_spec());
    let Config { num_layers, num_heads, num_kv_heads, head_dim, context, .. } = *config;
    tqkv_gpu::GpuSpec::new(num_layers, num_heads, num_kv_heads, head_dim)
        .codecs(key, value)
        .options(options)
        .exact(sinks, hot)
        .sequences(1, max_tokens.unwrap_or(context))
}

/// Makes an empty cache with the attention of `base` whose tokens pass through reference blocks, or through
/// another program.
fn simulated_cache(
    place: &Place,
    base: &CacheSpec,
    policy: &Policy,
) -> Result<Box<dyn AttentionCache>, CacheError> {
    if !matches!(place, Place::Cpu) {
        let why = format!("{} is a format of the reference, which needs --device cpu", policy.name);
        return Err(CacheError::BadSpec(why));
    }
    if let Some(command) = policy.program() {
        return Ok(Box::new(WindowedCache::of_program(&policy.apply(base.clone()), command)?));
    }
    let Kv { k, v } = policy.name.kv;
    if policy.is_windowed_yardstick() {
        let spec = policy.apply(base.clone());
        return Ok(Box::new(WindowedCache::of_formats(&spec, [k, v], Options::DEFAULT)?));
    }
    Ok(Box::new(DecodedCache::new(base, [k, v], Options::DEFAULT, None)?))
}

/// Makes an empty cache in main memory for a model of this shape.
pub(crate) fn cpu_cache(config: &Config, policy: &Policy) -> Result<KvCache, CacheError> {
    KvCache::new(policy.apply(config.cache_spec()))
}

/// Bytes of the caches of one layer and KV head; see [`f16_bytes`].
fn head_bytes(spec: &CacheSpec, prompt: usize, tokens: &[usize], shared: bool) -> Result<usize, CacheError> {
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
    #[arg(short, long, value_name = "PATH", group = "which_model")]
    model: Option<PathBuf>,
    /// Read the weights from disk layer by layer, for a model that is larger than memory.
    ///
    /// The next layer is read while one is computed. The embedding and the output head stay in memory.
    #[arg(long, requires = "which_model")]
    stream_weights: bool,
    /// Encode the weights while they are loaded: BITS per weight, and 8 for the embedding and the output head.
    ///
    /// Products are computed on the codes, which take less time to read than the weights, and only they stay in
    /// memory. `tqkv weights compress` does the same once and for all, and measures what it costs.
    #[arg(long, value_name = "BITS", requires = "which_model", conflicts_with = "stream_weights",
        value_parser = names::weight_bits())]
    weight_bits: Option<CodecId>,
    /// Begin texts without the model's BOS token.
    ///
    /// Some models predict badly without it. Figures of earlier versions had none.
    #[arg(long)]
    no_bos: bool,
}

impl ModelArgs {
    /// Loads the model. An error names the model and the missing part.
    pub fn load(&self) -> Result<Model, CliError> {
        self.load_or(None)
    }

    /// Loads the model of the option, or of the path.
    fn load_or(&self, path: Option<&Path>) -> Result<Model, CliError> {
        let path = self.model.as_deref().or(path);
        let model = match self.weight_bits {
            None if self.stream_weights => open_model(path, |path| Model::open(path, Access::Streamed)),
            None => open_model(path, |path| Model::load(path)),
            Some(codec) => {
                let spec = CompressSpec { codec, ..CompressSpec::DEFAULT };
                open_model(path, |path| Model::load_coded(path, &spec))
            }
        }?;
        Ok(if self.no_bos { model.without_bos() } else { model })
    }
}

/// The model, which may also be the command's argument.
#[derive(Debug, Args)]
pub(crate) struct ModelArgument {
    /// The model, as --model has it.
    #[arg(value_name = "MODEL", group = "which_model")]
    path: Option<PathBuf>,
    #[command(flatten)]
    options: ModelArgs,
}

impl ModelArgument {
    /// Loads the model. An error names the model and the missing part.
    pub(crate) fn load(&self) -> Result<Model, CliError> {
        self.options.load_or(self.path.as_deref())
    }

    /// What the model keeps of each token.
    pub(crate) fn shape(&self) -> Result<CacheShape, CliError> {
        match self.options.model.as_deref().or(self.path.as_deref()) {
            Some(path) => Ok(PlanSource::read(path)?.shape()),
            None => {
                let kv =
                    ModelKv::from_json(shipped::CONFIG).map_err(|error| CliError::model(None, &error))?;
                Ok(CacheShape::from(&kv))
            }
        }
    }
}

/// Opens a model, or the shipped one. An error names the model and the missing part.
pub(crate) fn open_model(
    path: Option<&Path>,
    open: impl FnOnce(&Path) -> Result<Model, ModelError>,
) -> Result<Model, CliError> {
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
        Some(path) => open(path),
    };
    opened.map_err(|error| CliError::model(path, &error))
}
