//! Takes bytes as a chunk of the storage tier, as an archive and as a basis. They are unchanged bytes, and
//! changes to good ones with corrected checksums. None causes a panic. An accepted chunk reports its
//! contents. A cache takes a complete archive or nothing. An accepted basis is written exactly as it was
//! read.
#![no_main]

mod seeds;

use libfuzzer_sys::fuzz_target;
use sha2::{Digest, Sha256};
use std::sync::{Arc, LazyLock};
use tqkv::cache::{CacheSpec, KvCache};
use tqkv_storage::{Basis, Budget, Join, Learner, Rope, RopePairing, Shape, Span, StorageCodec};

const HEADER: usize = 92;
/// KV heads times head dim.
const WIDTH: usize = 32;
const TOKENS: usize = 40;

struct Good {
    codec: StorageCodec,
    chunks: Vec<Vec<u8>>,
}

/// One without a basis, and one with a basis over keys and values.
static GOOD: LazyLock<[Good; 2]> = LazyLock::new(|| [good(None), good(Some(Arc::new(basis())))]);

fn shape() -> Shape {
    let rope = Rope::new(0, RopePairing::Half, vec![1.0, 0.1, 0.01, 0.001]);
    Shape::new(2, 2, 16, 16, rope).expect("a shape")
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32 - 0.4).collect()
}

fn basis() -> Basis {
    let mut learner = Learner::new(shape(), Join::Joint).expect("a join");
    let (k, v) = (numbers(2 * 100 * WIDTH), numbers(2 * 100 * WIDTH));
    learner.learn(&k, &v, 0).expect("tokens");
    learner.freeze("fuzz").expect("enough tokens")
}

fn good(basis: Option<Arc<Basis>>) -> Good {
    let codec = StorageCodec::new(shape(), basis).expect("a codec");
    let span = Span::of(codec.shape(), 0, TOKENS);
    let (k, v) = (numbers(2 * TOKENS * WIDTH), numbers(2 * TOKENS * WIDTH));
    let whole = codec.encode(Budget::new(2.0).expect("a budget"), &span, &k, &v).expect("a chunk");
    let thin = codec.thin(&whole, 2).expect("a thinner one");
    Good { codec, chunks: vec![whole, thin] }
}

fuzz_target!(|data: &[u8]| {
    let Some((&[kind, times], changes)) = data.split_first_chunk::<2>() else {
        return seeds::refused("too short");
    };
    let good = &GOOD[usize::from(kind & 1)];
    match kind >> 1 & 3 {
        0 => decode(good, changes),
        1 => read_basis(changes),
        2 => {
            let mut bytes = changed(&good.chunks[usize::from(kind >> 3 & 1)], changes);
            if times & 1 == 1 {
                mend(&mut bytes, good.codec.basis().is_some());
            }
            decode(good, &bytes);
        }
        _ => {
            let Some(basis) = GOOD[1].codec.basis() else { return };
            let mut bytes = changed(&basis.to_bytes(), changes);
            let end = bytes.len() - 32;
            let digest = Sha256::digest(&bytes[..end]);
            bytes[end..].copy_from_slice(&digest);
            read_basis(&bytes);
        }
    }
});

/// Changes bytes: each three bytes are a place and a value.
fn changed(bytes: &[u8], changes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for [low, high, value] in changes.as_chunks().0 {
        let at = usize::from(u16::from_le_bytes([*low, *high])) % bytes.len();
        bytes[at] = *value;
    }
    bytes
}

fn decode(good: &Good, bytes: &[u8]) {
    restore(good, bytes);
    let span = match good.codec.span(bytes) {
        Ok(span) => span,
        Err(error) => return seeds::refused(error),
    };
    let values = span.layers * span.tokens * WIDTH;
    let (mut k, mut v) = (vec![0.0f32; values], vec![0.0f32; values]);
    match good.codec.decode(bytes, &mut k, &mut v) {
        Ok(decoded) => assert_eq!(decoded, span),
        Err(error) => return seeds::refused(error),
    }
    for least in 2..=5 {
        let thin = good.codec.thin(bytes, least).map(|thin| good.codec.decode(&thin, &mut k, &mut v));
        // Numbers may be finite in full, but not finite with part of their bits.
        if let Ok(Err(error)) = thin {
            assert!(error.to_string().contains("not finite"), "{error}");
        }
    }
}

/// Takes the bytes as an archive: an empty cache then has all of it or nothing.
fn restore(good: &Good, bytes: &[u8]) {
    let mut cache = KvCache::new(CacheSpec::new(2, 2, 2, 16)).expect("a cache of the codec's shape");
    match good.codec.restore(&mut &bytes[..], &mut cache) {
        Ok(tokens) => assert_eq!(tokens, cache.len()),
        Err(error) => assert!(cache.is_empty() && !error.to_string().is_empty()),
    }
}

fn read_basis(bytes: &[u8]) {
    match Basis::from_bytes(bytes) {
        Ok(basis) => {
            assert_eq!(basis.to_bytes(), bytes);
            let _ = StorageCodec::new(basis.shape().clone(), Some(Arc::new(basis)));
        }
        Err(error) => seeds::refused(error),
    }
}

/// Corrects the CRCs of the header and the first section, if the fields give their places.
fn mend(bytes: &mut [u8], has_basis: bool) {
    let field = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (dtype, tokens, exact, least) = (field(12), field(14), field(16), field(18));
    let width = if dtype == 0 { 4 } else { 2 };
    let end = HEADER + 2 * exact * 2 * WIDTH * width;
    if !right(bytes, 0, end) {
        return;
    }
    let coded = tokens.saturating_sub(exact);
    let head = if has_basis { coded + 2 } else { 2 * coded + 2 * WIDTH + 4 + 24 };
    let start = end + 4;
    if !right(bytes, start, start + head) {
        return;
    }
    let packed = bytes[start + head - if has_basis { 2 } else { 24 }..start + head].to_vec();
    let (runs, run) = if has_basis { (4, 16) } else { (64, 1) };
    let bit = |at: usize| packed[at / 8] >> (at % 8) & 1;
    let widths: Vec<u8> = (0..runs).map(|i| (0..3).map(|b| bit(3 * i + b) << b).sum()).collect();
    let mut at = start + head + 4;
    for width in (1..=5u8).rev().filter(|width| usize::from(*width) >= least) {
        let values = widths.iter().filter(|own| **own == width).count() * run * coded;
        let blocks = values.div_ceil(256) * (2 + 32 * usize::from(width));
        if values > 0 {
            if !right(bytes, at, at + blocks) {
                return;
            }
            at += blocks + 4;
        }
    }
}

/// Writes the CRC-32 of a range after it, if both are inside.
fn right(bytes: &mut [u8], start: usize, end: usize) -> bool {
    let Some(checked) = bytes.get(start..end) else { return false };
    let crc = crc32fast::hash(checked).to_le_bytes();
    let Some(target) = bytes.get_mut(end..end + 4) else { return false };
    target.copy_from_slice(&crc);
    true
}
