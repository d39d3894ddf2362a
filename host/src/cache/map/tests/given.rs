//! Maps of a file of moments.

use super::*;
use crate::cache::map::Calibrator;
use std::path::{Path, PathBuf};

/// Writes the moments of a sequence to a file.
fn file(folder: &Path, name: &str, sequence: &Sequence) -> PathBuf {
    let mut calibrator = Calibrator::new(&spec("t2 rope=10000")).unwrap();
    calibrator.learn(0, &sequence.q, &sequence.k).unwrap();
    let path = folder.join(name);
    calibrator.finish([1; 32]).save(&path).unwrap();
    path
}

/// A policy with a file of moments of another sequence than those of the tests.
fn with_file(folder: &Path, policy: &str) -> String {
    format!("{policy} map={}", file(folder, "some.tqm", &Sequence::new(20)).display())
}

#[test]
fn moments_of_another_text_serve_from_the_first_page() {
    let folder = tempfile::tempdir().unwrap();
    let sequence = Sequence::new(21);
    for codecs in ["t2", "m2,t2"] {
        let policy = with_file(folder.path(), &format!("{codecs} hot=0 sinks=0 centring=off"));
        let mut cache = cache(&policy);
        // Nothing waits, and nothing attends.
        sequence.append(&mut cache, 4);
        assert_eq!(
            cache.key_blocks(0, 0).unwrap()[0].blocks.len() / 4,
            cache.spec().key.block_bytes(DIM).unwrap()
        );
        sequence.append(&mut cache, TOKENS);
        let mut plain = super::cache("t2 hot=0 sinks=0 centring=off");
        sequence.append(&mut plain, TOKENS);
        let (mapped, plain) = (error(&cache, &sequence), error(&plain, &sequence));
        assert!(mapped < 0.5 * plain, "{codecs}: {mapped} with a map, {plain} without");
    }
}

#[test]
fn a_file_means_the_same_bits_in_all_lives() {
    let folder = tempfile::tempdir().unwrap();
    for policy in ["m2,t2", "t2 centring=off hot=30 sinks=9", "s3 hot=0 sinks=0"] {
        let policy = with_file(folder.path(), policy);
        keeps_the_map(&policy);
        is_counted(&policy);
        let (sequence, other) = (Sequence::new(22), Sequence::new(23));
        let mut whole = cache(&policy);
        sequence.append(&mut whole, TOKENS);
        for at in [0, 3, 90, 300, 517, 575] {
            let mut cut = cache(&policy);
            sequence.append(&mut cut, at);
            let mut fork = cut.fork().unwrap();
            other.append(&mut cut, TOKENS);
            cut.truncate(at).unwrap();
            for mut cache in [cut, fork.fork().unwrap()] {
                sequence.append(&mut cache, TOKENS);
                // Tokens leave in fours, which begin elsewhere behind a cut.
                let coded = (TOKENS - 68) * DIM;
                assert_eq!(keys(&cache)[..coded], keys(&whole)[..coded], "{policy}: at {at}");
            }
            other.append(&mut fork, TOKENS);
            assert_ne!(keys(&fork), keys(&whole));
        }
        for level in Level::available() {
            let mut cache = KvCache::new(spec(&policy).level(level)).unwrap();
            sequence.steps(&mut cache, TOKENS);
            assert_eq!(keys(&cache), keys(&whole), "{policy}: {level:?}");
        }
    }
}

#[test]
fn a_file_that_does_not_fit_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let good = file(at, "some.tqm", &Sequence::new(20));
    let own = format!("map={}", good.display());
    let refused = |spec: CacheSpec| KvCache::new(spec).unwrap_err().to_string();
    let error = refused(CacheSpec::new(2, HEADS, 1, DIM).with(&own).unwrap());
    assert!(
        error.contains("some.tqm: it is of 1 layers of 1 KV heads with head_dim 64: expected 2 layers"),
        "{error}"
    );
    let error = refused(spec(&format!("{own} rope=500")));
    assert!(error.contains("some.tqm: another RoPE in layer 0"), "{error}");
    let unread = |name: &str| spec_error(&format!("map={}", at.join(name).display()));
    assert!(unread("none.tqm").contains("none.tqm"), "{}", unread("none.tqm"));
    std::fs::write(at.join("cut.tqm"), &std::fs::read(&good).unwrap()[..3000]).unwrap();
    let error = unread("cut.tqm");
    assert!(
        error.contains("expected map=auto|off|pairs|full|FILE.tqm") && error.ends_with("cut.tqm: cut short"),
        "{error}"
    );
    std::fs::write(at.join("other.tqm"), b"something else").unwrap();
    assert!(unread("other.tqm").contains("not a file of moments"), "{}", unread("other.tqm"));
    // Snapshots know their moments.
    let stored = bytes(&cache(&own));
    let other = file(at, "second.tqm", &Sequence::new(23));
    let mut second = cache(&format!("map={}", other.display()));
    let error = second.restore(&mut &stored[..]).unwrap_err().to_string();
    assert!(error.contains("of a cache with another file of moments"), "{error}");
    let error = cache(FULL).restore(&mut &stored[..]).unwrap_err().to_string();
    assert!(error.contains("of a cache with another key map"), "{error}");
}

fn spec_error(policy: &str) -> String {
    CacheSpec::new(1, HEADS, 1, DIM).with(policy).unwrap_err().to_string()
}

#[test]
fn a_spec_with_a_file_is_written_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(&with_file(folder.path(), "m2,t2"));
    assert_eq!(spec.to_string().parse::<CacheSpec>().unwrap(), spec);
}

/// Windows that teach must hold enough keys and queries.
#[test]
fn short_windows_and_latent_vectors_teach_nothing() {
    let sequence = Sequence::new(24);
    let mut calibrator = Calibrator::new(&spec("t2 rope=10000")).unwrap();
    assert_eq!(calibrator.least_tokens(), 132);
    let short = calibrator.learn(0, &sequence.q[..131 * HEADS * DIM], &sequence.k[..131 * DIM]);
    assert!(short.unwrap_err().to_string().contains("expected at least 132 tokens"));
    assert!(calibrator.learn(0, &sequence.q[1..], &sequence.k).is_err());
    assert!(calibrator.learn(1, &sequence.q, &sequence.k).is_err());
    let latent = Calibrator::new(&CacheSpec::mla(1, HEADS, DIM, 16)).unwrap_err().to_string();
    assert!(latent.contains("expected separate keys and values"), "{latent}");
    assert!(Calibrator::new(&spec("t2")).unwrap_err().to_string().contains("without RoPE"));
}

/// Positions that come long after those that taught the moments have maps that fit them.
#[test]
fn moments_from_position_0_fit_keys_at_4096() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = 4600;
    let sequence = turned(tokens);
    let first = 600 * DIM;
    let mut calibrator = Calibrator::new(&spec("t2 rope=10000")).unwrap();
    calibrator.learn(0, &sequence.q[..HEADS * first], &sequence.k[..first]).unwrap();
    let path = folder.path().join("first.tqm");
    calibrator.finish([1; 32]).save(&path).unwrap();
    let [plain, mapped] = ["t2".to_owned(), format!("t2 map={}", path.display())].map(|policy| {
        let mut cache = cache(&format!("{policy} effort=fast"));
        sequence.append(&mut cache, tokens);
        error_of_last(&cache, &sequence, tokens)
    });
    assert!(mapped < 0.7 * plain, "{mapped} with the file, {plain} without");
}
