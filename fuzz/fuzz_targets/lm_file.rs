//! Takes arbitrary bytes as a flat model file: loading never panics. Also makes a small model of arbitrary
//! weights with a matching header and checksum. It computes something, and the same thing twice.
#![no_main]

mod seeds;

use libfuzzer_sys::fuzz_target;
use tqkv_core::Portable;
use tqkv_core::code::{I8, S2};
use tqkv_core::fixed::{FixedCodec, RingCache};
use tqkv_lm::{Head, Lm, LmError, Model, Shape, WeightBits, checksum};

static KEYS: FixedCodec<16, I8> = FixedCodec::DEFAULT;
static VALUES: FixedCodec<16, S2> = FixedCodec::DEFAULT;

fuzz_target!(|data: &[u8]| {
    if let Ok(model) = Model::load(data) {
        let _ = run(model, &[0, 1]);
    }
    let _ = Model::load_unverified(data);
    let [kind, tokens, rest @ ..] = data else { return seeds::refused("too short") };
    let shape = Shape {
        bits: if kind & 1 == 0 { WeightBits::Eight } else { WeightBits::Four },
        is_tied: kind & 2 == 0,
        hidden: 32,
        inner: 64,
        layers: 1 + u16::from(kind >> 2 & 1),
        heads: 2,
        kv_heads: 1 + u16::from(kind >> 3 & 1),
        head_dim: 16,
        vocab: 5,
        context: 8,
        epsilon: u32::from(*tokens) << (kind >> 4),
    };
    let mut file = shape.header().to_vec();
    let body = shape.file_bytes() as usize - file.len() - 4;
    // The bytes repeat. Later, only the exponents are corrected.
    file.extend(rest.iter().chain(std::iter::repeat(&0)).take(rest.len().min(body)));
    while file.len() < 40 + body {
        let from = 40 + (file.len() - 40) % rest.len().max(1);
        file.push(file[from.min(file.len() - 1)]);
    }
    small_exponents(&mut file, &shape);
    file.extend(checksum(&file).to_le_bytes());
    let model = Model::load(&file).expect("header, length, exponents and checksum fit");
    let tokens: Vec<u32> = (0..6).map(|i| u32::from(tokens.rotate_left(i)) % 5).collect();
    assert_eq!(run(model, &tokens), run(model, &tokens), "the same thing twice");
    assert_eq!(run(model, &[5]), Err(LmError::Token { got: 5, vocab: 5 }));
});

/// Brings the exponents of all tensors into the accepted range.
fn small_exponents(file: &mut [u8], shape: &Shape) {
    let of = tqkv_lm::LayoutBytes(shape.bits);
    let (hidden, inner) = (usize::from(shape.hidden), usize::from(shape.inner));
    let (q, k) = (shape.attended(), shape.keyed());
    let layer = [
        of.norm(hidden),
        of.matrix(q, hidden),
        of.matrix(k, hidden),
        of.matrix(k, hidden),
        of.matrix(hidden, q),
        of.norm(hidden),
        of.matrix(inner, hidden),
        of.matrix(inner, hidden),
        of.matrix(hidden, inner),
    ];
    let table = of.matrix(shape.vocab as usize, hidden);
    let mut sizes = layer.repeat(usize::from(shape.layers));
    sizes.extend([of.norm(hidden), table]);
    sizes.extend((!shape.is_tied).then_some(table));
    let mut at = 40 + 2 * usize::from(shape.head_dim);
    for size in sizes {
        let exponent = i32::from(file[at] as i8).clamp(-64, 64);
        file[at..at + 4].copy_from_slice(&exponent.to_le_bytes());
        at += size as usize;
    }
}

/// All logits of the tokens.
fn run(model: Model<'_>, tokens: &[u32]) -> Result<Vec<i32>, LmError> {
    let shape = *model.shape();
    // A file of the fuzzer may be large.
    if shape.head_dim != 16 || shape.file_bytes() > 1 << 20 {
        return Ok(Vec::new());
    }
    let mut work = vec![0; shape.work_words()];
    let room = RingCache::<16, I8, S2>::bytes_for(4);
    let mut memory = vec![0; shape.rings() * room];
    let rings = memory.chunks_exact_mut(room).map(|memory| RingCache::new(&KEYS, &VALUES, memory, 1));
    let mut heads: Vec<_> = rings.map(Head::new).collect();
    let mut lm = Lm::new(model, &mut heads, &mut work, Portable)?;
    let mut all = Vec::new();
    for token in tokens {
        lm.push(*token)?;
        let logits = lm.logits();
        all.extend(logits.values);
        all.push(logits.exponent);
    }
    Ok(all)
}
