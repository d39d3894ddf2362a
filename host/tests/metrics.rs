//! The counts that a recorder of the program gets from the cache.
// A binary of its own: it needs a feature, and a recorder also records everything else that runs.

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use std::collections::BTreeMap;
use tqkv::cache::{Budget, CacheSpec, Cold, KvCache};
use tqkv_core::CodecId;

#[test]
fn counters_follow_the_life_of_tokens() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let folder = tempfile::tempdir().unwrap();
    let spec = CacheSpec::new(1, 1, 1, 64).codecs(CodecId::N4, CodecId::N4).sinks(0).hot(0);
    metrics::with_local_recorder(&recorder, || {
        let tiers = spec.clone().cold(128, Cold::Demote { key: CodecId::N2, value: CodecId::N2 });
        let mut cache = KvCache::new(tiers.cold(256, Cold::Spill(folder.path().into()))).unwrap();
        let mut window = KvCache::within(spec.clone().sliding_window(64), &Budget::new(60_000)).unwrap();
        for _ in 0..640 {
            cache.append(0, &[0.5; 64], &[0.25; 64]).unwrap();
            window.append(0, &[0.5; 64], &[0.25; 64]).unwrap();
        }
        window.append(0, &[0.5; 64 * 4000], &[0.25; 64 * 4000]).unwrap_err();
    });
    let counts: BTreeMap<String, u64> = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .map(|(key, _, _, value)| match value {
            DebugValue::Counter(count) => (key.key().name().to_owned(), count),
            other => panic!("{other:?} is no counter"),
        })
        .collect();
    let of = |name: &str| counts.get(&format!("tqkv_{name}_total")).copied().unwrap_or_default();
    assert_eq!(of("tokens"), 2 * 640);
    assert_eq!(of("pages_closed"), 2 * 2 * 5);
    // Four pages a side are older than 128 tokens, three of them than 256.
    assert_eq!((of("pages_cooled"), of("pages_spilled")), (2 * (4 + 3), 2 * 3));
    assert_eq!((of("pages_evicted"), of("refused")), (2 * 2, 1));
}
