//! Text generation over any cache, with its speed.
//!
//! One sequence at a time: prefill, then one token a step. For figures of quality use [`crate::eval`].

use std::ops::ControlFlow;
use std::time::Instant;

use crate::sampling::Sampler;
use crate::tokenizer::TextStream;
use crate::{Model, ModelError, SpecialTokens};
use tqkv::attention::AttentionCache;

/// What to generate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GenerateSpec {
    /// Tokens to generate at most; an end token of the model stops earlier.
    pub max_new_tokens: usize,
    /// 0 for greedy, otherwise the softmax temperature.
    pub temperature: f32,
    /// Seed of the draws; of no effect when greedy.
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
    /// `max_new_tokens` were made.
    Length,
    /// The model ended the text.
    EndOfText,
    /// The callback asked to stop.
    Cancelled,
}

/// What was generated, and how fast.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// The new text, without the prompt.
    pub text: String,
    /// The new tokens, without an end token.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Wall time of the prompt.
    pub prefill_seconds: f64,
    /// Tokens run through the model one by one after the prompt.
    pub decode_steps: usize,
    /// Wall time of those steps, sampling included.
    pub decode_seconds: f64,
    /// Bytes the cache held at the end.
    pub cache_bytes: usize,
    /// Tokens the cache held at the end.
    pub cache_tokens: usize,
    /// Why it ended.
    pub stop: StopReason,
}

impl Generation {
    /// Prompt tokens a second.
    pub fn prefill_tokens_per_second(&self) -> f64 {
        rate(self.prompt_tokens, self.prefill_seconds)
    }

    /// Generated tokens a second after the prompt; 0 where there was no such step.
    pub fn decode_tokens_per_second(&self) -> f64 {
        rate(self.decode_steps, self.decode_seconds)
    }
}

fn rate(count: usize, seconds: f64) -> f64 {
    if count == 0 || seconds <= 0.0 { 0.0 } else { count as f64 / seconds }
}

/// Continues `prompt` in `cache`, which is reset first.
///
/// `on_text` receives the new text piece by piece, in whole characters (a token that opens a character passes an
/// empty piece, so it is called once a token); returning `Break` ends the generation with what there is.
///
/// # Errors
/// [`ModelError::EmptyPrompt`], [`ModelError::ContextExceeded`] where prompt and new tokens do not fit the context,
/// [`ModelError::BadTemperature`], [`ModelError::NonFiniteLogits`], and those of the tokeniser and the cache.
pub fn generate(
    model: &Model,
    prompt: &[u8],
    spec: &GenerateSpec,
    cache: &mut dyn AttentionCache,
    on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<Generation, ModelError> {
    let mut sampler = Sampler::new(spec.temperature, spec.seed)?;
    let prompt = model.tokenizer().encode(prompt, SpecialTokens::Add)?;
    if prompt.is_empty() {
        return Err(ModelError::EmptyPrompt);
    }
    let context = model.config().context;
    if prompt.len().saturating_add(spec.max_new_tokens) > context {
        return Err(ModelError::ContextExceeded { prompt: prompt.len(), new: spec.max_new_tokens, context });
    }
    cache.reset();

    let clock = Instant::now();
    let mut logits = last_logits(model, &prompt, 0, cache)?;
    let prefill_seconds = clock.elapsed().as_secs_f64();

    let clock = Instant::now();
    let mut stream = TextStream::new(model.tokenizer());
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
        // The text is complete; there is nothing left to break off.
        let _ = on_text(&rest);
    }
    Ok(Generation {
        text,
        tokens,
        prompt_tokens: prompt.len(),
        prefill_seconds,
        decode_steps,
        decode_seconds,
        cache_bytes: cache.allocated_bytes(),
        cache_tokens: cache.len(),
        stop,
    })
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
