//! The seeds of the fuzz target get through: they are states that pack, and packs that unpack.

use crate::common::*;
use std::path::Path;
use tqkv_session::Mode;

#[test]
fn seeds_of_the_fuzzer_are_states_and_packs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/session");
    let mut seen = 0;
    for seed in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = seed.file_name().unwrap().to_string_lossy().into_owned();
        // Seeds that a run of the fuzzer adds have a hash for a name.
        if !name.contains('_') {
            continue;
        }
        let bytes = std::fs::read(&seed).unwrap();
        let done = match bytes[0] {
            // A state for the basis of the fuzzer is one for all.
            0 | 6 => pack(&bytes[1..], Mode::Exact).map(drop),
            1 => pack(&bytes[1..], Mode::Coded(tqkv_session::Codecs::DEFAULT)).map(drop),
            _ => unpack(&bytes[1..]).map(drop),
        };
        assert!(done.is_ok(), "{name}: {done:?}");
        seen += 1;
    }
    assert!(seen > 10, "{seen}");
}
