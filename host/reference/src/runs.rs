//! `q4_0r`: the runs of `q4_0` of a rotated vector, as llama.cpp does to a quantised cache.

use crate::bits;
use crate::format::{Format, Norm};
use tqkv_core::{DecodeError, EncodeError};

/// Coordinates of a run.
pub(crate) const RUN: usize = 32;
const SCALE: Norm = Norm::F16;
/// The code of 0.
const ZERO: f64 = 8.0;

/// Bytes of a run: the scale, then two codes per byte.
const RUN_BYTES: usize = SCALE.bytes() + RUN / 2;

pub(crate) const fn block_bytes(dim: usize) -> usize {
    dim / RUN * RUN_BYTES
}

/// The runs; the row has them under a rotation.
#[derive(Debug)]
pub(crate) struct ScaledRuns;

impl Format for ScaledRuns {
    fn encode(&self, x: &[f64], block: &mut [u8]) -> Result<(), EncodeError> {
        let mut written = vec![0; block.len()];
        for (run, bytes) in x.chunks(RUN).zip(written.chunks_mut(RUN_BYTES)) {
            let largest = run.iter().fold(0.0, |m: f64, &v| if v.abs() > m.abs() { v } else { m });
            let scale = largest / -ZERO;
            let (head, codes) = bytes.split_at_mut(SCALE.bytes());
            SCALE.store(scale, head)?;
            let code = |v: f64| {
                let code = if scale == 0.0 { ZERO } else { v / scale + ZERO };
                (code + 0.5).clamp(0.0, 15.0) as u8
            };
            let (low, high) = run.split_at(RUN / 2);
            let pairs = low.iter().zip(high).flat_map(|(&a, &b)| [code(a), code(b)]);
            bits::pack(&pairs.collect::<Vec<_>>(), 4, codes);
        }
        block.copy_from_slice(&written);
        Ok(())
    }

    fn decode(&self, block: &[u8]) -> Result<Vec<f64>, DecodeError> {
        let mut y = Vec::new();
        for mut run in block.chunks(RUN_BYTES) {
            let scale = SCALE.load(&mut run)?;
            let value = |i: usize| (f64::from(bits::code(run, 4, i)) - ZERO) * scale;
            y.extend((0..RUN / 2).map(|i| value(2 * i)));
            y.extend((0..RUN / 2).map(|i| value(2 * i + 1)));
        }
        Ok(y)
    }
}
