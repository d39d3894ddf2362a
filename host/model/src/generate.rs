//! Generates text with any cache, and measures the speed.
//!
//! One sequence, or several that continue one prompt: prefill, then one token of each per step. For figures
//! of quality use [`crate::eval`].

use std::ops::ControlFlow;
use std::time::Instant;

use crate::eval::CacheFactory;
use crate::sampling::Sampler;
use crate::tokenizer::TextStream;
use crate::{Model, ModelError};
use tqkv::attention::AttentionCache;
use tqkv::cache::KvCache;

/// Settings of a generation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GenerateSpec {
    /// The most tokens to generate. An end token of the model stops earlier.
    pub max_new_tokens: usize,
    /// 0 for greedy, otherwise the softmax temperature.
    pub temperature: f32,
    /// Seed of the draws. Has no effect at temperature 0.
    pub seed: u64,
}

impl Default for GenerateSpec {
    /// 200 tokens, greedy.
    fn default() -> Self {
        Self { max_new_tokens: 200, temperature: 0.0, seed: 42 }
    }
}

/// Why generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// `max_new_tokens` tokens were generated.
    Length,
    /// The model ended the text.
    EndOfText,
    /// The callback asked to stop.
    Cancelled,
}

/// The result of a generation, and its speed.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// The new text, without the prompt.
    pub text: String,
    /// The new tokens, without an end token.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt that ran; a conversation's earlier turns are in the cache already.
    pub prompt_tokens: usize,
    /// Wall time of the prompt.
    pub prefill_seconds: f64,
    /// Tokens run through the model one by one after the prompt.
    pub decode_steps: usize,
    /// Wall time of these steps, sampling included.
    pub decode_seconds: f64,
    /// Bytes that the cache held at the end.
    pub cache_bytes: usize,
    /// Tokens that the cache held at the end.
    pub cache_tokens: usize,
    /// Why generation ended.
    pub stop: StopReason,
}

impl Generation {
    /// Prompt tokens per second.
    pub fn prefill_tokens_per_second(&self) -> f64 {
        rate(self.prompt_tokens, self.prefill_seconds)
    }

    /// Generated tokens per second after the prompt. 0 if there was no such step.
    pub fn decode_tokens_per_second(&self) -> f64 {
        rate(self.decode_steps, self.decode_seconds)
    }
}

fn rate(count: usize, seconds: f64) -> f64 {
    if count == 0 || seconds <= 0.0 { 0.0 } else { count as f64 / seconds }
}

/// Continues `prompt` in `cache`, after a reset of the cache.
///
/// `on_text` receives the new text piece by piece, in complete characters. It is called once per token. The
/// piece is empty if the token does not complete a character. `Break` ends the generation and keeps the text
/// so far.
///
/// # Errors
/// [`ModelError::EmptyPrompt`], [`ModelError::ContextExceeded`] if prompt and new tokens do not fit in the
/// context, [`ModelError::BadTemperature`], [`ModelError::NonFiniteLogits`], and errors of tokeniser and
/// cache.
pub fn generate(
    model: &Model,
    prompt: &[u8],
    spec: &GenerateSpec,
    cache: &mut dyn AttentionCache,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<Generation, ModelError> {
    let prompt = encode_prompt(model, prompt, spec)?;
    cache.reset();
    generate_after(model, &prompt, 0, spec, cache, on_text)
}

/// Continues `prompt` in a cache that holds its first `held` tokens and no others; `held` is below the length.
pub(crate) fn generate_after(
    model: &Model,
    prompt: &[u32],
    held: usize,
    spec: &GenerateSpec,
    cache: &mut dyn AttentionCache,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<Generation, ModelError> {
    let mut sampler = Sampler::new(spec.temperature, spec.seed)?;
    let clock = Instant::now();
    let mut logits = last_logits(model, &prompt[held..], held, cache)?;
    let prefill_seconds = clock.elapsed().as_secs_f64();

    let clock = Instant::now();
    let mut stream = TextStream::after(model.tokenizer(), prompt);
    let (mut text, mut tokens, mut decode_steps) = (String::new(), Vec::new(), 0);
    let mut stop = StopReason::Length;
    while tokens.len() < spec.max_new_tokens {
        let position = prompt.len() + tokens.len() - 1;
        let token = sampler.pick(&logits).ok_or(ModelError::NonFiniteLogits { position })? as u32;
        if model.config().eos_tokens.contains(&token) {
            stop = StopReason::EndOfText;
            break;
        }
        tokens.push(token);
        let piece = stream.push(token)?;
        text.push_str(&piece);
        if on_text(&piece).is_break() {
            stop = StopReason::Cancelled;
            break;
        }
        if tokens.len() < spec.max_new_tokens {
            logits = last_logits(model, &[token], position + 1, cache)?;
            decode_steps += 1;
        }
    }
    let decode_seconds = clock.elapsed().as_secs_f64();
    let rest = stream.finish()?;
    if !rest.is_empty() {
        text.push_str(&rest);
        // The text is complete, so there is nothing left to cancel.
        let _ = on_text(&rest);
    }
    Ok(Generation {
        text,
        tokens,
        prompt_tokens: prompt.len() - held,
        prefill_seconds,
        decode_steps,
        decode_seconds,
        cache_bytes: cache.allocated_bytes(),
        cache_tokens: cache.len(),
        stop,
    })
}

/// Encodes a prompt, and checks that the context has room for the new tokens.
pub(crate) fn encode_prompt(
    model: &Model,
    prompt: &[u8],
    spec: &GenerateSpec,
) -> Result<Vec<u32>, ModelError> {
    let prompt = model.tokenizer().encode(prompt, model.special)?;
    if prompt.is_empty() {
        return Err(ModelError::EmptyPrompt);
    }
    let context = model.config().context;
    if prompt.len().saturating_add(spec.max_new_tokens) > context {
        return Err(ModelError::ContextExceeded { prompt: prompt.len(), new: spec.max_new_tokens, context });
    }
    Ok(prompt)
}

fn last_logits(
    model: &Model,
    tokens: &[u32],
    start: usize,
    cache: &mut dyn AttentionCache,
) -> Result<Vec<f32>, ModelError> {
    let hidden = model.hidden(tokens, start, cache, &mut |_, _, _| {})?;
    Ok(model.logits(&hidden[hidden.len() - model.config().hidden_size..]))
}

/// One of several continuations of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Continuation {
    /// The new text, without the prompt.
    pub text: String,
    /// The new tokens, without an end token.
    pub tokens: Vec<u32>,
    /// Bytes that its cache held at the end, shared ones included.
    pub cache_bytes: usize,
    /// Tokens that its cache held at the end.
    pub cache_tokens: usize,
    /// Why generation ended.
    pub stop: StopReason,
}

/// Several continuations of one prompt, and their speed.
#[derive(Debug, Clone, PartialEq)]
pub struct Continuations {
    /// The sequences in the order of their seeds.
    pub sequences: Vec<Continuation>,
    /// Bytes that the caches held together at the end. Shared bytes count once.
    pub cache_bytes: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Wall time until every cache held the prompt.
    pub prefill_seconds: f64,
    /// Tokens run through the model after the prompt, over all sequences.
    pub decode_tokens: usize,
    /// Wall time of these tokens, sampling included.
    pub decode_seconds: f64,
}

impl Continuations {
    /// Prompt tokens per second. The prompt counts once.
    pub fn prefill_tokens_per_second(&self) -> f64 {
        rate(self.prompt_tokens, self.prefill_seconds)
    }

    /// Generated tokens of all sequences per second after the prompt. 0 if there was no such step.
    pub fn decode_tokens_per_second(&self) -> f64 {
        rate(self.decode_tokens, self.decode_seconds)
    }
}

/// A sequence in progress.
struct LiveSequence<'a> {
    cache: Box<dyn AttentionCache>,
    sampler: Sampler,
    stream: TextStream<'a>,
    /// Logits of the next token.
    logits: Vec<f32>,
    text: String,
    tokens: Vec<u32>,
    /// `None` until the sequence ends.
    stop: Option<StopReason>,
}

/// The source of the caches of several sequences.
pub enum Caches<'a> {
    /// Makes an empty cache per sequence. The prompt runs through each of them. For caches that cannot be
    /// forked.
    Each(&'a CacheFactory<'a>),
    /// The prompt runs once, in this cache. The other sequences get forks of it, which share its pages until
    /// they write to them. The cache's budget counts the bytes of all together, so no other cache should use
    /// it.
    Forked(Box<KvCache>),
}

/// Continues `prompt` `count` times. Each sequence has its own cache, and all share one forward pass per step
/// ([`Model::step_many`]). Sequence i draws with the seed `spec.seed + i`. It equals the result of
/// [`generate`] with that seed, except for rounding.
///
/// `on_step` receives the number of tokens that the step chose. `Break` ends all sequences and keeps their
/// text so far.
///
/// # Errors
/// The errors of [`generate`].
pub fn generate_many(
    model: &Model,
    prompt: &[u8],
    spec: &GenerateSpec,
    count: usize,
    caches: Caches<'_>,
    on_step: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<Continuations, ModelError> {
    let prompt = encode_prompt(model, prompt, spec)?;
    let clock = Instant::now();
    let budget = match &caches {
        Caches::Each(_) => None,
        Caches::Forked(cache) => Some(cache.budget().clone()),
    };
    let mut sequences = with_prompt(model, &prompt, count, caches)?
        .into_iter()
        .zip(0..)
        .map(|((cache, logits), i)| {
            Ok(LiveSequence {
                cache,
                sampler: Sampler::new(spec.temperature, spec.seed.wrapping_add(i))?,
                stream: TextStream::after(model.tokenizer(), &prompt),
                logits,
                text: String::new(),
                tokens: Vec::new(),
                stop: None,
            })
        })
        .collect::<Result<Vec<_>, ModelError>>()?;
    let prefill_seconds = clock.elapsed().as_secs_f64();

    let clock = Instant::now();
    let mut decode_tokens = 0;
    for made in 0..spec.max_new_tokens {
        let position = prompt.len() + made;
        let mut picked = 0;
        for sequence in sequences.iter_mut().filter(|sequence| sequence.stop.is_none()) {
            picked += usize::from(sequence.pick(model, position - 1)?);
        }
        let stopped = picked > 0 && on_step(picked).is_break();
        let mut live: Vec<_> = sequences.iter_mut().filter(|sequence| sequence.stop.is_none()).collect();
        if stopped {
            live.iter_mut().for_each(|sequence| sequence.stop = Some(StopReason::Cancelled));
        }
        if stopped || live.is_empty() || made + 1 == spec.max_new_tokens {
            break;
        }
        decode_tokens += live.len();
        step(model, position, &mut live)?;
    }
    let decode_seconds = clock.elapsed().as_secs_f64();
    let own_bytes = || sequences.iter().map(|sequence| sequence.cache.allocated_bytes()).sum();
    let cache_bytes = budget.map_or_else(own_bytes, |budget| budget.used());
    let sequences = sequences.into_iter().map(LiveSequence::finish).collect::<Result<_, _>>()?;
    Ok(Continuations {
        sequences,
        cache_bytes,
        prompt_tokens: prompt.len(),
        prefill_seconds,
        decode_tokens,
        decode_seconds,
    })
}

/// A cache that holds a prompt, and the logits after the prompt.
type Prompted = (Box<dyn AttentionCache>, Vec<f32>);

/// Makes `count` caches that hold `prompt`.
fn with_prompt(
    model: &Model,
    prompt: &[u32],
    count: usize,
    caches: Caches<'_>,
) -> Result<Vec<Prompted>, ModelError> {
    let mut prompted = Vec::with_capacity(count);
    match caches {
        Caches::Each(new_cache) => {
            for _ in 0..count {
                let mut cache = new_cache()?;
                let logits = last_logits(model, prompt, 0, &mut *cache)?;
                prompted.push((cache, logits));
            }
        }
        Caches::Forked(mut cache) => {
            cache.reset();
            let logits = last_logits(model, prompt, 0, &mut *cache)?;
            for _ in 1..count {
                let fork: Box<dyn AttentionCache> = Box::new(cache.fork()?);
                prompted.push((fork, logits.clone()));
            }
            if count > 0 {
                prompted.push((cache, logits));
            }
        }
    }
    Ok(prompted)
}

/// Runs the newest token of every sequence. All are at `position`.
fn step(model: &Model, position: usize, live: &mut [&mut LiveSequence<'_>]) -> Result<(), ModelError> {
    let tokens: Vec<u32> = live.iter().filter_map(|sequence| sequence.tokens.last().copied()).collect();
    let mut caches: Vec<&mut dyn AttentionCache> =
        live.iter_mut().map(|sequence| &mut *sequence.cache as &mut dyn AttentionCache).collect();
    let logits = model.step_many(&tokens, &vec![position; tokens.len()], &mut caches)?;
    for (sequence, row) in live.iter_mut().zip(logits.chunks_exact(model.config().vocab_size)) {
        sequence.logits.clear();
        sequence.logits.extend_from_slice(row);
    }
    Ok(())
}

impl LiveSequence<'_> {
    /// Chooses the token after `position`. Returns false if the model ended the text.
    fn pick(&mut self, model: &Model, position: usize) -> Result<bool, ModelError> {
        let token = self.sampler.pick(&self.logits).ok_or(ModelError::NonFiniteLogits { position })? as u32;
        if model.config().eos_tokens.contains(&token) {
            self.stop = Some(StopReason::EndOfText);
            return Ok(false);
        }
        self.tokens.push(token);
        self.text.push_str(&self.stream.push(token)?);
        Ok(true)
    }

    fn finish(mut self) -> Result<Continuation, ModelError> {
        self.text.push_str(&self.stream.finish()?);
        Ok(Continuation {
            text: self.text,
            tokens: self.tokens,
            cache_bytes: self.cache.allocated_bytes(),
            cache_tokens: self.cache.len(),
            stop: self.stop.unwrap_or(StopReason::Length),
        })
    }
}
