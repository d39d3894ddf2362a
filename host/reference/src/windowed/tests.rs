//! A program that answers wrong, and windows that are put together anew.

use super::*;
use crate::GROUP;

/// Reads a request and answers with its own numbers, in half of their bytes.
const SAME: &str =
    "while read side layer head n dim; do echo $((2 * n * dim)); head -c $((4 * n * dim)); done";
/// Answers with zeros.
const ZEROS: &str = "while read side layer head n dim; do head -c $((4 * n * dim)) >/dev/null; \
                     echo 0; head -c $((4 * n * dim)) /dev/zero; done";
/// Answers with its own numbers or with zeros, by the number of tokens and the KV head, and a byte per token.
const BY_TOKENS: &str = "while read side layer head n dim; do echo $n; \
    if [ $(((n + head) % 3)) = 0 ]; then head -c $((4 * n * dim)) >/dev/null; \
    head -c $((4 * n * dim)) /dev/zero; else head -c $((4 * n * dim)); fi; done";

/// A cache of 2 layers of 2 query heads and of KV heads of dim 16.
fn cache(script: &str, [kv_heads, sinks, hot]: [usize; 3]) -> Result<WindowedCache, CacheError> {
    let spec = CacheSpec { sinks, hot, ..CacheSpec::new(2, 2, kv_heads, 16) };
    WindowedCache::of_program(&spec, &["sh", "-c", script].map(str::to_owned))
}

fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + seed * 101) % 64) as f32 / 32.0 - 1.0).collect()
}

/// Attends with the tokens from the length of the cache on, in chunks of these sizes. Returns the outputs of layer 1.
fn run(cache: &mut dyn AttentionCache, chunks: &[usize]) -> Result<Vec<f32>, CacheError> {
    let width = cache.shape().num_kv_heads * 16;
    let mut outputs = Vec::new();
    for &n in chunks {
        let at = cache.len();
        let of = |width: usize, seed: usize| numbers(400 * width, seed)[at * width..][..n * width].to_vec();
        for layer in 0..2 {
            let mut out = vec![0.0; n * 32];
            let (q, k, v) = (of(32, 1), of(width, layer + 7), of(width, layer + 9));
            cache.attend_chunk(layer, &q, &k, &v, &mut out)?;
            if layer == 1 {
                outputs.extend(out);
            }
        }
    }
    Ok(outputs)
}

fn assert_near(got: &[f32], expected: &[f32]) {
    let far = got.iter().zip(expected).position(|(a, b)| (a - b).abs() > 1e-5);
    assert_eq!((far.map(|at| at / 32), got.len()), (None, expected.len()), "a query sees something else");
}

#[test]
fn no_query_sees_an_exact_token_without_window_and_sinks() {
    for chunks in [&[70, 30][..], &[31, 1, 1, 1, 66]] {
        let mut zeros = cache(ZEROS, [1, 0, 0]).unwrap();
        let out = run(&mut zeros, chunks).unwrap();
        let at = out.iter().position(|x| *x != 0.0);
        assert_eq!(at.map(|at| at / 32), None, "a query sees an exact value");
        assert!(
            [zeros.dense.keys(1, 0), zeros.dense.values(1, 0)]
                .iter()
                .all(|rows| rows.unwrap().iter().all(|x| *x == 0.0))
        );
        // In the middle of the group that grows, of a full one, and after both.
        for len in [98, 80, 32] {
            zeros.truncate(len).unwrap();
            let out = run(&mut zeros, &[2, 3]).unwrap();
            assert!(out.iter().all(|x| *x == 0.0), "after {len} tokens");
            assert_eq!(zeros.len(), len + 5);
        }
    }
}

/// The answers are those of a computation that asks for nothing twice: what each query sees is put together anew.
#[test]
fn each_query_sees_the_group_so_far_and_chunks_make_no_difference() {
    for settings in [[1, 0, 0], [2, 0, 0], [2, 3, 5], [1, 2, 40]] {
        let mut one = cache(BY_TOKENS, settings).unwrap();
        let expected = seen_anew(settings, 80);
        assert_near(&run(&mut one, &[1; 80]).unwrap(), &expected);
        let mut many = cache(BY_TOKENS, settings).unwrap();
        assert_near(&run(&mut many, &[3, 50, 27]).unwrap(), &expected);
        assert_eq!(one.allocated_bytes(), many.allocated_bytes());
        let [kv_heads, sinks, hot] = settings;
        let coded = 80 - sinks - hot;
        assert_eq!(many.allocated_bytes(), 2 * 2 * kv_heads * (coded + (80 - coded) * 2 * 16));
        // What goes comes back as it was, as long as no full group is cut or enters the window.
        let len = coded / GROUP * GROUP + sinks + hot + 1;
        many.truncate(len).unwrap();
        assert_near(&run(&mut many, &[80 - len]).unwrap(), &expected[len * 32..]);
        assert_eq!(one.allocated_bytes(), many.allocated_bytes());
    }
}

/// Outputs of layer 1 over what `BY_TOKENS` gives back, with an exact cache per query.
fn seen_anew([kv_heads, sinks, hot]: [usize; 3], tokens: usize) -> Vec<f32> {
    let mut outputs = Vec::new();
    for n in 1..=tokens {
        let width = kv_heads * 16;
        let of = |width: usize, seed: usize| numbers(400 * width, seed)[..n * width].to_vec();
        let (mut k, mut v) = (of(width, 8), of(width, 10));
        for token in sinks..n.saturating_sub(hot).max(sinks) {
            let first = (token - sinks) / GROUP * GROUP + sinks;
            let group = GROUP.min(n - hot - first);
            for head in (0..kv_heads).filter(|head| (group + head).is_multiple_of(3)) {
                let at = token * width + head * 16;
                k[at..at + 16].fill(0.0);
                v[at..at + 16].fill(0.0);
            }
        }
        let mut exact = DenseCache::new(&CacheSpec::new(1, 2, kv_heads, 16)).unwrap();
        let mut out = vec![0.0; n * 32];
        exact.attend_chunk(0, &of(32, 1), &k, &v, &mut out).unwrap();
        outputs.extend_from_slice(&out[(n - 1) * 32..]);
    }
    outputs
}

#[test]
fn a_program_gets_the_tokens_behind_the_window_and_names_their_bytes() {
    let mut exact = DenseCache::new(&CacheSpec::new(2, 2, 1, 16)).unwrap();
    let expected = run(&mut exact, &[70, 30]).unwrap();
    let mut same = cache(SAME, [1, 2, 8]).unwrap();
    assert_near(&run(&mut same, &[70, 30]).unwrap(), &expected);
    // Of 100 tokens 2 and 8 stay exact. Two groups of the other 90 are full, the third has 26 tokens.
    assert_eq!((same.layers[0].start, same.layers[1].part), (66, (26, 2 * 26 * 32)));
    assert_eq!(same.allocated_bytes(), 2 * 100 * 2 * 32);
    let mut zeros = cache(ZEROS, [1, 2, 8]).unwrap();
    run(&mut zeros, &[70, 30]).unwrap();
    let (keys, first) = (zeros.dense.keys(1, 0).unwrap(), exact.keys(1, 0).unwrap());
    assert!(keys[2 * 16..92 * 16].iter().all(|x| *x == 0.0));
    assert_eq!((&keys[..32], &keys[92 * 16..]), (&first[..32], &first[92 * 16..]));
}

#[test]
fn truncation_keeps_full_groups_and_returns_the_tokens_of_the_other() {
    let mut exact = DenseCache::new(&CacheSpec::new(2, 2, 1, 16)).unwrap();
    run(&mut exact, &[100]).unwrap();
    let first = exact.keys(1, 0).unwrap();
    let mut zeros = cache(ZEROS, [1, 2, 8]).unwrap();
    run(&mut zeros, &[70, 30]).unwrap();
    let starts = |cache: &WindowedCache| (cache.layers[0].start, cache.layers[1].start, cache.len());
    zeros.truncate(80).unwrap();
    assert_eq!(starts(&zeros), (66, 66, 80));
    assert_eq!(zeros.dense.keys(1, 0).unwrap()[66 * 16..], first[66 * 16..80 * 16]);
    assert_eq!(zeros.allocated_bytes(), 2 * 16 * 2 * 32);
    zeros.truncate(50).unwrap();
    assert_eq!(starts(&zeros), (50, 50, 50));
    assert!(zeros.dense.keys(1, 0).unwrap()[2 * 16..].iter().all(|x| *x == 0.0));
    // The group that was cut keeps its bytes, the next has 16 tokens of 26.
    let mut same = cache(SAME, [1, 2, 8]).unwrap();
    run(&mut same, &[100]).unwrap();
    same.truncate(50).unwrap();
    run(&mut same, &[34]).unwrap();
    assert_eq!((starts(&same).0, same.layers[0].groups.len()), (50, 2));
    assert_eq!(same.allocated_bytes(), 2 * (64 + 26 + 10) * 2 * 32);
    same.truncate(1).unwrap();
    assert_eq!((starts(&same), same.allocated_bytes()), ((2, 2, 1), 2 * 2 * 32));
    same.reset();
    assert_eq!((same.len(), same.allocated_bytes()), (0, 0));
}

#[test]
fn what_a_program_does_wrong_is_said() {
    let nan = "read a; head -c 64 >/dev/null; echo 1; head -c 64 /dev/zero | tr '\\0' '\\377'";
    let many = "while read side layer head n dim; do head -c $((4 * n * dim)) >/dev/null; \
                echo 18446744073709551615; head -c $((4 * n * dim)) /dev/zero; done";
    let mut most = cache(many, [1, 2, 8]).unwrap();
    run(&mut most, &[100]).unwrap();
    assert_eq!(most.allocated_bytes(), usize::MAX);
    for (script, expected) in [
        ("exit 3", "no full answer"),
        ("read a; echo hello; sleep 9", "answered 'hello': expected a number of bytes and a new line"),
        ("read a; echo 12; echo short", "no full answer"),
        (nan, "answered NaN at number 0: expected finite numbers"),
    ] {
        let mut refused = cache(script, [1, 2, 8]).unwrap();
        let error = run(&mut refused, &[100]).unwrap_err().to_string();
        assert!(
            error.contains("keys of layer 0, KV head 0") && error.contains(expected),
            "{script}: {error}"
        );
        assert_eq!((refused.len(), refused.layers[0].given[0][1].len()), (10, 8 * 16), "{script}");
    }
    let spec = CacheSpec::new(1, 1, 1, 16);
    let missing = WindowedCache::of_program(&spec, &["/nowhere/codec".to_owned()]).unwrap_err().to_string();
    assert!(missing.contains("program '/nowhere/codec'"), "{missing}");
    assert!(WindowedCache::of_program(&spec, &[]).unwrap_err().to_string().contains("no command"));
    // The exact cache says what is wrong with tokens, before the program sees them.
    let error = most.attend_chunk(0, &[0.0; 32], &[f32::NAN; 16], &[0.0; 16], &mut [0.0; 32]);
    assert!(error.unwrap_err().to_string().contains("values must be finite"));
}
