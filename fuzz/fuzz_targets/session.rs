//! Bytes as a saved state of llama.cpp and as a packed session: as they are, and as packs whose checksums are
//! mended. None makes a panic; a state that is accepted comes back, and an exact pack of it is the same bytes
//! again.
#![no_main]

mod seeds;

use libfuzzer_sys::fuzz_target;
use std::io::Cursor;
use std::sync::LazyLock;
use tqkv_core::CodecId;
use tqkv_session::{Codecs, Layout, Mode, SessionError, inspect, pack, unpack};
use tqkv_simd::Level;

static LEVEL: LazyLock<Level> = LazyLock::new(|| Level::detect().expect("a level"));

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else { return seeds::refused("too short") };
    match kind & 3 {
        0 => state(bytes, Mode::Exact),
        1 => state(bytes, Mode::Coded(Codecs { key: CodecId::S2, value: CodecId::T2, ..Codecs::DEFAULT })),
        2 => read(bytes),
        _ => {
            let mut bytes = bytes.to_vec();
            mend(&mut bytes);
            read(&bytes);
        }
    }
});

fn state(bytes: &[u8], mode: Mode) {
    let mut packed = Vec::new();
    if let Err(error) = pack(&mut Cursor::new(bytes), &mut packed, mode, *LEVEL) {
        return seeds::refused(error);
    }
    let back = unpacked(&packed).expect("a pack of ours");
    if mode == Mode::Exact {
        assert_eq!(back, bytes);
    }
    let layout = |bytes: &[u8]| Layout::read(&mut Cursor::new(bytes)).expect("a state that was packed");
    assert_eq!(layout(&back), layout(bytes));
}

fn unpacked(mut pack: &[u8]) -> Result<Vec<u8>, SessionError> {
    let mut state = Cursor::new(Vec::new());
    unpack(&mut pack, &mut state, *LEVEL)?;
    Ok(state.into_inner())
}

fn read(bytes: &[u8]) {
    let summary = inspect(&mut &bytes[..]);
    match unpacked(bytes) {
        Ok(state) => {
            let summary = summary.expect("checksums of what is unpacked");
            assert_eq!(summary.sizes.state, state.len() as u64);
            assert_eq!(summary.sizes.pack, bytes.len() as u64);
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            seeds::refused(error);
        }
    }
}

/// Rights the CRCs of the map and of chunks, as far as the fields say where they are.
fn mend(pack: &mut [u8]) {
    let word = |pack: &[u8], at: usize| {
        let bytes = pack.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
    };
    let Some(entries) = word(pack, 12) else { return };
    let (mut start, mut end) = (0, 24 + 24 * entries);
    while let Some(checked) = pack.get(start..end) {
        let crc = crc32fast::hash(checked).to_le_bytes();
        let Some(target) = pack.get_mut(end..end + 4) else { return };
        target.copy_from_slice(&crc);
        start = end + 4;
        let Some(length) = word(pack, start) else { return };
        end = start + 4 + length;
    }
}
