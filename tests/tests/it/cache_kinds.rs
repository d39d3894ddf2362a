//! Kinds of layers and of attention, policies, access to a cache's contents, and refused specs.

use crate::lives::{DIM, base, filled, snapshot, tokens};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use tqkv::attention::AttentionCache;
use tqkv::cache::{Arithmetic, CacheSpec, Centring, Cold, Floats, KvCache, LayerKind, LayerPolicy};
use tqkv::dense::DenseCache;
use tqkv::slots::{Mask, SlotCache};
use tqkv_core::{CodecId, KvShape};
use tqkv_tests::inputs::Gaussian;
use tqkv_tests::oracle;

#[test]
fn what_was_decoded_can_be_read_back() {
    for spec in [base(), base().sliding_window(100), base().codecs(CodecId::F16, CodecId::Q8_0)] {
        let cache = filled(spec.arithmetic(Arithmetic::F32), 600);
        let (k, v) = tokens(1, 0, 600);
        let first = cache.stats().evicted + 4;
        let keys = cache.keys(0, 0, first..600).unwrap();
        let values = cache.values(0, 0, first..600).unwrap();
        assert!(oracle::relative_mse(&k[first * DIM..], &keys) < 0.012);
        assert!(oracle::relative_mse(&v[first * DIM..], &values) < 0.012);
        assert_eq!(cache.keys(0, 0, 580..600).unwrap(), keys[(580 - first) * DIM..]);
        let q = Gaussian::new(3).vector(DIM);
        let scores = cache.scores(0, 0, &q).unwrap();
        for (score, key) in scores.iter().rev().zip(keys.chunks_exact(DIM).rev()).take(100) {
            let want = oracle::dot(&q, key) / (DIM as f64).sqrt();
            assert!((f64::from(*score) - want).abs() < 1e-3, "{score} against {want}");
        }
        assert_eq!(cache.keys(0, 0, 0..4).unwrap().len(), 4 * DIM);
        assert!(cache.keys(0, 0, 590..601).is_err() && cache.keys(0, 1, 0..1).is_err());
        assert_eq!(cache.stats().evicted > 0, cache.keys(0, 0, 4..600).is_err());
    }
}

/// The contents and the results of a cache after keys and values, some one by one and some as a chunk.
fn taken<'a, T>(k: &'a [T], v: &'a [T]) -> (Vec<u8>, Vec<f32>)
where
    Floats<'a>: From<&'a [T]>,
{
    let (mut cache, n) = (KvCache::new(base()).unwrap(), k.len() / DIM);
    for i in 0..n / 2 {
        cache.append(0, &k[i * DIM..(i + 1) * DIM], &v[i * DIM..(i + 1) * DIM]).unwrap();
    }
    let half = n / 2 * DIM;
    let q = Gaussian::new(4).vector(2 * (n * DIM - half));
    let mut out = vec![0.0; q.len()];
    cache.attend_prefill(0, &q, &k[half..], &v[half..], &mut out).unwrap();
    (snapshot(&cache), out)
}

#[test]
fn rows_of_16_bits_are_taken_as_they_are() {
    let (k, v) = tokens(1, 0, 300);
    let wide = |x: &[bf16]| x.iter().map(|x| x.to_f32()).collect::<Vec<_>>();
    let (k, v) = [k, v].map(|x| x.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>()).into();
    let want = taken(&wide(&k), &wide(&v));
    assert_eq!(taken(&k, &v), want);
    let halves = |x: &[bf16]| x.iter().map(|x| f16::from_f32(x.to_f32())).collect::<Vec<_>>();
    let (k, v) = (halves(&k), halves(&v));
    assert!(k.iter().all(|x| x.is_finite()));
    assert_eq!(taken(&k, &v), want, "what is kept is f16");
    let mut long = vec![0.0; k.len()];
    k.convert_to_f32_slice(&mut long);
    let mut cache = KvCache::new(base()).unwrap();
    let mut bad = [bf16::ONE; DIM];
    bad[7] = bf16::NAN;
    let error = cache.append(0, &bad, &long[..DIM]).unwrap_err().to_string();
    assert!(error.contains("key") && cache.is_empty(), "{error}");
    cache.append(0, &k[..DIM], &long[..DIM]).unwrap();
}

/// The results of every call that takes queries, with 3 tokens of queries after 300 tokens.
fn answers<'a, T>(q: &'a [T]) -> Vec<f32>
where
    Floats<'a>: From<&'a [T]>,
{
    let (k, v) = tokens(1, 0, 303);
    let (first, last) = (300 * DIM, q.len() - 2 * DIM);
    let mut cache = KvCache::new(base()).unwrap();
    cache.append(0, &k[..first], &v[..first]).unwrap();
    let mut out = vec![0.0; q.len()];
    cache.attend_prefill(0, q, &k[first..], &v[first..], &mut out).unwrap();
    let mut single = vec![0.0; 2 * DIM];
    cache.attend(0, &q[last..], &mut single).unwrap();
    let mut many = vec![0.0; q.len()];
    KvCache::attend_many(&[&cache; 3], 0, q, &mut many).unwrap();
    let scores = cache.scores(0, 0, &q[last + DIM..]).unwrap();
    let mut slots = SlotCache::new(base(), 512).unwrap();
    let all: Vec<usize> = (0..303).collect();
    slots.write(0, &all, &all, &k, &v).unwrap();
    slots.encode(0).unwrap();
    let mut mask = Mask::new(512);
    (0..3).for_each(|i| mask.see(0..301 + i).unwrap());
    let mut of_slots = vec![0.0; q.len()];
    slots.attend(0, q, &mask, &mut of_slots).unwrap();
    [out, single, many, scores, of_slots].concat()
}

#[test]
fn queries_of_16_bits_give_the_bits_of_the_same_queries_in_f32() {
    let bits = |x: Vec<f32>| x.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let q = Gaussian::new(9).vector(3 * 2 * DIM);
    let halves: Vec<f16> = q.iter().map(|&x| f16::from_f32(x)).collect();
    let shorts: Vec<bf16> = q.iter().map(|&x| bf16::from_f32(x)).collect();
    let wide_halves: Vec<f32> = halves.iter().map(|x| x.to_f32()).collect();
    let wide_shorts: Vec<f32> = shorts.iter().map(|x| x.to_f32()).collect();
    let (of_halves, of_shorts) = (bits(answers(&halves)), bits(answers(&shorts)));
    assert_eq!(of_halves, bits(answers(&wide_halves)));
    assert_eq!(of_shorts, bits(answers(&wide_shorts)));
    assert!(of_halves != of_shorts && of_halves != bits(answers(&q)), "rounding of queries shows");
    let cache = KvCache::new(base()).unwrap();
    let error = cache.attend(0, &[bf16::NAN; 2 * DIM], &mut [0.0; 2 * DIM]).unwrap_err().to_string();
    assert!(error.contains("query of layer 0, token 0, head 0"), "{error}");
}

/// Scale, soft cap, learned sinks and values of another width, compared with f64 over the cache's contents.
#[test]
fn every_kind_of_attention_equals_f64_over_what_is_held() {
    const VALUE: usize = 48;
    for (cap, sinks, window, scale) in
        [(None, false, None, None), (Some(3.0), true, None, None), (None, true, Some(90), Some(0.3))]
    {
        let mut spec = CacheSpec::new(2, 4, 2, DIM).codecs(CodecId::S4, CodecId::S3).hot(8);
        spec.shape = spec.shape.with_value_dim(VALUE);
        let mut spec = spec
            .arithmetic(Arithmetic::F32)
            .kinds(vec![LayerKind::None, window.map_or(LayerKind::Full, LayerKind::Sliding)]);
        spec.soft_cap = cap;
        spec.scale = scale;
        if sinks {
            spec = spec.sink_logits((0..8).map(|i| i as f32 / 3.0).collect());
        }
        let mut cache = KvCache::new(spec.clone()).unwrap();
        let mut gaussian = Gaussian::new(4);
        let n = 400;
        let (k, v) = (gaussian.vector(n * 2 * DIM), gaussian.vector(n * 2 * VALUE));
        let q = gaussian.vector(n * 4 * DIM);
        let mut out = vec![0.0; n * 4 * VALUE];
        cache.attend_prefill(1, &q, &k, &v, &mut out).unwrap();
        assert!(cache.append(0, &k, &v).unwrap_err().to_string().contains("LayerKind::None"));
        assert_eq!(cache.len(), n);
        let q = &q[(n - 1) * 4 * DIM..];
        let mut single = vec![0.0; 4 * VALUE];
        cache.attend(1, q, &mut single).unwrap();
        for head in 0..4 {
            let first = window.map_or(0, |window| n - window);
            let seen: Vec<usize> = (0..n).filter(|&i| i >= first).collect();
            let held = |from: usize, to: usize| {
                (cache.keys(1, head / 2, from..to).unwrap(), cache.values(1, head / 2, from..to).unwrap())
            };
            let (keys, values): (Vec<_>, Vec<_>) = seen.iter().map(|&i| held(i, i + 1)).unzip();
            let factor = f64::from(scale.unwrap_or(1.0 / (DIM as f32).sqrt()));
            let logit = |key: &Vec<f32>| {
                let logit = oracle::dot(&q[head * DIM..(head + 1) * DIM], key) * factor;
                cap.map_or(logit, |cap| f64::from(cap) * (logit / f64::from(cap)).tanh())
            };
            let weights: Vec<f64> = keys.iter().map(|key| logit(key).exp()).collect();
            let sink = if sinks { f64::from((4 + head) as f32 / 3.0).exp() } else { 0.0 };
            let sum = weights.iter().sum::<f64>() + sink;
            for i in 0..VALUE {
                let want: f64 =
                    weights.iter().zip(&values).map(|(w, value)| w * f64::from(value[i])).sum::<f64>() / sum;
                for got in [single[head * VALUE + i], out[((n - 1) * 4 + head) * VALUE + i]] {
                    assert!(
                        (f64::from(got) - want).abs() < 1e-4,
                        "{spec:?} head {head}: {got} against {want}"
                    );
                }
            }
        }
    }
}

#[test]
fn policies_give_layers_their_codecs() {
    use CodecId::{I8, S2, S4};
    let codecs = |policy: LayerPolicy| -> Vec<CodecId> {
        let spec = CacheSpec::new(6, 1, 1, DIM).codecs(S2, S2).layers(policy);
        let cache = KvCache::new(spec).unwrap();
        (0..6).map(|layer| cache.spec().codecs_at(layer).0).collect()
    };
    let high = (I8, S4);
    assert_eq!(codecs(LayerPolicy::Uniform), [S2; 6]);
    assert_eq!(codecs(LayerPolicy::Boundary { layers: 2, codecs: high }), [I8, I8, S2, S2, I8, I8]);
    assert_eq!(codecs(LayerPolicy::Tail { layers: 1, codecs: high }), [S2, S2, S2, S2, S2, I8]);
    assert_eq!(codecs(LayerPolicy::Gradient(vec![(S2, S2), (S4, S2), high])), [S2, S2, S4, S4, I8, I8]);
    assert_eq!(
        codecs(LayerPolicy::Custom(vec![high, (S2, S2), (S2, S2), high, (S2, S2), (S4, S4)])),
        [I8, S2, S2, I8, S2, S4]
    );
}

/// One vector per token serves as keys and values of all heads, with positions next to it. Compares with f64
/// over the cache's contents.
#[test]
fn latent_vectors_are_keys_and_values() {
    const LATENT: usize = 64;
    const POSITION: usize = 16;
    const HEADS: usize = 5;
    for (key, window) in
        [(CodecId::S4, None), (CodecId::T2S8, None), (CodecId::F16, None), (CodecId::N4, Some(100))]
    {
        let mut spec =
            CacheSpec::mla(1, HEADS, LATENT, POSITION).codecs(key, CodecId::S4).hot(16).scale(0.15);
        spec.sliding_window = window;
        if key == CodecId::N4 {
            spec = spec.cold(50, Cold::Demote { key: CodecId::N3, value: CodecId::N3 });
        }
        let mut cache = KvCache::new(spec.clone()).unwrap();
        let (mut gaussian, width, n) = (Gaussian::new(8), LATENT + POSITION, 500);
        let (k, q) = (gaussian.vector(n * width), gaussian.vector(n * HEADS * width));
        let mut chunk = vec![0.0; n * HEADS * LATENT];
        // A model runner only knows the trait.
        let runner: &mut dyn AttentionCache = &mut cache;
        let (first_q, first_k) = (&q[..300 * HEADS * width], &k[..300 * width]);
        runner.attend_chunk(0, first_q, first_k, &[], &mut chunk[..300 * HEADS * LATENT]).unwrap();
        let bytes = snapshot(&cache);
        let mut cache = KvCache::new(spec.clone()).unwrap();
        cache.restore(&mut &bytes[..]).unwrap();
        for i in 300..n {
            cache.append(0, &k[i * width..(i + 1) * width], Floats::NONE).unwrap();
            let at = i * HEADS * LATENT..(i + 1) * HEADS * LATENT;
            cache.attend(0, &q[i * HEADS * width..(i + 1) * HEADS * width], &mut chunk[at]).unwrap();
        }
        let last = n - 1;
        for head in 0..HEADS {
            let q = &q[(last * HEADS + head) * width..][..width];
            let first = window.map_or(0, |window| n - window);
            let seen: Vec<usize> = (0..n).filter(|&i| i < 4 || i >= first).collect();
            let scores = cache.scores(0, head, q).unwrap();
            let latents: Vec<Vec<f32>> =
                seen.iter().map(|&i| cache.values(0, 0, i..i + 1).unwrap()).collect();
            assert_eq!(latents[9], cache.keys(0, 0, seen[9]..seen[9] + 1).unwrap());
            let logits = seen.iter().zip(&latents).map(|(&i, latent)| {
                let position: Vec<f32> = k[i * width + LATENT..(i + 1) * width]
                    .iter()
                    .map(|&x| f16::from_f32(x).to_f32())
                    .collect();
                0.15f32 as f64 * (oracle::dot(&q[..LATENT], latent) + oracle::dot(&q[LATENT..], &position))
            });
            let logits: Vec<f64> = logits.collect();
            for (score, logit) in scores.iter().zip(&logits) {
                assert!((f64::from(*score) - logit).abs() < 1e-4, "{score} against {logit}");
            }
            let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
            for i in 0..LATENT {
                let want: f64 = logits
                    .iter()
                    .zip(&latents)
                    .map(|(l, latent)| l.exp() * f64::from(latent[i]))
                    .sum::<f64>()
                    / sum;
                let got = chunk[(last * HEADS + head) * LATENT + i];
                assert!((f64::from(got) - want).abs() < 1e-4, "{key:?} head {head}: {got} against {want}");
            }
        }
        // A latent vector is stored once: codes, the positional part, and the uncompressed tokens.
        let codes = key.block_bytes(LATENT).unwrap() + 2 * POSITION;
        let most = n * codes + 40 * 2 * width + 4096;
        assert!(cache.stats().allocated_bytes < most, "{} bytes, {most}", cache.stats().allocated_bytes);
        assert!(cache.append(0, &k[..width], &k[..LATENT]).unwrap_err().to_string().contains("expected 0"));
        let (before, len) = (cache.scores(0, 0, &q[..width]).unwrap(), cache.len());
        let mut bad = k[..2 * width].to_vec();
        bad[width + LATENT + 3] = f32::NAN;
        assert!(cache.append(0, &bad, Floats::NONE).is_err());
        assert_eq!((cache.scores(0, 0, &q[..width]).unwrap(), cache.len()), (before, len));
    }
}

#[test]
fn the_monitor_sees_what_codecs_and_centring_do() {
    let of = |spec: CacheSpec| filled(spec, 3000).head_stats().next().unwrap();
    let stats = of(base().codecs(CodecId::S4, CodecId::S2));
    assert_eq!((stats.layer, stats.kv_head), (0, 0));
    assert!(stats.means > 3 && stats.allocated_bytes > 0, "{stats:?}");
    // The offset has 5/3 of the energy of the rest.
    assert!(stats.centred_energy > 0.2 && stats.centred_energy < 0.6, "{stats:?}");
    // The mean of values has twice the energy of the rest.
    assert!(stats.value_error > 0.02 && stats.value_error < 0.06, "{stats:?}");
    let plain = of(base().codecs(CodecId::S4, CodecId::S2).centring(Centring::Off));
    assert!(plain.value_error > 0.07 && plain.value_error < 0.16, "{plain:?}");
    assert_eq!((plain.means, plain.centred_energy), (0, 1.0));
    assert!(plain.key_error > 1.5 * stats.key_error, "{plain:?} {stats:?}");
    assert_eq!(of(base().codecs(CodecId::F16, CodecId::F16)).key_error, 0.0);
}

#[test]
fn specs_that_no_cache_can_have_are_refused() {
    let refused = |spec: CacheSpec| KvCache::new(spec).unwrap_err().to_string();
    let demote = |key, value| Cold::Demote { key, value };
    assert!(refused(base().hot(usize::MAX - 2)).contains("hot window"));
    assert!(refused(base().sinks(usize::MAX)).contains("sinks"));
    assert!(refused(CacheSpec::new(1 << 40, 1, 1, 32)).contains("KV heads"));
    assert!(
        refused(base().cold(100, demote(CodecId::S5, CodecId::N2)))
            .contains("expected a codec with fewer bits")
    );
    assert!(
        refused(
            base().cold(100, demote(CodecId::N2, CodecId::N2)).cold(90, demote(CodecId::N2, CodecId::N2))
        )
        .contains("not in order of age")
    );
    let spill = || Cold::Spill(std::env::temp_dir());
    assert!(refused(base().cold(100, spill()).cold(200, demote(CodecId::N2, CodecId::N2))).contains("spill"));
    assert!(refused(base().kinds(vec![LayerKind::Full; 2])).contains("one per layer"));
    assert!(refused(base().kinds(vec![LayerKind::None])).contains("no layer"));
    assert!(refused(base().layers(LayerPolicy::Custom(vec![]))).contains("one per layer"));
    assert!(refused(base().layers(LayerPolicy::Gradient(vec![]))).contains("gradient"));
    assert!(refused(base().sink_logits(vec![1.0])).contains("one per query head"));
    assert!(refused(base().sink_logits(vec![f32::NAN; 2])).contains("finite"));
    assert!(refused(base().soft_cap(0.0)).contains("soft cap"));
    assert!(refused(base().scale(f32::INFINITY)).contains("scale of the logits must be finite"));
    let mut latent = CacheSpec::mla(1, 4, 64, 16);
    latent.position_dim = 8;
    assert!(refused(latent).contains("64 (value_dim) + 8 (position_dim)"));
}

/// The exact cache accepts the same shapes.
#[test]
fn the_exact_cache_has_values_of_another_width_too() {
    let shape = KvShape::new(1, 4, 2, DIM).with_value_dim(48);
    let spec = CacheSpec::from(shape).codecs(CodecId::F16, CodecId::F16);
    let (mut cache, mut dense) = (KvCache::new(spec).unwrap(), DenseCache::new(&shape.into()).unwrap());
    let mut gaussian = Gaussian::new(6);
    let n = 70;
    let (k, v, q) = (gaussian.vector(n * 2 * DIM), gaussian.vector(n * 2 * 48), gaussian.vector(n * 4 * DIM));
    let (mut got, mut want) = (vec![0.0; n * 4 * 48], vec![0.0; n * 4 * 48]);
    cache.attend_prefill(0, &q, &k, &v, &mut got).unwrap();
    dense.attend_chunk(0, &q, &k, &v, &mut want).unwrap();
    assert!(oracle::relative_mse(&want, &got) < 1e-6);
    dense.truncate(30).unwrap();
    assert_eq!(dense.values(0, 1).unwrap().len(), 30 * 48);
}

/// Some layers of this model slide. Only the full layers keep sinks, and a snapshot records that.
#[test]
fn sinks_stay_in_full_layers_alone() {
    let spec = || CacheSpec::new(2, 2, 1, DIM).codecs(CodecId::S2, CodecId::S2).hot(8).sinks(4);
    let kinds = spec().kinds(vec![LayerKind::Sliding(90), LayerKind::Full]);
    let (k, v) = (Gaussian::new(5).vector(700 * DIM), Gaussian::new(6).vector(700 * DIM));
    let filled = |spec: CacheSpec| {
        let mut cache = KvCache::new(spec).unwrap();
        for layer in 0..2 {
            cache.append(layer, &k, &v).unwrap();
        }
        cache
    };
    let halves: Vec<f32> = k[..4 * DIM].iter().map(|x| f16::from_f32(*x).to_f32()).collect();
    let cache = filled(kinds);
    assert_eq!(cache.keys(1, 0, 0..4).unwrap(), halves);
    assert!(cache.keys(0, 0, 0..4).is_err(), "the model does not see them");
    let read = |cache: &KvCache| {
        let mut bytes = Vec::new();
        cache.snapshot(&mut bytes).unwrap();
        KvCache::from_snapshot(&mut &bytes[..]).unwrap()
    };
    let q = Gaussian::new(7).vector(2 * DIM);
    let attended = |cache: &mut KvCache| {
        [0, 1].map(|layer| {
            let mut out = vec![0.0; 2 * DIM];
            cache.attend(layer, &q, &mut out).unwrap();
            out
        })
    };
    // A window that the cache sets, not the model, keeps sinks. A restored cache does too.
    for mut cache in [cache, filled(spec().sliding_window(90))] {
        let mut back = read(&cache);
        let own = [0, 1].map(|layer| (cache.spec().kind(layer), cache.spec().sinks_at(layer)));
        assert_eq!([0, 1].map(|layer| (back.spec().kind(layer), back.spec().sinks_at(layer))), own);
        assert_eq!(attended(&mut back), attended(&mut cache));
    }
    assert_eq!(read(&filled(spec().sliding_window(90))).keys(0, 0, 0..4).unwrap(), halves);
}
