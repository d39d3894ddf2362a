//! Inputs that do not fit are refused by name. Damaged bytes never come back as tokens.

use std::sync::Arc;

use crate::common::{Source, rope};
use fastrand::Rng;
use tqkv_storage::{
    Basis, Budget, Join, Learner, Rope, RopePairing, Shape, Span, StorageCodec, StorageError,
};

fn source() -> Source {
    Source::new(2, 2, 32, 32, rope(0, RopePairing::Half, 32))
}

fn basis(source: &Source, seed: u64) -> Basis {
    let mut learner = source.learner();
    let tokens = source.tokens(seed, 0, 512);
    learner.learn(&tokens.k, &tokens.v, 0).unwrap();
    learner.freeze("a model").unwrap()
}

fn codec(source: &Source, basis: Option<Basis>) -> StorageCodec {
    StorageCodec::new(source.shape.clone(), basis.map(Arc::new)).unwrap()
}

fn chunk(source: &Source, codec: &StorageCodec) -> Vec<u8> {
    let tokens = source.tokens(1, 0, 60);
    let budget = Budget::new(2.0).unwrap();
    codec.encode(budget, &Span::of(&source.shape, 0, 60), &tokens.k, &tokens.v).unwrap()
}

fn decode(codec: &StorageCodec, bytes: &[u8]) -> Result<Span, StorageError> {
    let values = 2 * 60 * 64;
    codec.decode(bytes, &mut vec![0.0f32; values], &mut vec![0.0f32; values])
}

fn said<T: std::fmt::Debug>(result: Result<T, StorageError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn another_basis_is_refused_by_name() {
    let source = source();
    let (one, other) = (basis(&source, 0), basis(&source, 1));
    let names = [one.id().to_string(), other.id().to_string()];
    let (one, other, none) = (codec(&source, Some(one)), codec(&source, Some(other)), codec(&source, None));
    let bytes = chunk(&source, &one);
    decode(&one, &bytes).unwrap();
    assert_eq!(
        said(decode(&other, &bytes)),
        format!("chunk needs basis {}; the codec has {}", names[0], names[1])
    );
    assert!(said(decode(&none, &bytes)).contains("none, for the shape"));
    assert!(said(decode(&one, &chunk(&source, &none))).contains("none, for the shape"));
    let turned = Source::new(2, 2, 32, 32, rope(0, RopePairing::Interleaved, 32));
    assert!(said(decode(&codec(&turned, None), &chunk(&source, &none))).contains("for the shape"));
}

#[test]
fn a_basis_comes_back_and_fits_its_model_alone() {
    let source = source();
    let basis = basis(&source, 0);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("basis.tqb");
    basis.save(&path).unwrap();
    let read = Basis::load(&path).unwrap();
    assert_eq!(read, basis);
    read.check("a model", &source.shape).unwrap();
    assert_eq!(
        said(read.check("b model", &source.shape)),
        "basis does not fit: it is of the model 'a model', not of 'b model'"
    );
    let longer = Shape::new(3, 2, 32, 32, rope(0, RopePairing::Half, 32)).unwrap();
    assert_eq!(
        said(read.check("a model", &longer)),
        "basis does not fit: it is of 2 layers, 2 KV heads of 32 and 32 values, the model of 3 layers, 2 KV heads of 32 and \
         32 values"
    );
    let slower = Shape::new(2, 2, 32, 32, rope(0, RopePairing::Half, 16)).unwrap();
    assert!(said(StorageCodec::new(slower, Some(Arc::new(read)))).contains("another RoPE"));
}

#[test]
fn learners_merge_to_what_one_would_have_learned() {
    let source = source();
    let (mut all, mut first, mut second) = (source.learner(), source.learner(), source.learner());
    for (seed, learner) in [(0, &mut first), (1, &mut second)] {
        let tokens = source.tokens(seed, 100, 128);
        learner.learn(&tokens.k, &tokens.v, 100).unwrap();
        all.learn(&tokens.k, &tokens.v, 100).unwrap();
    }
    first.merge(&second).unwrap();
    assert_eq!(first.tokens(), 256);
    assert_eq!(first.freeze("m").unwrap(), all.freeze("m").unwrap());
    let apart = Learner::new(source.shape.clone(), Join::Apart).unwrap();
    assert_eq!(said(first.merge(&apart)), "basis does not fit: the two share bases in different ways");
}

#[test]
fn bad_input_is_named() {
    let source = source();
    let codec = codec(&source, None);
    let budget = Budget::new(1.0).unwrap();
    let tokens = source.tokens(1, 0, 8);
    let span = Span::of(&source.shape, 0, 8);
    assert_eq!(said(Budget::new(0.4)), "budget of 0.4 bits per value; expected 0.5 to 5");
    assert!(Budget::new(f32::NAN).is_err());
    let encode = |span: &Span, k: &[f32], v: &[f32]| said(codec.encode(budget, span, k, v));
    assert_eq!(encode(&span, &tokens.k[1..], &tokens.v), "keys have 1023 values; 1024 are needed");
    assert_eq!(encode(&span, &tokens.k, &[]), "values have 0 values; 1024 are needed");
    let many = Span { tokens: 257, ..span };
    assert_eq!(encode(&many, &tokens.k, &tokens.v), "chunk of 257 tokens; expected 1 to 256");
    let beyond = Span { first_layer: 1, ..span };
    assert_eq!(encode(&beyond, &tokens.k, &tokens.v), "2 layers from layer 1 on of 2");
    let mut bad = tokens.v.clone();
    bad[1023] = f32::NAN;
    assert_eq!(encode(&span, &tokens.k, &bad), "layer 1: keys or values of coded token 3 are not finite");
    // Token 2 is kept exactly: two layers of 64 keys per token.
    let mut bad_keys = tokens.k.clone();
    bad_keys[2 * 64] = f32::INFINITY;
    assert_eq!(encode(&span, &bad_keys, &tokens.v), "layer 0: exact tokens are not finite");
    assert_eq!(said(source.learner().learn(&tokens.k, &bad, 0)), "keys or values are not finite");
    assert!(said(source.learner().freeze("m")).starts_with("0 tokens for a basis of 128 values per token"));
    assert!(said(Shape::new(1, 1, 24, 24, Rope::none())).contains("multiples of 16"));
    assert!(
        said(Shape::new(1, 1, 32, 32, rope(0, RopePairing::Half, 64))).contains("0 to 64 of a head of 32")
    );
}

#[test]
fn huge_and_zero_tokens_do_not_panic() {
    let source = source();
    let based = codec(&source, Some(basis(&source, 0)));
    let span = Span::of(&source.shape, 7, 60);
    let budget = Budget::new(1.0).unwrap();
    for codec in [codec(&source, None), based] {
        for x in [0.0f32, 1e-38, 1e30, f32::MAX] {
            let all = vec![x; 2 * 60 * 64];
            if let Ok(bytes) = codec.encode(budget, &span, &all, &all) {
                decode(&codec, &bytes).unwrap();
            } else {
                assert!(x > 1.0, "{x} is refused");
            }
        }
    }
}

#[test]
fn no_change_of_ten_thousand_comes_back_as_tokens() {
    let source = source();
    let based = codec(&source, Some(basis(&source, 0)));
    let plain = codec(&source, None);
    let whole = chunk(&source, &based);
    let chunks =
        [(&based, whole.clone()), (&plain, chunk(&source, &plain)), (&based, based.thin(&whole, 2).unwrap())];
    let mut rng = Rng::with_seed(3);
    for mutant in 0..10_000 {
        let (codec, bytes) = &chunks[mutant % chunks.len()];
        let mut bytes = bytes.clone();
        let at = rng.usize(..bytes.len());
        match rng.u8(..4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.u8(..)),
            2 => bytes[at] ^= 1 << rng.u8(..8),
            _ => {
                let len = rng.usize(1..64).min(bytes.len() - at);
                bytes[at..at + len].iter_mut().for_each(|byte| *byte ^= rng.u8(1..));
            }
        }
        assert!(decode(codec, &bytes).is_err(), "mutant {mutant} at {at}");
    }
}

/// A peer may send bytes that no encoder writes, with correct checksums.
#[test]
fn numbers_that_are_not_finite_are_refused_whatever_the_checksums_say() {
    const HEADER: usize = 92;
    let source = source();
    let plain = codec(&source, None);
    let good = chunk(&source, &plain);
    let mend = |bytes: &mut [u8], start: usize, end: usize| {
        let crc = crc32fast::hash(&bytes[start..end]).to_le_bytes();
        bytes[end..end + 4].copy_from_slice(&crc);
    };
    // Two layers of four exact tokens of 128 values.
    let exact = HEADER + 2 * 4 * 128 * 4;
    for (place, bad) in [(0, f32::NAN), (700, f32::INFINITY), (1023, f32::NEG_INFINITY)] {
        let mut bytes = good.clone();
        bytes[HEADER + 4 * place..][..4].copy_from_slice(&bad.to_le_bytes());
        mend(&mut bytes, 0, exact);
        let (mut k, mut v) = (vec![7.0f32; 2 * 60 * 64], vec![7.0f32; 2 * 60 * 64]);
        assert!(said(plain.decode(&bytes, &mut k, &mut v)).contains("exact tokens that are not finite"));
        assert!(k.iter().chain(&v).all(|x| *x == 7.0), "nothing is written");
    }
    // Too large for the requested numbers.
    let mut large = good.clone();
    large[HEADER..HEADER + 4].copy_from_slice(&1e30f32.to_le_bytes());
    mend(&mut large, 0, exact);
    let mut halves = [(); 2].map(|()| vec![half::f16::ZERO; 2 * 60 * 64]);
    let [k, v] = &mut halves;
    assert!(said(plain.decode(&large, k, v)).contains("too large"));
    decode(&plain, &large).unwrap();
    // A section: 56 tokens of two norms, the mean of 64 keys, their scale, widths of 128 channels.
    let (start, mean) = (exact + 4, exact + 4 + 56 * 2);
    let end = mean + 2 * 64 + 4 + 128 * 3 / 8;
    for (at, bad) in [
        (mean, half::f16::INFINITY.to_le_bytes().to_vec()),
        (mean + 2 * 64, f32::NAN.to_le_bytes().to_vec()),
        // The divisor of keys: it makes them larger than f32 holds.
        (mean + 2 * 64, f32::MIN_POSITIVE.to_le_bytes().to_vec()),
    ] {
        let mut bytes = good.clone();
        bytes[at..at + bad.len()].copy_from_slice(&bad);
        mend(&mut bytes, start, end);
        let error = said(decode(&plain, &bytes));
        assert!(error.contains("not a valid number") || error.contains("not finite"), "{error}");
    }
}

#[test]
fn no_change_of_a_basis_comes_back() {
    let source = source();
    let bytes = basis(&source, 0).to_bytes();
    let mut rng = Rng::with_seed(4);
    for _ in 0..500 {
        let mut bytes = bytes.clone();
        let at = rng.usize(..bytes.len());
        if rng.bool() {
            bytes.truncate(at)
        } else {
            bytes[at] ^= 1 << rng.u8(..8)
        }
        assert!(Basis::from_bytes(&bytes).is_err());
    }
    assert!(Basis::from_bytes(&[]).is_err());
}
