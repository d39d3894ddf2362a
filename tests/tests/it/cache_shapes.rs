//! Layers with shapes of their own: each is to the bit the only layer of a cache of that shape.

use tqkv::cache::{Budget, CacheSpec, KvCache, LayerKind, LayerPolicy, LayerShape};
use tqkv::dense::DenseCache;
use tqkv_core::{CodecId, KvShape};
use tqkv_tests::inputs::Gaussian;

use crate::lives::snapshot;

const HEADS: usize = 8;
const TOKENS: usize = 400;

/// A model as Gemma 4: windows with many narrow heads, then a layer with few wide ones; and values of
/// another width.
fn shapes() -> [LayerShape; 3] {
    [(4, 64, 64), (1, 128, 128), (2, 64, 128)].map(|(num_kv_heads, head_dim, value_dim)| LayerShape {
        num_kv_heads,
        head_dim,
        value_dim,
    })
}

fn kinds() -> Vec<LayerKind> {
    vec![LayerKind::Sliding(200), LayerKind::Full, LayerKind::Full]
}

fn settings(spec: CacheSpec) -> CacheSpec {
    spec.codecs(CodecId::T4, CodecId::S3)
        .hot(32)
        .cold(256, tqkv::cache::Cold::Demote { key: CodecId::T2, value: CodecId::S2 })
}

fn mixed() -> CacheSpec {
    settings(CacheSpec::new(3, HEADS, 4, 64)).layer_shapes(shapes().to_vec()).kinds(kinds())
}

/// The cache of one layer alone.
fn alone(layer: usize) -> KvCache {
    let LayerShape { num_kv_heads, head_dim, value_dim } = shapes()[layer];
    let shape = KvShape::new(1, HEADS, num_kv_heads, head_dim).with_value_dim(value_dim);
    let written = settings(CacheSpec::from(shape)).kinds(vec![kinds()[layer]]);
    assert_eq!(mixed().one_layer(layer).unwrap(), written);
    KvCache::new(written).unwrap()
}

/// Keys, values and queries of a layer.
fn inputs(layer: usize, tokens: usize) -> [Vec<f32>; 3] {
    let LayerShape { num_kv_heads, head_dim, value_dim } = shapes()[layer];
    let random = |seed: u64, width: usize| Gaussian::new(seed + layer as u64).vector(tokens * width);
    [random(1, num_kv_heads * head_dim), random(11, num_kv_heads * value_dim), random(21, HEADS * head_dim)]
}

#[test]
fn every_layer_is_a_cache_of_its_shape() {
    let mut cache = KvCache::new(mixed()).unwrap();
    let mut allocated = 0;
    for layer in 0..3 {
        let LayerShape { num_kv_heads, head_dim, value_dim } = shapes()[layer];
        let mut own = alone(layer);
        let [k, v, q] = inputs(layer, TOKENS);
        let mut outs = [(); 2].map(|()| vec![0.0; TOKENS * HEADS * value_dim]);
        cache.attend_prefill(layer, &q, &k, &v, &mut outs[0]).unwrap();
        own.attend_prefill(0, &q, &k, &v, &mut outs[1]).unwrap();
        assert_eq!(outs[0], outs[1], "layer {layer}");
        let [k, v, q] =
            [&k[..num_kv_heads * head_dim], &v[..num_kv_heads * value_dim], &q[..HEADS * head_dim]];
        cache.append(layer, k, v).unwrap();
        own.append(0, k, v).unwrap();
        let mut outs = [(); 2].map(|()| vec![0.0; HEADS * value_dim]);
        cache.attend(layer, q, &mut outs[0]).unwrap();
        own.attend(0, q, &mut outs[1]).unwrap();
        assert_eq!(outs[0], outs[1], "layer {layer}");
        let tokens = TOKENS - 40..TOKENS;
        let last = num_kv_heads - 1;
        assert_eq!(
            cache.keys(layer, last, tokens.clone()).unwrap(),
            own.keys(0, last, tokens.clone()).unwrap()
        );
        assert_eq!(cache.values(layer, last, tokens.clone()).unwrap(), own.values(0, last, tokens).unwrap());
        assert_eq!(
            cache.scores(layer, 7, &q[..head_dim]).unwrap(),
            own.scores(0, 7, &q[..head_dim]).unwrap()
        );
        let mut many = vec![0.0; 2 * HEADS * value_dim];
        KvCache::attend_many(&[&cache, &cache], layer, &[q, q].concat(), &mut many).unwrap();
        assert_eq!(many[..outs[0].len()], outs[0][..]);
        allocated += own.stats().allocated_bytes;
    }
    let held = cache.stats().allocated_bytes;
    assert!(held.abs_diff(allocated) * 20 < held, "{held} against {allocated}");
}

#[test]
fn snapshots_texts_forks_and_rings_keep_the_shapes() {
    let mut cache = KvCache::new(mixed()).unwrap();
    for layer in 0..3 {
        let [k, v, _] = inputs(layer, TOKENS);
        cache.append(layer, &k, &v).unwrap();
    }
    let bytes = snapshot(&cache);
    let back = KvCache::from_snapshot(&mut &bytes[..]).unwrap();
    assert_eq!(back.spec().layer_shapes, shapes());
    assert_eq!(snapshot(&back), bytes);
    assert_eq!(snapshot(&cache.fork().unwrap()), bytes);
    let other = KvCache::new(mixed().layer_shapes(Vec::new())).unwrap();
    let mut other = KvCache::within(other.spec().clone(), &Budget::unlimited()).unwrap();
    let said = other.restore(&mut &bytes[..]).unwrap_err().to_string();
    assert!(said.contains("snapshot"), "{said}");
    let text = mixed().to_string();
    assert!(text.contains("layer-shapes=4x64/1x128/2x64x128"), "{text}");
    assert_eq!(text.parse::<CacheSpec>().unwrap(), mixed());
    let ring = KvCache::new(mixed().ring(256)).unwrap();
    assert!(ring.stats().allocated_bytes > 0);
}

#[test]
fn shapes_that_no_cache_has_are_refused() {
    let refused = |spec: CacheSpec| KvCache::new(spec).unwrap_err().to_string();
    let changed = |layer: usize, change: fn(&mut LayerShape)| {
        let mut shapes = shapes();
        change(&mut shapes[layer]);
        mixed().layer_shapes(shapes.to_vec())
    };
    for (spec, word) in [
        (mixed().layer_shapes(shapes()[..2].to_vec()), "2 shapes for 3 layers"),
        (changed(1, |shape| shape.num_kv_heads = 3), "layer 1"),
        (changed(2, |shape| shape.head_dim = 0), "layer 2"),
        (changed(1, |shape| shape.num_kv_heads = usize::MAX), "layer 1"),
        (changed(1, |shape| shape.head_dim = 100).with("tier=none").unwrap(), "100"),
        (CacheSpec::mla(3, HEADS, 64, 16).layer_shapes(shapes().to_vec()), "position-dim="),
    ] {
        let said = refused(spec);
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(DenseCache::new(&mixed()).unwrap_err().to_string().contains("one shape"));
    let mut cache = KvCache::new(mixed()).unwrap();
    let [k, v, _] = inputs(1, 3);
    let said = cache.append(0, &k, &v).unwrap_err().to_string();
    assert!(said.contains("384") && cache.is_empty(), "{said}");
}

/// One limit on KV heads for what is made and for what is read back.
#[test]
fn a_cache_of_the_most_kv_heads_comes_back_and_one_of_more_is_not_made() {
    for text in ["layers=1 heads=65536 head-dim=16 s4", "layers=65536 heads=1 head-dim=16 s4"] {
        let mut made = KvCache::new(text.parse().unwrap()).unwrap();
        let bytes = snapshot(&made);
        made.restore(&mut &bytes[..]).unwrap();
        assert!(snapshot(&made) == bytes, "{text}");
    }
    for text in ["layers=1 heads=65537 head-dim=16 s4", "layers=65537 heads=1 head-dim=16 s4"] {
        let refused = KvCache::new(text.parse().unwrap()).unwrap_err().to_string();
        assert!(refused.contains("65537 KV heads in all layers: expected at most 65536"), "{refused}");
    }
}

/// All that a spec says by layer: windows, codecs, shapes and learned sinks, drawn at random.
#[test]
fn the_spec_of_one_layer_has_all_that_the_layer_has() {
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let layers = rng.usize(1..5);
        let shape = |rng: &mut fastrand::Rng| {
            let [head_dim, value_dim] = [(); 2].map(|()| [32, 64][rng.usize(..2)]);
            LayerShape { num_kv_heads: [1, 2, 4][rng.usize(..3)], head_dim, value_dim }
        };
        let codec = |rng: &mut fastrand::Rng| [CodecId::S4, CodecId::T2, CodecId::I8][rng.usize(..3)];
        let pair = |rng: &mut fastrand::Rng| (codec(rng), codec(rng));
        let mut spec = CacheSpec::new(layers, 4, 2, 64).hot(rng.usize(0..20)).sinks(rng.usize(0..9));
        spec.soft_cap = rng.bool().then_some(3.0);
        spec.sliding_window = rng.bool().then_some(50);
        spec.layers = match rng.u8(..5) {
            0 => LayerPolicy::Uniform,
            1 => LayerPolicy::Boundary { layers: 1, codecs: pair(&mut rng) },
            2 => LayerPolicy::Tail { layers: rng.usize(..=layers), codecs: pair(&mut rng) },
            3 => LayerPolicy::Gradient(vec![pair(&mut rng), pair(&mut rng)]),
            _ => LayerPolicy::Custom((0..layers).map(|_| pair(&mut rng)).collect()),
        };
        if rng.bool() {
            spec.layer_shapes = (0..layers).map(|_| shape(&mut rng)).collect();
        }
        if rng.bool() {
            let kinds = [LayerKind::Full, LayerKind::Sliding(40), LayerKind::Sliding(90)];
            spec.kinds = (0..layers).map(|_| kinds[rng.usize(..3)]).collect();
        }
        if rng.bool() {
            spec.sink_logits = (0..layers * 4).map(|_| rng.f32() * 4.0 - 2.0).collect();
        }
        let mut all = KvCache::new(spec.clone()).unwrap();
        for layer in 0..layers {
            let mut one = KvCache::new(spec.one_layer(layer).unwrap()).unwrap();
            let KvShape { num_kv_heads, head_dim, value_dim, .. } = spec.shape_at(layer);
            let mut random = |values: usize| (0..values).map(|_| rng.f32() - 0.5).collect::<Vec<f32>>();
            let [k, v] = [head_dim, value_dim].map(|dim| random(200 * num_kv_heads * dim));
            let q = random(4 * head_dim);
            let mut outs = [(); 2].map(|()| vec![0.0; 4 * value_dim]);
            for ((cache, layer), out) in [(&mut all, layer), (&mut one, 0)].into_iter().zip(&mut outs) {
                cache.append(layer, &k, &v).unwrap();
                cache.attend(layer, &q, out).unwrap();
            }
            assert_eq!(outs[0], outs[1], "seed {seed}, layer {layer} of {spec:?}");
        }
        let missing = spec.one_layer(layers).unwrap_err().to_string();
        assert!(missing.contains(&format!("layer {layers}")), "{missing}");
    }
    let short = CacheSpec::new(3, 4, 2, 64).kinds(vec![LayerKind::Full]);
    assert!(short.one_layer(0).unwrap_err().to_string().contains("1 kinds for 3 layers"));
}
