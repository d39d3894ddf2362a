//! The bytes of a pack are those of `SPEC.md`, and stay so.

use std::sync::Arc;

use crate::basis::Stored;
use crate::common::*;
use tqkv_session::{Basis, Mode, StorageCodec};

/// A state of one layer, 66 cells of 64 values, s2: small enough to be written down.
fn state() -> Vec<u8> {
    let mut state = State::sequence_file(3);
    state.cache(&Written { streams: vec![(0, 66)], layers: 1, width: 64, ..Written::default() });
    state.recurrent();
    state.bytes
}

fn golden(name: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Writes the files anew: `TQKV_GOLDEN=1 cargo test -p tqkv-session golden`.
#[test]
fn packs_that_were_written_once_are_read_for_ever() {
    let modes = [("exact.tqs", Mode::Exact), ("coded.tqs", codecs("s2"))];
    if std::env::var_os("TQKV_GOLDEN").is_some() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        std::fs::create_dir_all(&folder).unwrap();
        for (name, mode) in modes {
            std::fs::write(folder.join(name), pack(&state(), mode).unwrap().0).unwrap();
        }
        std::fs::write(folder.join("coded.state"), unpack(&golden("coded.tqs")).unwrap()).unwrap();
    }
    assert_eq!(unpack(&golden("exact.tqs")).unwrap(), state());
    assert_eq!(unpack(&golden("coded.tqs")).unwrap(), golden("coded.state"));
    // Another zstd may compress otherwise; what is coded has one form.
    let coded = pack(&state(), codecs("s2")).unwrap().0;
    let rows = |pack: &[u8]| [1, 2, 3, 5, 6].map(|i| chunks(pack)[i].clone());
    assert_eq!(rows(&coded), rows(&golden("coded.tqs")));
    // The mean of the keys; a mask, four rows as they were, 60 blocks; then the other two cells.
    assert_eq!(rows(&coded).map(|chunk| chunk.len()), [128, 1600, 44, 1600, 44]);
}

/// A pack in a basis. Writes the pack and its state anew: `TQKV_GOLDEN=1 cargo test -p tqkv-session golden`.
#[test]
fn a_pack_in_a_basis_that_was_written_once_is_read_for_ever() {
    let basis = Arc::new(Basis::from_bytes(&golden("basis.tqb")).unwrap());
    let stored = Stored { codec: StorageCodec::new(basis.shape().clone(), Some(basis.clone())).unwrap() };
    if std::env::var_os("TQKV_GOLDEN").is_some() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let packed = pack(&golden("coded.state"), stored.mode(2.1)).unwrap().0;
        std::fs::write(folder.join("stored.state"), unpack_with(&packed, Some(&stored.codec)).unwrap())
            .unwrap();
        std::fs::write(folder.join("stored.tqs"), packed).unwrap();
    }
    assert_eq!(unpack_with(&golden("stored.tqs"), Some(&stored.codec)).unwrap(), golden("stored.state"));
    let packed = pack(&golden("coded.state"), stored.mode(2.1)).unwrap().0;
    // The name of the basis, three runs of kept bytes, the plan, first tokens, all others.
    let [packed, written] = [packed, golden("stored.tqs")].map(|pack| chunks(&pack));
    assert_eq!((packed.len(), &packed[0][..]), (7, &basis.id().0[..]));
    assert_eq!([&packed[4], &packed[6]], [&written[4], &written[6]]);
    // The order of keys, layers of a chunk, the layer, cells of each piece.
    let plan: Vec<u32> = packed[4].as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    assert_eq!(plan[1..], [64, 0, 4, 62]);
    assert_eq!((packed[5][0], &packed[6][..9]), (0, &b"\x01\x89TQC\r\n\x1a\n"[..]));
}

/// The payloads of a pack, read by hand.
fn chunks(pack: &[u8]) -> Vec<Vec<u8>> {
    let word = |at: usize| u32::from_le_bytes(pack[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, mut chunks) = (24 + 24 * word(12) + 4, Vec::new());
    while at < pack.len() {
        let end = at + 4 + word(at);
        chunks.push(pack[at + 4..end].to_vec());
        assert_eq!(crc32fast::hash(&pack[at..end]).to_le_bytes(), pack[end..end + 4]);
        at = end + 4;
    }
    chunks
}

#[test]
fn a_header_and_a_map_by_hand() {
    let coded = golden("coded.tqs");
    assert_eq!(coded[..8], *b"\x89TQS\r\n\x1a\n");
    // Version 1, class coded, 5 entries, bytes of the state.
    assert_eq!(coded[8..16], [1, 0, 1, 0, 5, 0, 0, 0]);
    assert_eq!(coded[16..24], (state().len() as u64).to_le_bytes());
    // 24 bytes of header and tokens, 8 of counts, 66 cells, 8 of layers, 12 of the type of keys.
    let raw = |bytes: u64| [&[0, 1, 0, 0, 0, 0, 0, 0][..], &bytes.to_le_bytes(), &[0; 8]].concat();
    assert_eq!(coded[24..48], raw(24 + 8 + 66 * 12 + 8 + 12));
    let mut keys = [0; 24];
    for (at, byte) in [(0, 1), (1, 4), (2, 18), (4, 1), (8, 64), (12, 1), (16, 66)] {
        keys[at] = byte;
    }
    assert_eq!(coded[48..72], keys);
    assert_eq!(coded[72..96], raw(12));
    keys[1] = 2;
    assert_eq!(coded[96..120], keys);
}
