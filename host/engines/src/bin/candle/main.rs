//! A Llama of candle over a cache of tqkv. candle reads the file and multiplies; the cache stores keys and
//! values and attends.
//!
//! ```text
//! cargo run --release --features candle --bin candle -- MODEL.gguf [PROMPT [CODECS..]]
//! ```
//!
//! It writes the same continuation several times: with candle's own cache in f16, with ours in f16, and with
//! ours in codes. Codes are `t4,t3` or the given ones. It prints the bytes of each cache. The interface is
//! [`Attention`].

mod attention;
mod llama;

use anyhow::{Context, Result, bail};
use attention::{Attention, CandleCache, Shape};
use candle_core::quantized::gguf_file::Content;
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use llama::Llama;
use std::fs::File;
use std::io::BufReader;
use std::time::Instant;
use tokenizers::Tokenizer;
use tqkv::CodecId;
use tqkv::cache::{CacheSpec, KvCache};

/// Tokens to generate.
const TOKENS: usize = 400;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().context("usage: candle MODEL.gguf [PROMPT [CODECS..]]")?;
    let prompt = arguments.next().unwrap_or_else(|| "A compressed cache is".to_owned());
    let codecs: Vec<String> = arguments.collect();
    let codecs = if codecs.is_empty() { vec!["t4,t3".to_owned()] } else { codecs };

    let mut file = BufReader::new(File::open(&path).with_context(|| path.clone())?);
    let content = Content::read(&mut file).with_context(|| path.clone())?;
    let tokenizer = Tokenizer::from_gguf(&content)?;
    let model = Llama::read(content, &mut file).with_context(|| path.clone())?;
    let prompt = tokenizer.encode(prompt, true).map_err(anyhow::Error::msg)?.get_ids().to_vec();

    let mut own = CandleCache::new(&model.shape);
    let expected = show("candle, f16", &model, &mut own, &tokenizer, &prompt, None)?;
    for names in std::iter::once("f16").chain(codecs.iter().map(String::as_str)) {
        let mut cache = KvCache::new(spec(&model.shape, names)?)?;
        show(&format!("tqkv, {names}"), &model, &mut cache, &tokenizer, &prompt, Some(&expected))?;
    }
    Ok(())
}

/// Makes the spec of a cache for the model. `names` has the codecs of keys and of values, or one codec for
/// both.
fn spec(shape: &Shape, names: &str) -> Result<CacheSpec> {
    let codec = |name: &str| name.parse::<CodecId>().with_context(|| format!("codec '{name}'"));
    let (key, value) = names.split_once(',').unwrap_or((names, names));
    let spec = CacheSpec::new(shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.head_dim);
    Ok(spec.codecs(codec(key)?, codec(value)?))
}

/// Generates the likeliest tokens and prints them with the cost of the cache. `expected` are the tokens of
/// another cache.
fn show(
    name: &str,
    model: &Llama,
    cache: &mut dyn Attention,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    expected: Option<&[u32]>,
) -> Result<Vec<u32>> {
    if prompt.is_empty() {
        bail!("the prompt is empty");
    }
    let mut tokens = Vec::new();
    let mut next = model.next(prompt, 0, cache)?;
    let begin = Instant::now();
    while tokens.len() < TOKENS && Some(next) != model.end {
        tokens.push(next);
        next = model.next(&[next], prompt.len() + tokens.len() - 1, cache)?;
    }
    let speed = tokens.len() as f64 / begin.elapsed().as_secs_f64();
    let text = tokenizer.decode(&tokens, true).map_err(anyhow::Error::msg)?;
    let held = prompt.len() + tokens.len();
    let plain = held * model.shape.f16_bytes();
    println!("{name}: {}\n", text.trim());
    print!(
        "{held} tokens, {} bytes, f16 values take {:.2} times as many",
        cache.bytes(),
        plain as f64 / cache.bytes() as f64
    );
    print!("; {speed:.1} tokens/s");
    match expected {
        None => println!("\n"),
        Some(expected) => {
            let same = tokens.iter().zip(expected).take_while(|(a, b)| a == b).count();
            println!("; the first {same} of {} tokens are those of candle's cache\n", expected.len());
        }
    }
    Ok(tokens)
}
