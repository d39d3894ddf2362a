//! A basis that follows its text, the folder of its generations, and the sums that bases are made of.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use crate::common::{Source, error, rope};
use tqkv_storage::{
    Basis, Budget, Encoded, Follower, Generations, Learner, MAX_TOKENS, RopePairing, Shape, Span,
    StorageCodec, StorageError,
};

const MODEL: &str = "a model";

fn source(kind: u64) -> Source {
    Source::of_kind(kind, (2, 2, 32, 32), rope(0, RopePairing::Half, 32))
}

/// Learns from 8,192 tokens of a kind.
fn learned(source: &Source) -> Learner {
    let mut learner = source.learner();
    for chunk in 0..32 {
        let tokens = source.tokens(500 + chunk, 256 * chunk, MAX_TOKENS);
        learner.learn(&tokens.k, &tokens.v, 256 * chunk).unwrap();
    }
    learner
}

fn basis(source: &Source) -> Arc<Basis> {
    Arc::new(learned(source).freeze(MODEL).unwrap())
}

fn budget() -> Budget {
    Budget::new(1.5).unwrap()
}

fn follower(shape: &Shape, basis: Option<Arc<Basis>>) -> Follower {
    let codec = StorageCodec::new(shape.clone(), basis).unwrap();
    Follower::new(MODEL, codec, shape.join(), budget()).unwrap()
}

/// Passes a text of 256 tokens per chunk. Returns the chunks with their seeds, and the new bases.
fn pass(follower: &mut Follower, source: &Source, chunks: std::ops::Range<u64>) -> Vec<(u64, Encoded)> {
    chunks
        .map(|seed| {
            let tokens = source.tokens(seed, 4, MAX_TOKENS);
            let span = Span::of(&source.shape, 4, MAX_TOKENS);
            (seed, follower.encode(&span, &tokens.k, &tokens.v).unwrap())
        })
        .collect()
}

/// Relative error of keys and values of tokens that no basis has seen.
fn judged(codec: &StorageCodec, source: &Source) -> f64 {
    let of = |seed: u64| {
        let tokens = source.tokens(9000 + seed, 4, MAX_TOKENS);
        let span = Span::of(&source.shape, 4, MAX_TOKENS);
        let chunk = codec.encode(budget(), &span, &tokens.k, &tokens.v).unwrap();
        let (mut k, mut v) = (vec![0f32; tokens.k.len()], vec![0f32; tokens.v.len()]);
        codec.decode(&chunk, &mut k, &mut v).unwrap();
        error(&k, &tokens.k) + error(&v, &tokens.v)
    };
    (0..8).map(of).sum::<f64>() / 8.0
}

#[test]
fn after_8k_tokens_of_another_text_the_basis_is_as_good_as_its_own() {
    let (first, second) = (source(7), source(8));
    let own = StorageCodec::new(second.shape.clone(), Some(basis(&second))).unwrap();
    let best = judged(&own, &second);
    for start in [Some(basis(&first)), None] {
        let mut follower = follower(&first.shape, start.clone());
        let before = judged(follower.codec(), &second);
        assert!(before > 1.5 * best, "{before} is near {best}");
        let kept = pass(&mut follower, &first, 0..16);
        if start.is_some() {
            assert!(kept.iter().all(|(_, encoded)| encoded.basis.is_none()), "a text of its own kind");
        }
        let moved = pass(&mut follower, &second, 100..132);
        assert!((1..=4).contains(&moved.iter().filter(|(_, encoded)| encoded.basis.is_some()).count()));
        let after = judged(follower.codec(), &second);
        assert!(after < 1.2 * best, "{after} beside {best}, {before} before");
    }
}

#[test]
fn short_chunks_and_parts_of_the_layers_do_not_mislead() {
    let source = source(7);
    let mut follower = follower(&source.shape, Some(basis(&source)));
    for seed in 0..40 {
        // Exact tokens alone, a few tokens, and a complete chunk.
        for (first, count) in [(0, 3), (0, 20), (4, MAX_TOKENS)] {
            let tokens = source.tokens(seed, first, count);
            let encoded =
                follower.encode(&Span::of(&source.shape, first, count), &tokens.k, &tokens.v).unwrap();
            assert!(encoded.basis.is_none());
        }
    }
    let part = Span { layers: 1, ..Span::of(&source.shape, 4, 16) };
    let tokens = source.tokens(1, 4, 16);
    let error =
        follower.encode(&part, &tokens.k[..tokens.k.len() / 2], &tokens.v[..tokens.v.len() / 2]).unwrap_err();
    assert!(error.to_string().contains("all layers at once"), "{error}");
    let codec = StorageCodec::new(source.shape.clone(), Some(basis(&source))).unwrap();
    let other = Follower::new("another model", codec, source.shape.join(), budget()).unwrap_err();
    assert!(other.to_string().contains("of the model 'a model'"), "{other}");
}

struct Folder(PathBuf, #[allow(dead_code, reason = "removed with it")] tempfile::TempDir);

fn folder() -> Folder {
    let dir = tempfile::tempdir().unwrap();
    Folder(dir.path().join("bases"), dir)
}

#[test]
fn readers_find_the_basis_that_a_chunk_names() {
    let (first, second) = (source(7), source(8));
    let Folder(path, _dir) = folder();
    let mut bases = Generations::open(&path, MODEL, first.shape.clone()).unwrap();
    assert!(bases.newest().unwrap().basis().is_none());
    let mut follower = follower(&first.shape, None);
    let mut chunks = Vec::new();
    for (source, seeds) in [(&first, 0..12), (&second, 100..112)] {
        for (seed, encoded) in pass(&mut follower, source, seeds) {
            if let Some(basis) = &encoded.basis {
                bases.add(basis).unwrap();
                assert_eq!(bases.newest().unwrap().basis().unwrap().id(), basis.id());
            }
            chunks.push((source, seed, encoded.chunk));
        }
    }
    // Another process reads all of them.
    let mut bases = Generations::open(&path, MODEL, first.shape.clone()).unwrap();
    let mut named = std::collections::BTreeSet::new();
    for (source, seed, chunk) in &chunks {
        let codec = bases.of(chunk).unwrap();
        named.insert(codec.basis().map(|basis| basis.id().0));
        let tokens = source.tokens(*seed, 4, MAX_TOKENS);
        let (mut k, mut v) = (vec![0f32; tokens.k.len()], vec![0f32; tokens.v.len()]);
        codec.decode(chunk, &mut k, &mut v).unwrap();
        assert!(error(&k, &tokens.k) + error(&v, &tokens.v) < 0.6);
    }
    assert!(named.len() >= 3 && named.contains(&None), "{} generations", named.len());
}

#[test]
fn bases_that_are_missing_damaged_or_foreign_are_named() {
    let source = source(7);
    let Folder(path, _dir) = folder();
    let basis = basis(&source);
    let codec = StorageCodec::new(source.shape.clone(), Some(basis.clone())).unwrap();
    let tokens = source.tokens(1, 0, MAX_TOKENS);
    let chunk =
        codec.encode(budget(), &Span::of(&source.shape, 4, MAX_TOKENS), &tokens.k, &tokens.v).unwrap();
    let open = || Generations::open(&path, MODEL, source.shape.clone()).unwrap();
    let said = |result: Result<&StorageCodec, StorageError>| result.unwrap_err().to_string();
    let file = path.join(format!("{}.tqb", basis.id()));
    assert_eq!(
        said(open().of(&chunk)),
        format!("basis does not fit: {} is not there, and a chunk needs it", file.display())
    );
    open().add(&basis).unwrap();
    open().of(&chunk).unwrap();
    assert!(said(open().of(&chunk[..80])).contains("truncated"));
    fs::write(path.join("newest"), "the last one").unwrap();
    assert!(said(open().newest()).contains("64 hexadecimal digits"));
    let mut other = source.learner();
    other.learn(&tokens.k, &tokens.v, 0).unwrap();
    let other = other.freeze(MODEL).unwrap();
    fs::write(&file, other.to_bytes()).unwrap();
    assert!(said(open().of(&chunk)).contains(&format!("holds {}", other.id())));
    fs::write(&file, &basis.to_bytes()[1..]).unwrap();
    assert!(said(open().of(&chunk)).contains("not a basis"));
    let another = Generations::open(&path, "another model", source.shape.clone()).unwrap();
    assert!(another.add(&basis).unwrap_err().to_string().contains("of the model 'a model'"));
}

#[test]
fn sums_in_files_merge_to_the_same_basis() {
    let (first, second) = (source(7), source(8));
    let Folder(path, dir) = folder();
    let (mut one, mut other) = (learned(&first), learned(&second));
    one.mark(&(0..2000).collect::<Vec<u32>>());
    other.mark(&(5000..7000).collect::<Vec<u32>>());
    one.save(&path).unwrap();
    let mut read = Learner::load(&path).unwrap();
    assert_eq!(read.tokens(), one.tokens());
    assert_eq!(read.freeze(MODEL).unwrap(), one.freeze(MODEL).unwrap());
    read.merge(&other).unwrap();
    one.merge(&other).unwrap();
    let merged = read.freeze(MODEL).unwrap();
    assert_eq!(merged, one.freeze(MODEL).unwrap());
    assert_eq!(merged.learned_from(&(5000..7000).collect::<Vec<u32>>()), 1.0);
    // A basis of both texts serves both.
    let codec = StorageCodec::new(first.shape.clone(), Some(Arc::new(merged))).unwrap();
    for (source, unlike) in [(&first, &second), (&second, &first)] {
        let foreign = StorageCodec::new(source.shape.clone(), Some(basis(unlike))).unwrap();
        assert!(judged(&codec, source) < 0.7 * judged(&foreign, source));
    }
    let bytes = fs::read(&path).unwrap();
    let damaged = dir.path().join("damaged");
    let mut random = fastrand::Rng::with_seed(3);
    for round in 0..200 {
        let mut bytes = bytes.clone();
        let at = random.usize(..bytes.len());
        match round % 2 {
            0 => bytes.truncate(at),
            _ => bytes[at] ^= 1 << random.u32(..8),
        }
        fs::write(&damaged, &bytes).unwrap();
        let said = Learner::load(&damaged).unwrap_err().to_string();
        assert!(said.starts_with("moments: "), "{said}");
    }
}
