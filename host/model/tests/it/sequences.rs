//! Compares several sequences in one forward pass with the same sequences one after the other.

use std::ops::ControlFlow;

use crate::errors::Failing;
use tqkv::attention::AttentionCache;
use tqkv::cache::{CacheSpec, KvCache};
use tqkv::error::CacheError;
use tqkv_core::CodecId;
use tqkv_model::generate::{Caches, Continuations, GenerateSpec, StopReason, generate, generate_many};
use tqkv_model::{Model, shipped};

fn tokens(from: usize, n: usize) -> Vec<u32> {
    shipped::HELDOUT_TEXT[from..from + n].iter().map(|b| u32::from(*b)).collect()
}

fn compressed(model: &Model) -> KvCache {
    KvCache::new(CacheSpec::from(model.config().kv_shape()).codecs(CodecId::S4, CodecId::S3)).unwrap()
}

/// Sequences of different lengths and texts, in two exact caches and one compressed cache.
#[test]
fn sequences_together_give_what_each_gives_alone() {
    let model = Model::shipped().unwrap();
    let lengths = [3, 90, 200];
    let caches = || -> [Box<dyn AttentionCache>; 3] {
        let dense = || Box::new(model.config().dense_cache().unwrap());
        let mut caches: [Box<dyn AttentionCache>; 3] = [dense(), dense(), Box::new(compressed(&model))];
        for (i, cache) in caches.iter_mut().enumerate() {
            model.forward(&tokens(1000 * i, lengths[i]), 0, &mut **cache).unwrap();
        }
        caches
    };
    let (mut together, mut alone) = (caches(), caches());
    let mut worst = [0.0f32; 3];
    for step in 0..40 {
        let next: Vec<u32> = (0..3).map(|i| tokens(1000 * i + lengths[i] + step, 1)[0]).collect();
        let positions = lengths.map(|n| n + step);
        let mut each = together.each_mut().map(|cache| &mut **cache as &mut dyn AttentionCache);
        let rows = model.step_many(&next, &positions, &mut each).unwrap();
        let rows: Vec<_> = rows.chunks_exact(model.config().vocab_size).collect();
        assert_eq!(rows.len(), 3);
        for (i, cache) in alone.iter_mut().enumerate() {
            let want = model.forward(&next[i..=i], positions[i], &mut **cache).unwrap();
            let largest = want.iter().map(|x| x.abs()).fold(0.0, f32::max);
            let apart = rows[i].iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            worst[i] = worst[i].max(apart / largest);
        }
    }
    // The order of sums differs. In the compressed cache that sometimes moves a value over a boundary.
    println!("{worst:?}");
    assert!(worst[0] < 1e-5 && worst[1] < 1e-5 && worst[2] < 2e-3, "{worst:?}");
    assert_eq!(together.each_ref().map(|cache| cache.len()), lengths.map(|n| n + 40));
}

#[test]
fn where_one_cache_refuses_all_are_as_they_were() {
    let model = Model::shipped().unwrap();
    let mut good = model.config().dense_cache().unwrap();
    let mut bad = Failing(model.config().dense_cache().unwrap());
    let mut after = model.config().dense_cache().unwrap();
    model.forward(&tokens(0, 9), 0, &mut good).unwrap();
    model.forward(&tokens(0, 3), 0, &mut bad).unwrap();
    model.forward(&tokens(0, 5), 0, &mut after).unwrap();
    let mut step = |tokens: &[u32], positions: &[usize]| {
        let mut caches: [&mut dyn AttentionCache; 3] = [&mut good, &mut bad, &mut after];
        let error = model.step_many(tokens, positions, &mut caches).unwrap_err().to_string();
        assert_eq!([good.len(), bad.len(), after.len()], [9, 3, 5]);
        for (cache, len) in [(&good, 9), (&bad.0, 3), (&after, 5)] {
            let kept = (0..4).all(|layer| cache.keys(layer, 0).unwrap().len() == len * 128);
            assert!(kept, "every layer has {len} tokens");
        }
        error
    };
    assert_eq!(step(&[1, 2, 3], &[9, 3, 5]), "cache spec: refused on purpose");
    assert!(step(&[1, 256, 3], &[9, 3, 5]).contains("token 256 is out of range"));
    assert!(step(&[1, 2, 3], &[9, 3, 1024]).contains("context is 1024"));
    for (tokens, positions) in [(&[1, 2][..], &[9, 3, 5][..]), (&[1, 2, 3], &[9, 3]), (&[], &[])] {
        let error = step(tokens, positions);
        assert!(error.contains("each sequence needs one of each"), "{error}");
    }
    assert!(model.step_many(&[], &[], &mut []).unwrap_err().to_string().contains("at least one token"));
}

#[test]
fn continuations_are_those_of_their_seeds() {
    let model = Model::shipped().unwrap();
    let prompt = &shipped::HELDOUT_TEXT[..120];
    let new_cache =
        || -> Result<Box<dyn AttentionCache>, CacheError> { Ok(Box::new(model.config().dense_cache()?)) };
    let spec = GenerateSpec { max_new_tokens: 24, temperature: 1.0, seed: 7 };
    let mut steps = Vec::new();
    let made = generate_many(&model, prompt, &spec, 3, Caches::Each(&new_cache), &mut |tokens| {
        steps.push(tokens);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!((steps, made.prompt_tokens, made.decode_tokens), (vec![3; 24], 120, 3 * 23));
    assert!(made.decode_tokens_per_second() > 0.0);
    for (i, sequence) in made.sequences.iter().enumerate() {
        let spec = GenerateSpec { seed: 7 + i as u64, ..spec };
        let mut cache = model.config().dense_cache().unwrap();
        let alone = generate(&model, prompt, &spec, &mut cache, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!((&sequence.text, &sequence.tokens), (&alone.text, &alone.tokens), "sequence {i}");
        assert_eq!((sequence.cache_tokens, sequence.stop), (alone.cache_tokens, StopReason::Length));
    }
    assert_ne!(made.sequences[0].text, made.sequences[1].text);

    let stopped =
        generate_many(&model, prompt, &spec, 2, Caches::Each(&new_cache), &mut |_| ControlFlow::Break(()))
            .unwrap();
    assert!(stopped.sequences.iter().all(|s| (s.tokens.len(), s.stop) == (1, StopReason::Cancelled)));
    let none = GenerateSpec { max_new_tokens: 0, ..spec };
    let none =
        generate_many(&model, prompt, &none, 2, Caches::Each(&new_cache), &mut |_| ControlFlow::Continue(()));
    assert!(none.unwrap().sequences.iter().all(|s| s.tokens.is_empty() && s.cache_tokens == 120));
    let long = GenerateSpec { max_new_tokens: 905, ..spec };
    let long =
        generate_many(&model, prompt, &long, 2, Caches::Each(&new_cache), &mut |_| ControlFlow::Continue(()));
    assert!(long.unwrap_err().to_string().contains("context is 1024"));
}

/// A fork of the cache that holds the prompt continues like a cache of its own. The prompt is held once.
#[test]
fn forks_of_a_prompt_continue_as_caches_of_their_own() {
    let model = Model::shipped().unwrap();
    let prompt = &shipped::HELDOUT_TEXT[..600];
    let spec = GenerateSpec { max_new_tokens: 24, temperature: 1.0, seed: 7 };
    let made = |caches: Caches<'_>| {
        generate_many(&model, prompt, &spec, 4, caches, &mut |_| ControlFlow::Continue(())).unwrap()
    };
    let each = made(Caches::Each(&|| Ok(Box::new(compressed(&model)))));
    let mut used = compressed(&model);
    model.forward(&tokens(9, 30), 0, &mut used).unwrap();
    let forked = made(Caches::Forked(Box::new(used)));
    let texts = |made: &Continuations| made.sequences.iter().map(|s| s.text.clone()).collect::<Vec<_>>();
    assert_eq!(texts(&forked), texts(&each));
    let whole = |made: &Continuations| made.sequences.iter().map(|s| s.cache_bytes).sum::<usize>();
    assert_eq!(each.cache_bytes, whole(&each), "nothing is shared");
    let (shared, unshared) = (forked.cache_bytes, whole(&forked));
    println!("{shared} {unshared}");
    assert!(shared < unshared, "{shared} {unshared}");
}
