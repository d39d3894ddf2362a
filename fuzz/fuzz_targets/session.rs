//! Bytes as a saved state of llama.cpp and as a packed session: as they are, and as packs whose checksums are
//! mended. States are coded with codecs and in a basis. None makes a panic. A state that is accepted comes
//! back, and an exact pack of it is the same bytes again.
#![no_main]

mod seeds;

use libfuzzer_sys::fuzz_target;
use std::io::Cursor;
use std::sync::{Arc, LazyLock};
use tqkv_core::CodecId;
use tqkv_session::{
    BasisCoder, Budget, Codecs, Layout, Mode, SessionError, StorageCodec, inspect, pack, unpack,
};
use tqkv_simd::Level;
use tqkv_storage::{Learner, Rope, RopePairing, Shape};

static LEVEL: LazyLock<Level> = LazyLock::new(|| Level::detect().expect("a level"));

/// A basis of one layer, two KV heads of 32.
static CODEC: LazyLock<StorageCodec> = LazyLock::new(|| {
    let rope = Rope::new(0, RopePairing::Half, (0..16).map(|i| 1e4f64.powf(-f64::from(i) / 16.0)).collect());
    let shape = Shape::new(1, 2, 32, 32, rope).expect("a shape");
    let mut learner = Learner::new(shape.clone(), shape.join()).expect("a learner");
    let number = |i: u32| (i.wrapping_mul(2_654_435_761) >> 16) as f32 / 32768.0 - 1.0;
    let numbers = |first: u32| (first..first + 200 * 64).map(number).collect::<Vec<f32>>();
    learner.learn(&numbers(0), &numbers(1 << 20), 0).expect("numbers");
    let basis = learner.freeze("fuzz").expect("a basis");
    StorageCodec::new(shape, Some(Arc::new(basis))).expect("a codec")
});

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else { return seeds::refused("too short") };
    match kind & 3 {
        0 => state(bytes, Mode::Exact),
        1 => state(bytes, Mode::Coded(Codecs { key: CodecId::S2, value: CodecId::T2, ..Codecs::DEFAULT })),
        2 if kind & 4 > 0 => {
            let budget = Budget::new(1.1).expect("a budget");
            state(bytes, Mode::Stored(BasisCoder::new(&CODEC, budget).expect("a basis")));
        }
        2 => read(bytes),
        _ => {
            let mut bytes = bytes.to_vec();
            mend(&mut bytes);
            read(&bytes);
        }
    }
});

fn state(bytes: &[u8], mode: Mode<'_>) {
    let mut packed = Vec::new();
    if let Err(error) = pack(&mut Cursor::new(bytes), &mut packed, mode, *LEVEL) {
        return seeds::refused(error);
    }
    let back = unpacked(&packed).expect("a pack of ours");
    if matches!(mode, Mode::Exact) {
        assert_eq!(back, bytes);
    }
    let layout = |bytes: &[u8]| Layout::read(&mut Cursor::new(bytes)).expect("a state that was packed");
    assert_eq!(layout(&back), layout(bytes));
}

fn unpacked(mut pack: &[u8]) -> Result<Vec<u8>, SessionError> {
    let mut state = Cursor::new(Vec::new());
    unpack(&mut pack, &mut state, Some(&*CODEC), *LEVEL)?;
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
