//! Chunks come back as near as their budget promises, for every shape and RoPE.

use std::sync::Arc;

use crate::common::{Source, error, rope};
use half::{bf16, f16};
use tqkv_storage::{Basis, Budget, Join, Learner, Rope, RopePairing, Span, StorageCodec};

fn bits(bits: f32) -> Budget {
    Budget::new(bits).unwrap()
}

/// Errors of keys and values of one chunk that was encoded and decoded.
fn errors(source: &Source, codec: &StorageCodec, budget: f32, span: &Span) -> (f64, f64) {
    let tokens = source.tokens(99, span.first_position, span.tokens);
    let bytes = codec.encode(bits(budget), span, &tokens.k, &tokens.v).unwrap();
    assert_eq!(bytes.len(), codec.encoded_bytes::<f32>(bits(budget), span).unwrap());
    let (mut k, mut v) = (vec![0.0f32; tokens.k.len()], vec![0.0f32; tokens.v.len()]);
    assert_eq!(codec.decode(&bytes, &mut k, &mut v).unwrap(), *span);
    (error(&k, &tokens.k), error(&v, &tokens.v))
}

fn with_basis(source: &Source, join: Join) -> StorageCodec {
    let mut learner = Learner::new(source.shape.clone(), join).unwrap();
    for seed in 0..4 {
        let tokens = source.tokens(seed, 0, 512);
        learner.learn(&tokens.k, &tokens.v, 0).unwrap();
    }
    let basis = learner.freeze("a model").unwrap();
    StorageCodec::new(source.shape.clone(), Some(Arc::new(basis))).unwrap()
}

#[test]
fn every_shape_and_rope_is_stored_with_a_basis_and_without() {
    let sources = [
        Source::new(2, 3, 64, 64, rope(0, RopePairing::Half, 64)),
        Source::new(2, 1, 128, 128, rope(0, RopePairing::Interleaved, 64)),
        Source::new(1, 4, 48, 48, Rope::none()),
        Source::new(2, 2, 80, 48, rope(0, RopePairing::Half, 20)),
        // Latent vectors: one vector per token, and its positional part.
        Source::new(2, 1, 192, 0, rope(128, RopePairing::Interleaved, 64)),
    ];
    for source in &sources {
        let plain = StorageCodec::new(source.shape.clone(), None).unwrap();
        let based = with_basis(source, source.shape.join());
        let span = Span::of(&source.shape, 512, 256);
        let (plain_k, plain_v) = errors(source, &plain, 2.0, &span);
        let (k, v) = errors(source, &based, 2.0, &span);
        assert!(plain_k < 0.1 && plain_v < 0.13, "{:?}: {plain_k} {plain_v}", source.shape);
        assert!(k < 0.7 * plain_k && v <= 0.7 * plain_v, "{:?}: {k} {v}, {plain_k} {plain_v}", source.shape);
    }
}

#[test]
fn more_bits_are_nearer_and_joint_is_nearer_than_apart() {
    let source = Source::new(1, 3, 64, 64, rope(0, RopePairing::Half, 64));
    let span = Span::of(&source.shape, 4096, 256);
    let (joint, apart) = (with_basis(&source, Join::Joint), with_basis(&source, Join::Apart));
    let at = |codec: &StorageCodec, budget| {
        let (k, v) = errors(&source, codec, budget, &span);
        k + v
    };
    let found: Vec<f64> = [0.66, 1.0, 1.5, 2.0].into_iter().map(|budget| at(&joint, budget)).collect();
    assert!(found.is_sorted_by(|a, b| *b < 0.8 * a), "{found:?}");
    for budget in [1.0, 2.0] {
        assert!(at(&joint, budget) < 0.8 * at(&apart, budget));
    }
}

#[test]
fn layers_that_say_the_same_are_nearer_in_one_basis() {
    let alone = Source::new(4, 1, 64, 64, rope(0, RopePairing::Half, 64));
    // Both layers of a pair are maps of the same hidden vectors.
    let source = alone.with_pairs_of_layers();
    let (one, two) = (with_basis(&source, Join::Joint), with_basis(&source, Join::Layers(2)));
    let span = Span::of(&source.shape, 700, 256);
    for budget in [0.7, 1.5] {
        let (one, two) = (errors(&source, &one, budget, &span), errors(&source, &two, budget, &span));
        assert!(two.0 < 0.75 * one.0 && two.1 < 0.75 * one.1, "{budget} bits: {one:?} {two:?}");
    }
    let bytes = two.basis().unwrap().to_bytes();
    assert_eq!(Basis::from_bytes(&bytes).unwrap(), *two.basis().unwrap());
    // The second pair alone is coded as it is among all. Half of it is refused.
    let tokens = source.tokens(2, 700, 256);
    let half = |x: &[f32]| x[x.len() / 2..].to_vec();
    let pair = Span { first_layer: 2, layers: 2, ..span };
    let (k, v) = (half(&tokens.k), half(&tokens.v));
    let all = two.encode(bits(1.0), &span, &tokens.k, &tokens.v).unwrap();
    let own = two.encode(bits(1.0), &pair, &k, &v).unwrap();
    let section = two.encoded_bytes::<f32>(bits(1.0), &span).unwrap() - own.len();
    assert_eq!(all[all.len() - section..], own[own.len() - section..]);
    let odd = two.encode(bits(1.0), &Span { first_layer: 1, ..pair }, &k, &v);
    assert_eq!(odd.unwrap_err().to_string(), "2 layers from layer 1 on; expected multiples of 2");
    for layers in [0, 1, 3, 8] {
        let refused = Learner::new(source.shape.clone(), Join::Layers(layers)).unwrap_err();
        let said = format!("a basis over {layers} layers of 4; expected 2 to 512 that divide them");
        assert_eq!(refused.to_string(), said);
    }
}

#[test]
fn the_error_is_what_the_widths_promise() {
    // White numbers give all runs the same width, so only the distortion of the codes is left.
    let source = Source::new(1, 4, 64, 64, Rope::none());
    let codec = StorageCodec::new(source.shape.clone(), None).unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut white = || (0..256 * 256).map(|_| rng.f32() - 0.5).collect::<Vec<f32>>();
    let (keys, values) = (white(), white());
    let span =
        Span { first_layer: 0, layers: 1, first_position: 9, tokens: 256, exact: 0, name: *b"by name." };
    let bytes = codec.encode(bits(2.17), &span, &keys, &values).unwrap();
    let (mut k, mut v) = (vec![0.0f32; keys.len()], vec![0.0f32; values.len()]);
    codec.decode(&bytes, &mut k, &mut v).unwrap();
    // Heads and scales take .169 bits. Two bits of a trellis code leave .0711, and the unbiased scale adds
    // its share.
    let promised = 0.0711 / (1.0 - 0.0711);
    for found in [error(&k, &keys), error(&v, &values)] {
        assert!((found / promised - 1.0).abs() < 0.12, "{found}, {promised} promised");
    }
}

#[test]
fn first_tokens_are_exact_in_every_number_format() {
    let source = Source::new(2, 2, 32, 32, rope(0, RopePairing::Half, 32));
    let codec = StorageCodec::new(source.shape.clone(), None).unwrap();
    let span = Span::of(&source.shape, 0, 40);
    assert_eq!(span.exact, 4);
    let tokens = source.tokens(5, 0, 40);
    let half = |x: &[f32]| x.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>();
    let (keys, values) = (half(&tokens.k), half(&tokens.v));
    let bytes = codec.encode(bits(4.0), &span, &keys, &values).unwrap();
    let (mut k, mut v) = (vec![bf16::ZERO; keys.len()], vec![bf16::ZERO; values.len()]);
    codec.decode(&bytes, &mut k, &mut v).unwrap();
    for (got, want) in [(&k, &keys), (&v, &values)] {
        for layer in 0..2 {
            let first = layer * 40 * 64;
            assert_eq!(got[first..first + 4 * 64], want[first..first + 4 * 64], "layer {layer}");
            assert_ne!(got[first..first + 40 * 64], want[first..first + 40 * 64], "layer {layer}");
        }
    }
    let (mut k, mut v) = (vec![f16::ZERO; keys.len()], vec![f16::ZERO; values.len()]);
    codec.decode(&bytes, &mut k, &mut v).unwrap();
    assert_eq!(k[0], f16::from_f32(keys[0].to_f32()));
}

#[test]
fn short_chunks_and_single_layers_are_chunks() {
    let source = Source::new(3, 2, 64, 64, rope(0, RopePairing::Half, 64));
    let based = with_basis(&source, Join::Joint);
    for tokens in [1, 2, 4, 5, 17, 255] {
        for first in [0, 1000] {
            let span = Span::of(&source.shape, first, tokens);
            let (k, v) = errors(&source, &based, 2.0, &span);
            // With only a few tokens, blocks are mostly filled with zeros.
            let most = if tokens < 8 { 0.5 } else { 0.25 };
            assert!(k < most && v < most, "{tokens} tokens from {first}: {k} {v}");
        }
    }
    // A layer alone is coded as it is among all.
    let span = Span::of(&source.shape, 300, 100);
    let tokens = source.tokens(3, 300, 100);
    let all = based.encode(bits(1.5), &span, &tokens.k, &tokens.v).unwrap();
    let one = Span { first_layer: 2, layers: 1, ..span };
    let of = |x: &[f32]| x[2 * x.len() / 3..].to_vec();
    let alone = based.encode(bits(1.5), &one, &of(&tokens.k), &of(&tokens.v)).unwrap();
    let (mut k, mut v) = (vec![0.0f32; 3 * 100 * 128], vec![0.0f32; 3 * 100 * 128]);
    let (mut k1, mut v1) = (vec![0.0f32; 100 * 128], vec![0.0f32; 100 * 128]);
    based.decode(&all, &mut k, &mut v).unwrap();
    assert_eq!(based.decode(&alone, &mut k1, &mut v1).unwrap(), one);
    assert_eq!((&k1[..], &v1[..]), (&k[2 * 100 * 128..], &v[2 * 100 * 128..]));
}

#[test]
fn bytes_do_not_depend_on_threads() {
    let source = Source::new(4, 3, 64, 64, rope(0, RopePairing::Half, 64));
    let span = Span::of(&source.shape, 0, 256);
    let tokens = source.tokens(8, 0, 256);
    for codec in [with_basis(&source, Join::Joint), StorageCodec::new(source.shape.clone(), None).unwrap()] {
        let encoded = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| codec.encode(bits(1.0), &span, &tokens.k, &tokens.v).unwrap())
        };
        assert_eq!(encoded(1), encoded(3));
    }
}

#[test]
fn thinner_chunks_are_smaller_and_still_near() {
    let source = Source::new(2, 3, 64, 64, rope(0, RopePairing::Half, 64));
    let codec = with_basis(&source, Join::Joint);
    let span = Span::of(&source.shape, 512, 256);
    let tokens = source.tokens(4, 512, 256);
    let whole = codec.encode(bits(2.0), &span, &tokens.k, &tokens.v).unwrap();
    let mut before = (whole.len(), 0.0);
    for least in 2..=3 {
        let thin = codec.thin(&whole, least).unwrap();
        let (mut k, mut v) = (vec![0.0f32; tokens.k.len()], vec![0.0f32; tokens.v.len()]);
        assert_eq!(codec.decode(&thin, &mut k, &mut v).unwrap(), span);
        let now = (thin.len(), error(&k, &tokens.k) + error(&v, &tokens.v));
        assert!(now.0 < before.0 && now.1 > before.1 && now.1 < 0.5, "{before:?}, {now:?}");
        assert_eq!(codec.thin(&thin, 3).unwrap(), codec.thin(&whole, 3).unwrap());
        before = now;
    }
    assert!(codec.thin(&whole, 1).is_err() && codec.thin(&whole, 6).is_err());
}

#[test]
fn the_position_of_tokens_is_found_by_their_keys() {
    for pairs in [RopePairing::Half, RopePairing::Interleaved] {
        let source = Source::new(2, 3, 64, 64, rope(0, pairs, 64));
        let codec = with_basis(&source, Join::Joint);
        let candidates: Vec<u64> = (0..64).map(|i| 256 * i).collect();
        for true_position in [0, 256, 7 * 256, 63 * 256] {
            let tokens = source.tokens(77, true_position, 256);
            let span = Span::of(&source.shape, 0, 256);
            assert_eq!(codec.locate(&span, &tokens.k, &candidates).unwrap(), true_position);
        }
    }
}
