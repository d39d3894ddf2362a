//! Pages as memory: a block is read back as written, and kernels stay inside their memory. The tests are
//! small enough for Miri, with the AVX2 kernels and with the portable ones:
//!
//! ```text
//! export MIRIFLAGS=-Zmiri-disable-isolation
//! RUSTFLAGS="-C target-feature=+avx2,+fma,+f16c,+bmi1,+bmi2" \
//!     cargo +nightly miri test -p tqkv-simd --test memory
//! cargo +nightly miri test -p tqkv-simd --test memory --target s390x-unknown-linux-gnu
//! ```
//!
//! Encoding is left out: Miri lacks the conversion to f16, and libm's square root is assembly on x86.
// A binary of its own: Miri runs it, and cannot run tests as large as the others.

use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_simd::Level;
use tqkv_simd::page::{HalfPages, KeyPages, Line, ValuePages};

const SLOTS: usize = 32;
const DIM: usize = 32;

/// Blocks with a scale of 1 and varied codes.
fn blocks(bytes: usize) -> Vec<u8> {
    let mut all: Vec<u8> = (0..SLOTS * bytes).map(|i| (i * 37 + i / 7) as u8 & 0x3f).collect();
    for block in all.chunks_exact_mut(bytes) {
        block[..2].copy_from_slice(&[0x00, 0x3c]);
    }
    all
}

#[test]
fn codes_come_back_and_kernels_stay_inside() {
    for id in [CodecId::S4, CodecId::S3, CodecId::I8] {
        let codec = AnyCodec::new(id, DIM, Options::DEFAULT).unwrap();
        let blocks = blocks(codec.block_bytes());
        let (keys, values) = (KeyPages::new(&codec, SLOTS).unwrap(), ValuePages::new(&codec, SLOTS).unwrap());
        let (mut key_page, mut value_page) =
            (vec![Line::ZERO; keys.lines()], vec![Line::ZERO; values.lines()]);
        for (slot, block) in blocks.chunks_exact(codec.block_bytes()).enumerate() {
            keys.write(&mut key_page, slot, block);
            values.write(&mut value_page, slot, block);
        }
        let mut block = vec![0; codec.block_bytes()];
        for (slot, want) in blocks.chunks_exact(codec.block_bytes()).enumerate() {
            keys.read(&key_page, slot, &mut block);
            assert_eq!(block, want, "{} key {slot}", id.name());
            values.read(&value_page, slot, &mut block);
            assert_eq!(block, want, "{} value {slot}", id.name());
        }
        let queries = keys.queries(Level::fastest(), &[0.25; DIM]);
        let (mut logits, mut acc) = ([0.0; SLOTS], [0.0; DIM]);
        keys.scores(Level::fastest(), &key_page, 0, &queries, &value_page, &mut logits);
        values.accumulate(Level::fastest(), &value_page, 0, &[0.5; SLOTS], &[], &mut acc);
        assert!(logits.iter().chain(&acc).all(|v| v.is_finite()), "{}", id.name());
    }
}

#[test]
fn half_rows_come_back_and_kernels_stay_inside() {
    let rows = HalfPages::new(DIM, SLOTS).unwrap();
    let blocks = blocks(2 * DIM);
    let mut page = vec![Line::ZERO; rows.lines()];
    for (slot, block) in blocks.chunks_exact(2 * DIM).enumerate() {
        rows.write(&mut page, slot, block);
    }
    let mut block = [0; 2 * DIM];
    for (slot, want) in blocks.chunks_exact(2 * DIM).enumerate() {
        rows.read(&page, slot, &mut block);
        assert_eq!(block, want, "row {slot}");
    }
    for n in [1, 5, SLOTS] {
        let (mut logits, mut acc) = (vec![0.0; n], [0.0; DIM]);
        rows.scores(Level::fastest(), &page, 0, &[1.0; DIM], &page, &mut logits);
        rows.accumulate(Level::fastest(), &page, 0, &vec![1.0; n], &page, &mut acc);
        // Every row is summed once: it starts with 1, and the codes follow.
        let want: f32 = page[..n].iter().flat_map(|line| line.0.as_chunks::<2>().0).map(half).sum();
        assert!((logits.iter().sum::<f32>() - want).abs() < 1e-2 * want.abs().max(1.0), "{n} rows");
        assert!((acc.iter().sum::<f32>() - want).abs() < 1e-2 * want.abs().max(1.0), "{n} rows");
    }
}

fn half(bytes: &[u8; 2]) -> f32 {
    half::f16::from_ne_bytes(*bytes).to_f32()
}
