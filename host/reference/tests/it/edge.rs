//! Vectors and bytes that no program should send, and a cache with every format.

use tqkv::attention::AttentionCache;
use tqkv::cache::CacheSpec;
use tqkv::dense::DenseCache;
use tqkv_core::{CodecId, DecodeError, EncodeError, Options};
use tqkv_reference::{Choice, Coder, Coders, DecodedCache, ROWS, RotationKind, Row, WindowedCache};

fn coders(dim: usize) -> impl Iterator<Item = Coder> {
    ROWS.iter().map(move |row| Coder::new(*row, dim, (42, 1), None).unwrap())
}

fn painted(len: usize, salt: usize) -> Vec<f32> {
    (0..len).map(|i| (((i * 37 + salt * 101) % 251) as f32 - 125.0) / 60.0).collect()
}

#[test]
fn zero_vectors_come_back_as_zero() {
    for coder in coders(64) {
        let (mut block, mut out) = (vec![0xff; coder.block_bytes()], [1.0; 64]);
        coder.encode(&[0.0; 64], &mut block).unwrap();
        coder.decode(&block, &mut out).unwrap();
        assert_eq!(out, [0.0; 64], "{}", coder.row().name());
    }
}

#[test]
fn what_cannot_be_encoded_is_named_and_writes_nothing() {
    for coder in coders(64) {
        let name = coder.row().name();
        let mut block = vec![0xaa; coder.block_bytes()];
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = [1.0; 64];
            x[63] = bad;
            assert_eq!(coder.encode(&x, &mut block), Err(EncodeError::NonFinite), "{name}");
        }
        let mut short = vec![0; coder.block_bytes() - 1];
        assert_eq!(coder.encode(&[1.0; 64], &mut short), Err(EncodeError::WrongLength), "{name}");
        assert_eq!(coder.encode(&[1.0; 63], &mut block), Err(EncodeError::WrongLength), "{name}");
        assert_eq!(coder.decode(&short, &mut [0.0; 64]), Err(DecodeError::WrongLength), "{name}");
        // The values have a range, because uniform codes of equal values have none.
        let mut large = [f32::MAX; 64];
        large[0] = -f32::MAX;
        // Floats have the largest number for what is larger, and a scale in f32 has room for it.
        if ["fp8", "nvfp4", "mxfp4", "int4h"].contains(&name) {
            assert_eq!(coder.encode(&large, &mut block.clone()), Ok(()), "{name}");
        } else {
            assert_eq!(coder.encode(&large, &mut block), Err(EncodeError::OutOfRange), "{name}");
        }
        assert!(block.iter().all(|&byte| byte == 0xaa), "{name}");
    }
}

#[test]
fn any_bytes_decode_to_numbers_or_are_refused() {
    let mut state = 1u64;
    for coder in coders(128) {
        let mut refused = 0;
        for _ in 0..300 {
            let bytes = (0..coder.block_bytes()).map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as u8
            });
            let mut out = [0.0; 128];
            match coder.decode(&bytes.collect::<Vec<_>>(), &mut out) {
                Ok(()) => assert!(!out.iter().any(|x| x.is_nan())),
                Err(error) => {
                    assert_eq!(error, DecodeError::NonFiniteScale);
                    refused += 1;
                }
            }
        }
        assert!(refused < 300, "{}", coder.row().name());
    }
}

#[test]
fn head_dims_and_rotations_that_there_are_not_are_named() {
    let error = |name: &str, dim, rotation| {
        Coder::new(Row::from_name(name).unwrap(), dim, (42, 0), rotation).unwrap_err().to_string()
    };
    assert!(error("p3", 100, None).starts_with("p3 has no blocks of head dim 100; expected 16, "));
    assert!(error("turbo4k", 80, None).contains("expected 16, 32, 64, 128, 256"));
    assert!(error("c25", 80, None).contains("expected 32, "));
    assert!(error("p3", 80, Some(RotationKind::Hadamard)).contains("expected powers of two"));
    // A rotation has no effect where there is no choice.
    assert!(Coder::new(Row::from_name("turbo3").unwrap(), 80, (42, 0), Some(RotationKind::Dense)).is_ok());
}

#[test]
fn names_are_distinct_and_lead_to_choices() {
    for choice in Choice::all() {
        assert_eq!(Choice::from_name(choice.name()), Some(choice));
    }
    assert!(ROWS.iter().all(|row| CodecId::from_name(row.name()).is_none()));
    assert_eq!(Choice::from_name("p9"), None);
}

#[test]
fn a_cache_attends_to_what_blocks_decode_to() {
    let (layers, heads, kv_heads, dim, tokens) = (2, 4, 2, 64, 9);
    let spec = CacheSpec::new(layers, heads, kv_heads, dim);
    let choices = ["p3", "t3"].map(|name| Choice::from_name(name).unwrap());
    let mut cache = DecodedCache::new(&spec, choices, Options::DEFAULT, None).unwrap();
    let mut exact = DenseCache::new(&spec).unwrap();
    let (q, k, v) = (
        painted(tokens * heads * dim, 1),
        painted(tokens * kv_heads * dim, 2),
        painted(tokens * kv_heads * dim, 3),
    );
    for layer in 0..layers {
        let through = |choice, x: &[f32]| {
            let coder = Coders::new(choice, dim, Options::DEFAULT, layer, None).unwrap();
            let mut out = x.to_vec();
            for x in out.chunks_exact_mut(dim) {
                let mut block = vec![0; coder.block_bytes()];
                coder.encode(x, &mut block).unwrap();
                coder.decode(&block, x).unwrap();
            }
            out
        };
        let (mut got, mut want) = (vec![0.0; q.len()], vec![0.0; q.len()]);
        for part in [0..5, 5..tokens] {
            let (qs, kvs) = (
                part.start * heads * dim..part.end * heads * dim,
                part.start * kv_heads * dim..part.end * kv_heads * dim,
            );
            cache.attend_chunk(layer, &q[qs.clone()], &k[kvs.clone()], &v[kvs], &mut got[qs]).unwrap();
        }
        exact.attend_chunk(layer, &q, &through(choices[0], &k), &through(choices[1], &v), &mut want).unwrap();
        assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5));
    }
    let slot: usize = choices.iter().map(|choice| choice.block_bytes(dim).unwrap()).sum();
    assert_eq!(cache.allocated_bytes(), layers * kv_heads * tokens * slot);
    cache.truncate(4).unwrap();
    assert_eq!((cache.len(), cache.allocated_bytes()), (4, layers * kv_heads * 4 * slot));
    let mut bad = k[..kv_heads * dim].to_vec();
    bad[dim] = f32::NAN;
    let error =
        cache.attend_chunk(1, &q[..heads * dim], &bad, &v[..kv_heads * dim], &mut vec![0.0; heads * dim]);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("layer 1, key of token 4: the vector holds NaN"), "{error}");
    assert_eq!(cache.len(), 4);
    let spec = CacheSpec::new(1, 1, 1, 80);
    let refused =
        DecodedCache::new(&spec, [Choice::from_name("turbo4k").unwrap(); 2], Options::DEFAULT, None);
    assert!(refused.unwrap_err().to_string().contains("expected 16, 32, 64"));
}

/// A window of formats is put together anew for each query: exact tokens where they are new or the first, and what
/// blocks decode to elsewhere.
#[test]
fn formats_have_a_window_of_exact_tokens() {
    let (heads, dim, tokens) = (2, 64, 40);
    let choices = ["mxfp4", "u4"].map(|name| Choice::from_name(name).unwrap());
    let [q, k, v] = [3, 5, 7].map(|salt| painted(tokens * heads * dim, salt));
    let through = |choice, x: &[f32], from: usize, to: usize| {
        let coder = Coders::new(choice, dim, Options::DEFAULT, 0, None).unwrap();
        let mut out = x.to_vec();
        for x in out[from * heads * dim..to * heads * dim].chunks_exact_mut(dim) {
            let mut block = vec![0; coder.block_bytes()];
            coder.encode(x, &mut block).unwrap();
            coder.decode(&block, x).unwrap();
        }
        out
    };
    for (sinks, hot) in [(0, 0), (4, 16), (0, 5)] {
        let spec = CacheSpec { sinks, hot, ..CacheSpec::new(1, heads, heads, dim) };
        let mut cache = WindowedCache::of_formats(&spec, choices, Options::DEFAULT).unwrap();
        let mut got = vec![0.0; q.len()];
        for part in [0..23, 23..tokens].map(|part| part.start * heads * dim..part.end * heads * dim) {
            cache
                .attend_chunk(0, &q[part.clone()], &k[part.clone()], &v[part.clone()], &mut got[part])
                .unwrap();
        }
        for n in 1..=tokens {
            let (end, row) =
                (n.saturating_sub(hot).max(sinks.min(n)), n * heads * dim - heads * dim..n * heads * dim);
            let (keys, values) =
                (through(choices[0], &k, sinks.min(n), end), through(choices[1], &v, sinks.min(n), end));
            let mut exact = DenseCache::new(&spec).unwrap();
            exact.append(0, &keys[..row.start], &values[..row.start]).unwrap();
            let mut want = vec![0.0; heads * dim];
            exact
                .attend_chunk(0, &q[row.clone()], &keys[row.clone()], &values[row.clone()], &mut want)
                .unwrap();
            assert!(
                got[row].iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5),
                "{sinks} {hot}: query {n}"
            );
        }
        let slot: usize = choices.iter().map(|choice| choice.block_bytes(dim).unwrap()).sum();
        let coded = tokens - sinks - hot;
        assert_eq!(cache.allocated_bytes(), heads * (coded * slot + (sinks + hot) * 4 * dim));
    }
}

/// The scale of a tensor is that of the first tokens, so the same numbers a thousand times smaller lose as much.
#[test]
fn a_cache_learns_the_scales_of_tensors() {
    let (dim, tokens) = (64, 30);
    let [k, v] = [5, 7].map(|salt| painted(tokens * dim, salt));
    for name in ["fp8", "nvfp4"] {
        let output = |scale: f32| {
            let spec = CacheSpec { scale: Some(0.01), ..CacheSpec::new(1, 1, 1, dim) };
            let mut cache =
                DecodedCache::new(&spec, [Choice::from_name(name).unwrap(); 2], Options::DEFAULT, None)
                    .unwrap();
            let values: Vec<f32> = v.iter().map(|x| x * scale).collect();
            let mut out = vec![0.0; tokens * dim];
            cache.attend_chunk(0, &k, &k, &values, &mut out).unwrap();
            out
        };
        let (plain, small) = (output(1.0), output(1.0 / 1024.0));
        assert!(plain.iter().zip(&small).all(|(a, b)| (a - 1024.0 * b).abs() < 1e-3), "{name}");
    }
}
