//! One token on its way through a cache: what happens to its key, with the numbers of each step.
//!
//! `cargo run --release -p tqkv --example token` prints what `docs/token.md` explains. Vectors are random with two traits of
//! real keys: a part that all keys share, and a coordinate that is much larger than the others.

use tqkv::cache::{CacheSpec, KvCache};
use tqkv::error::CacheError;
use tqkv_core::{AnyCodec, BlockView, CodecId, Options};

const DIM: usize = 64;
/// The token that is followed.
const TOKEN: usize = 100;
const TOKENS: usize = 400;

/// Numbers between -1 and 1 that depend on their place alone.
fn number(seed: u64, i: usize) -> f32 {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i as u64).wrapping_mul(0xd1b5_4a32_d192_ed03);
    for _ in 0..2 {
        x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }
    ((x >> 40) as f32 / (1 << 23) as f32) - 1.0
}

fn key(token: usize) -> Vec<f32> {
    let shared = |i| 0.8 * number(1, i) + if i == 5 { 6.0 } else { 0.0 };
    (0..DIM).map(|i| shared(i) + number(2 + token as u64, i)).collect()
}

fn value(token: usize) -> Vec<f32> {
    (0..DIM).map(|i| number(1_000_000 + token as u64, i)).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

fn length(x: &[f32]) -> f64 {
    dot(x, x).sqrt()
}

/// The length of the difference over that of `exact`, in per cent.
fn error(exact: &[f32], other: &[f32]) -> f64 {
    let difference: Vec<f32> = exact.iter().zip(other).map(|(a, b)| a - b).collect();
    100.0 * length(&difference) / length(exact)
}

fn some(x: &[f32]) -> String {
    let shown: Vec<_> = x[..8].iter().map(|x| format!("{x:6.2}")).collect();
    format!("{} ..", shown.join(" "))
}

/// What the page shows, a text for each step.
pub(crate) fn story() -> Result<Vec<String>, CacheError> {
    let mut steps = Vec::new();
    let spec = CacheSpec::new(1, 1, 1, DIM).with("s4 sinks=4 hot=64")?;
    let (mut cache, mut bytes) = (KvCache::new(spec)?, Vec::new());
    let k = key(TOKEN);
    let largest = k.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    steps.push(format!(
        "key       {}\nlength    {:.2}, largest coordinate {largest:.2}",
        some(&k),
        length(&k)
    ));

    let mut lines = vec!["tokens  exact: first  newest  waiting keys   codes   bytes per token".to_owned()];
    for token in 0..TOKENS {
        cache.append(0, &key(token), &value(token))?;
        if [TOKEN + 1, 131, 132, 133, 168, TOKENS].contains(&(token + 1)) {
            let s = cache.stats();
            bytes.push(s.bytes_per_token());
            lines.push(format!(
                "{:6} {:13} {:7} {:13} {:7} {:17.1}",
                s.tokens,
                s.sinks,
                s.hot,
                s.waiting_keys,
                s.warm,
                s.bytes_per_token()
            ));
        }
    }
    steps.push(lines.join("\n"));

    // By hand what the cache does: the mean is that of the first 64 keys that leave the window.
    let mut mean = vec![0.0; DIM];
    for token in 4..68 {
        mean.iter_mut().zip(key(token)).for_each(|(mean, x)| *mean += x / 64.0);
    }
    let apart: Vec<f32> = k.iter().zip(&mean).map(|(x, mean)| x - mean).collect();
    steps.push(format!("less mean {}\nlength    {:.2}", some(&apart), length(&apart)));

    let codec =
        AnyCodec::new(CodecId::S4, DIM, Options::DEFAULT).map_err(|e| CacheError::BadSpec(e.to_string()))?;
    let mut rotated = vec![0.0; DIM];
    codec.rotate_query(&apart, &mut rotated);
    // A query is divided by the head dim once, so that a product with levels needs no division.
    rotated.iter_mut().for_each(|x| *x *= DIM as f32);
    let largest = rotated.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    steps.push(format!(
        "rotated   {}\nlength    {:.2} = 8 * {:.2}, largest coordinate {largest:.2}",
        some(&rotated),
        length(&rotated),
        length(&apart)
    ));

    let mut block = vec![0; codec.block_bytes()];
    codec.encode(&apart, &mut block).map_err(|e| CacheError::BadSpec(e.to_string()))?;
    let hex: Vec<_> = block[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let view = BlockView::new(CodecId::S4, DIM, &block).map_err(|e| CacheError::BadSpec(e.to_string()))?;
    let codes: Vec<_> = view.codes().take(8).map(|code| format!("{code:6}")).collect();
    let mut back = vec![0.0; DIM];
    codec.decode_rotated(&block, &mut back);
    steps.push(format!(
        "codes     {} ..\nlevels    {}\nblock     {} .., {} bytes: scale {:.4} and {} codes of 4 bits",
        codes.join(" "),
        some(&back),
        hex.join(" "),
        block.len(),
        view.scale(),
        DIM
    ));

    codec.decode(&block, &mut back).map_err(|e| CacheError::BadSpec(e.to_string()))?;
    let restored: Vec<f32> = back.iter().zip(&mean).map(|(x, mean)| x + mean).collect();
    let q: Vec<f32> = (0..DIM).map(|i| 2.0 * k[i] + number(7, i)).collect();
    let (mut turned, mut score) = (vec![0.0; DIM], [0.0]);
    codec.rotate_query(&q, &mut turned);
    codec.scores(&turned, &block, &mut score);
    let by_codes = f64::from(score[0]) + dot(&q, &mean);
    steps.push(format!(
        "decoded   {}, error {:.1} % of the key\nscore     {:.2} exact, {by_codes:.2} = {:.2} from codes + {:.2} from the mean",
        some(&restored), error(&k, &restored), dot(&q, &k), score[0], dot(&q, &mean)
    ));

    // Attention of the query to all tokens, exact and by the cache.
    let logits: Vec<f64> = (0..TOKENS).map(|token| dot(&q, &key(token)) / (DIM as f64).sqrt()).collect();
    let most = logits.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = logits.iter().map(|x| (x - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut exact = vec![0.0; DIM];
    for (token, weight) in weights.iter().enumerate() {
        exact.iter_mut().zip(value(token)).for_each(|(out, x)| *out += (weight / sum) as f32 * x);
    }
    let mut out = vec![0.0; DIM];
    cache.attend(0, &q, &mut out)?;
    steps.push(format!(
        "exact     {}, {:.0} % of it from token {TOKEN}\ncache     {}, error {:.1} %",
        some(&exact),
        100.0 * weights[TOKEN] / sum,
        some(&out),
        error(&exact, &out)
    ));
    Ok(steps)
}

fn main() -> Result<(), CacheError> {
    for step in story()? {
        println!("{step}\n");
    }
    Ok(())
}
