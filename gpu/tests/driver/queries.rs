//! Tests queries that are not finite, and calls with too many.

use super::*;

/// Values that are not finite.
const BAD: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

#[test]
fn a_query_on_the_device_that_is_not_finite_gives_nan_in_its_head_alone() {
    use CodecId::{S4, T2, T3};
    // Each kernel of attention over codes: one query head per KV head, up to four, and up to eight.
    for (group, dim, key, value, hot) in [
        (1, 64, S4, S4, 0),
        (1, 64, T2, T3, 0),
        (1, 256, S4, S4, 0),
        (2, 64, S4, S4, 0),
        (2, 64, T3, S4, 0),
        (4, 128, S4, S4, 0),
        (4, 256, T3, S4, 0),
        (8, 64, S4, S4, 0),
        (8, 128, S4, S4, 0),
        (8, 256, S4, S4, 0),
        // Some of the tokens are exact, and all of them.
        (1, 64, S4, S4, 2),
        (4, 128, S4, S4, 9),
    ] {
        let heads = group * KV_HEADS;
        let spec = GpuSpec::new(1, heads, KV_HEADS, dim).codecs(key, value).sequences(2, 200).exact(0, hot);
        let mut cache = GpuCache::new(&device(0), spec).unwrap();
        let rows = noise(1, 5 * KV_HEADS * dim);
        cache.append(0, &[0; 5], Rows::Host(&rows), Rows::Host(&rows)).unwrap();
        let device = cache.device().clone();
        let queries = noise(2, 2 * heads * dim);
        let mut good = vec![0.0; queries.len()];
        cache.attend(0, &queries, &mut good).unwrap();
        let mut out = device.stream().alloc_zeros::<f32>(queries.len()).unwrap();
        for bad in BAD {
            let mut queries = queries.clone();
            queries[dim + 7] = bad;
            queries[heads * dim] = bad;
            cache.attend_on_device(0, Rows::F32(&upload(&device, &queries)), &mut out).unwrap();
            let got = device.stream().clone_dtoh(&out).unwrap();
            for (head, (got, good)) in got.chunks_exact(dim).zip(good.chunks_exact(dim)).enumerate() {
                if head == 1 {
                    assert!(got.iter().all(|v| v.is_nan()), "{group} {dim} {key:?} {value:?} {bad}: {got:?}");
                } else {
                    assert_eq!(got, good, "{group} {dim} {key:?} {value:?} {bad}, head {head}");
                }
            }
        }
    }
}

#[test]
fn queries_of_the_host_must_be_finite() {
    let mut cache = cache(2);
    fill(&mut cache, 1, 3, 1);
    let mut out = cache.device().stream().alloc_zeros::<f32>(3 * QUERY).unwrap();
    let message = |result: Result<(), GpuError>| result.unwrap_err().to_string();
    for bad in BAD {
        let mut queries = noise(2, 3 * QUERY);
        queries[QUERY + 2 * DIM + 5] = bad;
        let expected = "query of layer 1, token 1, head 2: values must be finite";
        assert_eq!(message(cache.attend(1, &queries, &mut vec![0.0; 3 * QUERY])), expected);
        assert_eq!(message(cache.attend_on_device(1, Rows::Host(&queries), &mut out)), expected);
        assert_eq!(message(cache.attend_some(1, &[1, 1, 1], Rows::Host(&queries), &mut out)), expected);
        let one = &queries[QUERY..2 * QUERY];
        let expected = "query of layer 1, token 0, head 2: values must be finite";
        assert_eq!(message(cache.scores(1, 1, one).map(drop)), expected);
        cache.begin_step(&[1]).unwrap();
        assert_eq!(message(cache.attend_step(1, Rows::Host(one), &mut out)), expected);
        cache.truncate(1, 3).unwrap();
    }
    let fine = noise(2, 3 * QUERY);
    cache.attend(1, &fine, &mut vec![0.0; 3 * QUERY]).unwrap();
}

#[test]
fn more_tokens_than_a_call_takes_are_refused() {
    let mut cache = GpuCache::new(&device(0), spec(1).sequences(1, 1 << 17).pool_tokens(64)).unwrap();
    let mut out = cache.device().stream().alloc_zeros::<f32>(QUERY).unwrap();
    let many = vec![0; 65_536];
    let message = |result: Result<(), GpuError>| result.unwrap_err().to_string();
    assert_eq!(message(cache.begin_step(&many)), "65536 tokens in one call; at most 65535");
    assert_eq!(
        message(cache.attend_some(0, &many, Rows::Host(&[]), &mut out)),
        "65536 query tokens in one call; at most 65535"
    );
    assert_eq!(cache.len(0), 0);
}
