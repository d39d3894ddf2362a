//! Caches are found in states of each layout.

use crate::common::*;
use std::io::Cursor;
use tqkv_session::{Layout, Mode, Origin, StateSide};

fn layout(state: &State) -> Layout {
    Layout::read(&mut Cursor::new(&state.bytes)).unwrap()
}

/// All that a cache can be, one field changed at a time.
pub(crate) fn caches() -> Vec<(&'static str, Written)> {
    let plain = Written::default;
    let mut found = vec![
        ("plain", plain()),
        ("mla", Written { value: None, width: 576, ..plain() }),
        ("extension", Written { has_extension: true, ..plain() }),
        ("extension of mla", Written { has_extension: true, value: None, ..plain() }),
        ("one layer", Written { layers: 1, ..plain() }),
        ("late", Written { streams: vec![(500, 70)], ..plain() }),
        ("streams", Written { streams: vec![(0, 0), (0, 5), (2, 64), (0, 0)], ..plain() }),
        ("keys alone quantised", Written { key: Q8_0, ..plain() }),
        ("q5_1", Written { key: Q5_1, value: Some(Q5_1), ..plain() }),
    ];
    for (name, kind) in [("f16", F16), ("bf16", BF16), ("f32", F32), ("q8_0", Q8_0), ("q4_0", Q4_0)] {
        found.push((name, Written { key: kind, value: Some(kind), ..plain() }));
    }
    for (name, kind) in [("transposed", F16), ("transposed bf16", BF16), ("transposed f32", F32)] {
        found.push((name, Written { key: kind, value: Some(kind), is_transposed: true, ..plain() }));
    }
    found
}

/// A state of each origin and version around a cache.
pub(crate) fn states(cache: &Written) -> Vec<(Origin, State)> {
    let rotated = Written { has_rotation: true, ..cache.clone() };
    let shared = |cache: &Written| Written { sequences: 2, ..cache.clone() };
    [
        (Origin::SequenceFile, State::sequence_file(3), cache.clone()),
        (Origin::SequenceFile, State::sequence_file(4), rotated.clone()),
        (Origin::SequenceData, State::sequence_data(), cache.clone()),
        (Origin::SequenceData, State::sequence_data(), rotated.clone()),
        (Origin::SessionFile, State::session_file(10), shared(cache)),
        (Origin::SessionFile, State::session_file(11), shared(&rotated)),
        (Origin::ContextData, State::context_data(), shared(cache)),
        (Origin::ContextData, State::context_data(), shared(&rotated)),
    ]
    .into_iter()
    .map(|(origin, mut state, cache)| {
        state.cache(&cache);
        (origin, state)
    })
    .collect()
}

/// The codes of a state are none of the numbers that it declares.
#[test]
fn rows_that_hold_codes_pack_without_loss_alone() {
    for (name, cache) in caches().into_iter().filter(|(_, cache)| !cache.is_transposed) {
        for (_, state) in states(&cache) {
            let rows = &layout(&state).caches[0].rows[0];
            let cell = u64::from(rows.cells / 2);
            let at = (rows.at + cell * rows.row_bytes()) as usize;
            let mut bytes = state.bytes.clone();
            bytes[at..at + 8].copy_from_slice(b"tqkvrow1");
            let found = Layout::read(&mut Cursor::new(&bytes)).unwrap();
            assert!(found.not_understood().is_some_and(|why| why.contains("state=codes")), "{name}");
            assert!(pack(&bytes, codecs("t4")).is_err(), "{name}");
            let (packed, _) = pack(&bytes, Mode::Exact).unwrap();
            assert!(unpack(&packed).unwrap() == bytes, "{name}");
        }
    }
}

#[test]
fn rows_of_every_cache_in_every_state_are_found() {
    for (name, cache) in caches() {
        for (origin, state) in states(&cache) {
            let found = layout(&state);
            assert_eq!((found.origin, found.unread_bytes), (origin, 0), "{name} {origin:?}");
            assert_eq!(found.caches.len(), 1, "{name} {origin:?}");
            let cells: u64 = cache.streams.iter().map(|stream| u64::from(stream.1)).sum();
            assert_eq!(found.caches[0].cells, cells, "{name} {origin:?}");
            let filled = cache.streams.iter().filter(|stream| stream.1 > 0).count();
            let sides = 1 + usize::from(cache.value.is_some());
            let rows = &found.caches[0].rows;
            assert_eq!(rows.len(), filled * sides * cache.layers as usize, "{name} {origin:?}");
            assert!(rows.iter().all(|rows| rows.width == cache.width), "{name} {origin:?}");
            let transposed = rows.iter().filter(|rows| rows.is_transposed);
            assert!(transposed.clone().all(|rows| rows.side == StateSide::Values));
            assert_eq!(transposed.count() > 0, cache.is_transposed, "{name} {origin:?}");
            let last = rows.last().unwrap();
            let empty = cache.streams.iter().rev().take_while(|stream| stream.1 == 0).count() as u64;
            assert_eq!(last.at + last.bytes() + 4 * empty, found.bytes, "{name} {origin:?}");
        }
    }
}

#[test]
fn windows_indexers_and_recurrent_state_follow() {
    let cache = Written::default();
    let window = Written { streams: vec![(100, 50)], width: 64, layers: 5, ..cache.clone() };
    let latent = Written { value: None, width: 576, ..cache.clone() };
    let indexer = Written { value: None, width: 128, ..cache.clone() };
    for (parts, caches, recurrent) in [
        (vec![&cache, &window], 2, false),
        (vec![&latent, &indexer], 2, false),
        (vec![&cache], 1, true),
        (vec![&latent], 1, true),
        (vec![&cache, &window], 2, true),
    ] {
        let mut state = State::sequence_file(3);
        parts.iter().for_each(|cache| state.cache(cache));
        let before = state.bytes.len();
        if recurrent {
            state.recurrent();
        }
        let found = layout(&state);
        assert_eq!(found.caches.len(), caches, "{caches} {recurrent}");
        assert_eq!(found.unread_bytes, (state.bytes.len() - before) as u64);
        assert_eq!(found.tokens, 3);
    }
}

#[test]
fn other_files_are_refused_by_name() {
    let refused = |bytes: &[u8]| Layout::read(&mut Cursor::new(bytes)).unwrap_err().to_string();
    for (bytes, said) in [
        (&b""[..], "cut: the first field needs 4 bytes; 0 are left"),
        (b"GGUF\x03\0\0\0and more", "no known magic"),
        (b"qsgg\x05", "cut: the version needs 4 bytes; 1 are left"),
        (b"qsgg\x03\0\0\0\xff\xff\xff\xff", "cut: the list of tokens needs 17179869180 bytes"),
    ] {
        let error = refused(bytes);
        assert!(error.contains(said), "{error}");
    }
    let mut state = State::sequence_file(3);
    state.cache(&Written::default());
    let whole = state.bytes.len();
    for (end, said) in [(whole - 1, "layer 2, values"), (whole / 2, "keys"), (30, "cut: "), (200, "cut: a ")]
    {
        let error = refused(&state.bytes[..end]);
        assert!(error.contains(said), "{end}: {error}");
    }
}

/// llama.cpp raises the version of its files when their fields change, so nothing after it can be read.
#[test]
fn a_file_of_an_unknown_version_is_told_by_name_and_kept_whole() {
    for (mut state, version, said) in [
        (State::sequence_file(5), 5, "version 5 of llama_state_seq_save_file; expected 3 or 4"),
        (State::sequence_file(2), 2, "version 2 of llama_state_seq_save_file; expected 3 or 4"),
        (State::session_file(12), 12, "version 12 of llama_state_save_file; expected 10 or 11"),
    ] {
        state.cache(&Written::default());
        let found = layout(&state);
        assert_eq!((found.not_understood(), found.version), (Some(said), Some(version)));
        assert!(found.caches.is_empty() && found.tokens == 0);
        assert_eq!(found.unread_bytes, state.bytes.len() as u64 - 8);
        let (packed, sizes) = pack(&state.bytes, Mode::Exact).unwrap();
        assert_eq!(unpack(&packed).unwrap(), state.bytes);
        assert!(sizes.pack < sizes.state && sizes.coded_state == 0);
        let error = pack(&state.bytes, codecs("t4")).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("an exact pack keeps"), "{error}");
    }
    let mut known = State::sequence_file(3);
    known.cache(&Written::default());
    assert_eq!(layout(&known).not_understood(), None);
}
