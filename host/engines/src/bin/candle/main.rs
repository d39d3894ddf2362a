//! A Llama of candle over a cache of tqkv. candle reads the file and multiplies; the cache stores keys and
//! values and attends.
//!
//! ```text
//! cargo run --release --features candle --bin candle -- MODEL.gguf [PROMPT|PROMPT.. [POLICY..]]
//! ```
//!
//! It writes the same continuations several times: with candle's own caches in f16, with our cache of slots in
//! f16, and with ours in codes. All prompts are continued in one batch. Codes are `t4,t3` or the given policies
//! (`docs/options.md`). It prints the bytes of each cache. The interface is [`ModelAttention`].

mod attention;
mod llama;
#[cfg(test)]
mod tests;

use anyhow::{Context, Result, bail};
use attention::{CandleCaches, ModelAttention, Shape, Slots};
use candle_core::quantized::gguf_file::Content;
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use llama::Llama;
use std::fs::File;
use std::io::BufReader;
use std::time::Instant;
use tokenizers::Tokenizer;
use tqkv::cache::CacheSpec;

/// Tokens to generate for each prompt.
const TOKENS: usize = 400;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().context("usage: candle MODEL.gguf [PROMPT|PROMPT.. [POLICY..]]")?;
    let prompts = arguments.next().unwrap_or_else(|| "A compressed cache is|Once upon a time".to_owned());
    let policies: Vec<String> = arguments.collect();
    let policies = if policies.is_empty() { vec!["t4,t3".to_owned()] } else { policies };

    let mut file = BufReader::new(File::open(&path).with_context(|| path.clone())?);
    let content = Content::read(&mut file).with_context(|| path.clone())?;
    let tokenizer = Tokenizer::from_gguf(&content)?;
    let model = Llama::read(content, &mut file).with_context(|| path.clone())?;
    let encode = |prompt| Ok(tokenizer.encode(prompt, true).map_err(anyhow::Error::msg)?.get_ids().to_vec());
    let prompts: Vec<Vec<u32>> = prompts.split('|').map(encode).collect::<Result<_>>()?;

    let expected =
        show("candle, f16", &model, &mut CandleCaches::new(&model.shape), &tokenizer, &prompts, None)?;
    let slots = prompts.iter().map(|prompt| prompt.len() + TOKENS).sum();
    for policy in std::iter::once("f16").chain(policies.iter().map(String::as_str)) {
        let mut cache = Slots::new(spec(&model.shape, policy)?, slots)?;
        show(&format!("tqkv, {policy}"), &model, &mut cache, &tokenizer, &prompts, Some(&expected))?;
    }
    Ok(())
}

/// The spec of a cache for the model.
fn spec(shape: &Shape, policy: &str) -> Result<CacheSpec> {
    let Shape { num_layers, num_heads, num_kv_heads, head_dim } = shape;
    let text = format!("layers={num_layers} heads={num_heads} kv-heads={num_kv_heads} head-dim={head_dim}");
    Ok(format!("{text} {policy}").parse()?)
}

/// The continuations of some prompts, and the tokens and bytes of the cache when it held the most tokens.
struct Written {
    texts: Vec<Vec<u32>>,
    held: usize,
    bytes: usize,
}

/// Generates the likeliest tokens after some prompts, at most `most` each, all in one batch.
fn generate(
    model: &Llama,
    cache: &mut dyn ModelAttention,
    prompts: &[Vec<u32>],
    most: usize,
) -> Result<Written> {
    if prompts.iter().any(Vec::is_empty) {
        bail!("a prompt is empty");
    }
    let mut written = Written { texts: vec![Vec::new(); prompts.len()], held: 0, bytes: 0 };
    let mut step: Vec<(usize, Vec<u32>)> = prompts.iter().cloned().enumerate().collect();
    while !step.is_empty() {
        let next = model.next(&step, cache)?;
        let held = step.iter().map(|(sequence, _)| prompts[*sequence].len() + written.texts[*sequence].len());
        let held: usize = held.sum();
        if held > written.held {
            (written.held, written.bytes) = (held, cache.bytes());
        }
        let sequences: Vec<usize> = step.iter().map(|(sequence, _)| *sequence).collect();
        step.clear();
        for (sequence, token) in sequences.into_iter().zip(next) {
            if Some(token) == model.end || written.texts[sequence].len() == most {
                cache.end(sequence)?;
            } else {
                written.texts[sequence].push(token);
                step.push((sequence, vec![token]));
            }
        }
    }
    Ok(written)
}

/// Generates continuations and prints them with the cost of the cache. `expected` are those of another cache.
fn show(
    name: &str,
    model: &Llama,
    cache: &mut dyn ModelAttention,
    tokenizer: &Tokenizer,
    prompts: &[Vec<u32>],
    expected: Option<&[Vec<u32>]>,
) -> Result<Vec<Vec<u32>>> {
    let begin = Instant::now();
    let Written { texts, held, bytes } = generate(model, cache, prompts, TOKENS)?;
    let speed = texts.iter().map(Vec::len).sum::<usize>() as f64 / begin.elapsed().as_secs_f64();
    for (i, tokens) in texts.iter().enumerate() {
        println!("{name}: {}", tokenizer.decode(tokens, true).map_err(anyhow::Error::msg)?.trim());
        if let Some(expected) = expected {
            let same = tokens.iter().zip(&expected[i]).take_while(|(a, b)| a == b).count();
            println!("The first {same} of {} tokens are those of candle's cache.", expected[i].len());
        }
        println!();
    }
    let ratio = (held * model.shape.f16_bytes()) as f64 / bytes as f64;
    println!("{held} tokens, {bytes} bytes, f16 values take {ratio:.2} times as many; {speed:.1} tokens/s\n");
    Ok(texts)
}
