//! Takes bytes as a snapshot: unchanged, as chunks with correct lengths and CRCs, and as changes to a good
//! snapshot with corrected CRCs. None causes a panic. A refused snapshot leaves the cache's answers
//! unchanged, to the bit. An accepted one can be attended to, appended to, truncated and written again.
#![no_main]

mod caches;
mod edits;
mod seeds;

use caches::{SPECS, answers, snapshot, spec, tokens, values};
use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;
use tqkv::cache::KvCache;

/// A cache with a few hundred tokens, and its snapshot in chunks: magic and version, spec, KV heads, end.
struct Good {
    cache: KvCache,
    chunks: Vec<Vec<u8>>,
}

/// One per spec, with and without a hot window, made on demand.
static GOOD: [OnceLock<Good>; 2 * SPECS as usize] = [const { OnceLock::new() }; 2 * SPECS as usize];

fn good(number: u8) -> Good {
    let spec = spec(number, if number < SPECS { 0x45 } else { 0 });
    let mut cache = KvCache::new(spec).expect("a spec of a cache");
    let shape = cache.spec().shape;
    for layer in 0..shape.num_layers {
        // This is past the first mean, in the second tier, in the middle of a page.
        let [k, v] = tokens(shape, 2 * u64::from(number) + 1, 470);
        // Queries teach the maps.
        let q = values(3, 470 * shape.num_heads * shape.head_dim);
        let mut out = vec![0.0; 470 * shape.num_heads * shape.value_dim];
        let _ = cache.attend_prefill(layer, &q, &k, &v, &mut out);
    }
    let chunks = split(&snapshot(&cache));
    Good { cache, chunks }
}

fn split(bytes: &[u8]) -> Vec<Vec<u8>> {
    let (head, mut rest) = bytes.split_at(12);
    let mut chunks = vec![head.to_vec()];
    while let Some((length, body)) = rest.split_first_chunk::<8>() {
        let (payload, after) = body.split_at(u64::from_le_bytes(*length) as usize);
        chunks.push(payload.to_vec());
        rest = &after[4..];
    }
    chunks
}

fn join(chunks: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = chunks[0].clone();
    for chunk in &chunks[1..] {
        bytes.extend((chunk.len() as u64).to_le_bytes());
        bytes.extend(chunk);
        bytes.extend(crc32fast::hash(chunk).to_le_bytes());
    }
    bytes
}

/// Changes chunks by a program of five bytes per step.
fn change(chunks: &mut [Vec<u8>], program: &[u8]) {
    let count = chunks.len();
    for [op, chunk, place @ .., value] in program.as_chunks::<5>().0.iter().take(32) {
        // Most changes go to KV heads.
        let chunk = if chunk & 0x80 == 0 {
            2 + usize::from(*chunk) % (count - 2)
        } else {
            usize::from(*chunk) % count
        };
        edits::edit(&mut chunks[chunk], *op, u16::from_le_bytes(*place), *value);
    }
}

fuzz_target!(|data: &[u8]| {
    let [number, mode, bytes @ ..] = data else { return seeds::refused("too short") };
    let number = number % (2 * SPECS);
    let good = GOOD[usize::from(number)].get_or_init(|| good(number));
    let bytes = match mode % 3 {
        0 => bytes.to_vec(),
        1 => {
            // The cache's own spec, followed by arbitrary KV heads. They share one length, or split the
            // bytes.
            let heads = good.chunks.len() - 3;
            let length = if mode & 4 == 0 { bytes.len() } else { bytes.len() / heads };
            let payloads = bytes.chunks(length.max(1)).cycle().take(if bytes.is_empty() { 0 } else { heads });
            let mut chunks = good.chunks[..2].to_vec();
            chunks.extend(payloads.map(<[u8]>::to_vec));
            chunks.push(Vec::new());
            join(&chunks)
        }
        _ => {
            let mut chunks = good.chunks.clone();
            change(&mut chunks, bytes);
            join(&chunks)
        }
    };
    // The bytes alone set the spec here. An accepted snapshot is written again exactly as it was read.
    if let Ok(cache) = KvCache::from_snapshot(&mut bytes.as_slice()) {
        assert_eq!(
            snapshot(&cache),
            snapshot(&KvCache::from_snapshot(&mut snapshot(&cache).as_slice()).expect("its own"))
        );
    }
    let mut cache = good.cache.fork().expect("nothing bounds it");
    let before = answers(&cache);
    if let Err(error) = cache.restore(&mut bytes.as_slice()) {
        assert_eq!(answers(&cache), before);
        return seeds::refused(error);
    }
    let shape = cache.spec().shape;
    let _ = answers(&cache);
    let again = snapshot(&cache);
    let mut other = good.cache.fork().expect("nothing bounds it");
    other.restore(&mut again.as_slice()).expect("what was accepted is accepted again");
    assert_eq!(answers(&other), answers(&cache));
    assert_eq!(snapshot(&other), again);
    for layer in 0..shape.num_layers {
        let [k, v] = tokens(shape, 5, 70);
        // Rows that are too large to be encoded may have been accepted.
        let _ = cache.append(layer, &k, &v);
    }
    let _ = answers(&cache);
    let _ = snapshot(&cache);
    for len in [cache.len().saturating_sub(140), 1] {
        let _ = cache.truncate(len);
        let _ = answers(&cache);
        for layer in 0..shape.num_layers {
            let [k, v] = tokens(shape, 6, 9);
            let _ = cache.append(layer, &k, &v);
        }
        let _ = snapshot(&cache);
    }
});
