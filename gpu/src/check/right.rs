//! Checks that codes equal the portable codec's, and that attention agrees with f64.

use super::row::{AttentionRow, CodesRow};
use crate::staging::Staging;
use crate::{Device, GpuCache, GpuError, GpuSpec, Rows, Side};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use tqkv_core::CodecId::{self, I8, S2, S3, S4, T2, T3, T4};
use tqkv_core::{AnyCodec, Options};

/// Codecs of keys and values, head dim, query heads per KV head.
type Pair = (CodecId, CodecId, usize, usize);

/// Pairs that cover every kernel of attention and every codec.
const PAIRS: [Pair; 11] = [
    (S4, S4, 128, 1),
    (S4, S4, 128, 4),
    (S2, S2, 256, 1),
    (S2, S2, 128, 4),
    (I8, S4, 128, 8),
    (S3, S2, 64, 2),
    (S4, S3, 256, 3),
    (T3, T2, 128, 1),
    (S4, T2, 128, 4),
    (T4, S4, 64, 8),
    (T2, T4, 256, 2),
];

/// The pairs of these codecs. A codec that is in none of them is paired with itself, so that every requested
/// codec is checked.
pub(crate) fn pairs(codecs: &[CodecId]) -> Vec<Pair> {
    let mut pairs: Vec<Pair> = PAIRS.to_vec();
    pairs.retain(|(key, value, ..)| codecs.contains(key) && codecs.contains(value));
    for &id in codecs {
        if !pairs.iter().any(|&(key, value, ..)| key == id || value == id) {
            pairs.push((id, id, 128, 4));
        }
    }
    pairs
}

/// Values of N(0, 1), the same on every machine.
pub(crate) fn gaussian(rng: &mut ChaCha8Rng, len: usize) -> Vec<f32> {
    StandardNormal.sample_iter(rng).take(len).collect()
}

/// Encodes `vectors` vectors, rounded up to complete tokens of eight heads.
pub(crate) fn codes(device: &Device, id: CodecId, dim: usize, vectors: usize) -> Result<CodesRow, GpuError> {
    let heads = 8;
    let tokens = vectors.div_ceil(heads).max(1);
    let spec = GpuSpec::new(1, heads, heads, dim).codecs(id, id).sequences(1, tokens).exact(0, 0);
    let mut cache = GpuCache::new(device, spec)?;
    let rows = gaussian(&mut ChaCha8Rng::seed_from_u64(dim as u64), tokens * heads * dim);
    cache.append(0, &vec![0; tokens], Rows::Host(&rows), Rows::Host(&rows))?;
    let blocks = cache.blocks(0, 0, Side::Keys)?;
    let codec = cache.codec(Side::Keys);
    let mut want = vec![0; codec.block_bytes()];
    let pairs = rows.chunks_exact(dim).zip(blocks.chunks_exact(codec.block_bytes()));
    let wrong = |(x, got): &(&[f32], &[u8])| codec.encode(x, &mut want).is_err() || want != **got;
    Ok(CodesRow {
        codec: id.name(),
        head_dim: dim,
        vectors: tokens * heads,
        mismatches: pairs.filter(wrong).count(),
    })
}

/// Attends over sequences with lengths around every boundary, over codes alone and with exact tokens.
pub(crate) fn attention(
    device: &Device,
    codecs: [CodecId; 2],
    dim: usize,
    group: usize,
) -> Result<AttentionRow, GpuError> {
    let mut largest_error = 0.0_f64;
    for (exact, most) in [((0, 0), 1000), ((4, 64), 300)] {
        largest_error = largest_error.max(error(device, codecs, (dim, group), exact, most)?);
    }
    let [key, value] = codecs.map(CodecId::name);
    Ok(AttentionRow { key, value, head_dim: dim, heads_per_kv_head: group, largest_error })
}

/// The largest error of attention over up to `most` tokens, with this many first and newest tokens in f16.
fn error(
    device: &Device,
    [key, value]: [CodecId; 2],
    (dim, group): (usize, usize),
    (sinks, hot): (usize, usize),
    most: usize,
) -> Result<f64, GpuError> {
    let (kv_heads, lengths) = (2, [0, 1, 63, 64, 65, most]);
    let heads = kv_heads * group;
    let spec = GpuSpec::new(1, heads, kv_heads, dim)
        .codecs(key, value)
        .options(Options::DEFAULT.seed(7))
        .exact(sinks, hot)
        .sequences(lengths.len(), most);
    let mut cache = GpuCache::new(device, spec)?;
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for (sequence, length) in lengths.into_iter().enumerate() {
        let count = length * kv_heads * dim;
        let (keys, values) = (gaussian(&mut rng, count), gaussian(&mut rng, count));
        cache.append(0, &vec![sequence; length], Rows::Host(&keys), Rows::Host(&values))?;
    }
    let queries = gaussian(&mut rng, lengths.len() * heads * dim);
    let mut out = vec![f32::NAN; queries.len()];
    cache.attend(0, &queries, &mut out)?;
    let mut largest_error = 0.0_f64;
    for (sequence, rows) in queries.chunks_exact(heads * dim).zip(out.chunks_exact(heads * dim)).enumerate() {
        let keys = seen(&mut cache, sequence, Side::Keys)?;
        let values = seen(&mut cache, sequence, Side::Values)?;
        for (head, (query, got)) in rows.0.chunks_exact(dim).zip(rows.1.chunks_exact(dim)).enumerate() {
            // There are two KV heads, so the vectors of one are every second vector.
            let of = |rows: &[Vec<f32>]| rows.iter().skip(head / group).step_by(kv_heads).cloned().collect();
            for (got, want) in got.iter().zip(exact(query, of(&keys), of(&values))) {
                let error = (f64::from(*got) - want).abs();
                // NaN is an error too, and `max` would drop it.
                largest_error = if error.is_nan() { f64::INFINITY } else { largest_error.max(error) };
            }
        }
    }
    Ok(largest_error)
}

/// The vectors of a sequence, `[tokens, KV heads]`, as its newest token sees them: decoded by the portable codec,
/// and exact tokens by the device.
fn seen(cache: &mut GpuCache, sequence: usize, side: Side) -> Result<Vec<Vec<f32>>, GpuError> {
    let mut rows = decoded(cache, sequence, side)?;
    let GpuSpec { sinks, hot, num_kv_heads, head_dim, .. } = *cache.spec();
    let device = cache.device().clone();
    let mut out = device.zeros(rows.len() * head_dim)?;
    cache.decode(0, sequence, side, &mut out)?;
    let mut all = vec![0.0; rows.len() * head_dim];
    Staging::new().receive(&device, &out, &mut all)?;
    let (first, newest) = (sinks * num_kv_heads, rows.len().saturating_sub(hot * num_kv_heads));
    for (i, (row, exact)) in rows.iter_mut().zip(all.chunks_exact(head_dim)).enumerate() {
        if i < first || i >= newest {
            row.copy_from_slice(exact);
        }
    }
    Ok(rows)
}

/// The vectors of a sequence, `[tokens, KV heads]`, decoded by the portable codec.
fn decoded(cache: &GpuCache, sequence: usize, side: Side) -> Result<Vec<Vec<f32>>, GpuError> {
    let (codec, blocks): (&AnyCodec, _) = (cache.codec(side), cache.blocks(0, sequence, side)?);
    let decode = |block: &[u8]| {
        let mut row = vec![0.0; codec.dim()];
        codec.decode(block, &mut row).map(|()| row)
    };
    let rows: Result<_, _> = blocks.chunks_exact(codec.block_bytes()).map(decode).collect();
    rows.map_err(|error| GpuError::Driver(format!("a block that does not decode: {error}")))
}

/// Softmax attention of one query in f64. Without keys the result is zeros.
fn exact(query: &[f32], keys: Vec<Vec<f32>>, values: Vec<Vec<f32>>) -> Vec<f64> {
    let dot =
        |key: &Vec<f32>| -> f64 { key.iter().zip(query).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum() };
    let logits: Vec<f64> = keys.iter().map(|key| dot(key) / (query.len() as f64).sqrt()).collect();
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut out, mut sum) = (vec![0.0; query.len()], 0.0);
    for (logit, value) in logits.iter().zip(values) {
        let weight = (logit - most).exp();
        sum += weight;
        out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * f64::from(value));
    }
    out.iter_mut().for_each(|out| *out /= if sum > 0.0 { sum } else { 1.0 });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_codec_that_is_asked_for_is_attended() {
        assert_eq!(pairs(&crate::CODECS), PAIRS);
        assert_eq!(pairs(&[S3]), [(S3, S3, 128, 4)]);
        assert_eq!(pairs(&[S4, I8]), [(S4, S4, 128, 1), (S4, S4, 128, 4), (I8, S4, 128, 8)]);
        for id in crate::CODECS {
            assert!(!pairs(&[id]).is_empty(), "{}", id.name());
        }
    }

    #[test]
    fn exact_attention_weighs_values_by_the_softmax_of_their_keys() {
        // The logits are ln 3 and 0 after the factor 1 / sqrt(4), so the weights are 3/4 and 1/4.
        let keys = vec![vec![2.0 * 3.0_f32.ln(), 0.0, 0.0, 0.0], vec![0.0; 4]];
        let values = vec![vec![1.0, 0.0, 4.0, -4.0], vec![0.0, 1.0, 8.0, -4.0]];
        let out = exact(&[1.0, 5.0, -7.0, 0.0], keys, values);
        for (got, want) in out.iter().zip([0.75, 0.25, 5.0, -4.0]) {
            assert!((got - want).abs() < 1e-6, "{out:?}");
        }
        assert_eq!(exact(&[1.0; 4], Vec::new(), Vec::new()), [0.0; 4]);
    }
}
