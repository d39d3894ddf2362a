//! The token of the DSP extension and its kernels for the integer codec.

use super::dsp_loops::{self, LoopTask};
use super::{dsp_sums, products};
use tqkv_core::fixed::{Kernels, Products, Quantise};

/// Proof that the processor has the DSP extension: Cortex-M4, M7, and an M33, M55 or M85 built with it.
///
/// A firmware cannot query the extension, so its author asserts it once:
///
/// ```ignore
/// // SAFETY: this board has a Cortex-M4.
/// const DSP: Dsp = unsafe { Dsp::assume_supported() };
/// static KEYS: FixedCodec<128, S4, Dsp> = FixedCodec::DEFAULT.with_kernels(DSP);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Dsp(());

impl Dsp {
    /// The token, without a check.
    ///
    /// # Safety
    /// The processor has the DSP extension and allows unaligned words (the reset state).
    pub const unsafe fn assume_supported() -> Self {
        Self(())
    }
}

impl Kernels for Dsp {
    #[inline(always)]
    fn blank(self) -> i32 {
        core::hint::black_box(0)
    }

    #[inline(always)]
    fn rotate(self, x: &[i16], signs: &[i8], y: &mut [i32]) -> Option<u64> {
        let n = y.len();
        if n < 16 || !n.is_power_of_two() || x.len() != n || signs.len() != n {
            return None;
        }
        // SAFETY: the token proves the DSP extension; the three slices have n elements, and n is a multiple
        // of 8.
        let squared = unsafe { dsp_loops::load(x.as_ptr(), signs.as_ptr(), y.as_mut_ptr(), n) };
        let mut order = n;
        while order >= 32 {
            // SAFETY: the token proves the DSP extension; blocks of `order` values cover y, and a quarter of
            // one is a multiple of two.
            unsafe { dsp_loops::pass_four(y.as_mut_ptr(), order, n / order) };
            order /= 4;
        }
        if order == 16 {
            for block in y.as_chunks_mut::<16>().0 {
                for i in 0..8 {
                    (block[i], block[i + 8]) = (block[i] + block[i + 8], block[i] - block[i + 8]);
                }
            }
        }
        Some(squared)
    }

    #[inline(always)]
    fn quantise(self, task: Quantise<'_>, codes: &mut [u8]) -> Option<i32> {
        let n = task.y.len();
        if !n.is_multiple_of(8) || codes.len() != n * task.bits / 8 || task.shift > 31 {
            return None;
        }
        let arguments = LoopTask {
            y: task.y.as_ptr(),
            codes: codes.as_mut_ptr(),
            bins: task.bins.as_ptr(),
            levels: task.levels.as_ptr(),
            shift: task.shift,
            reciprocal: task.reciprocal,
            end: task.y.as_ptr_range().end,
        };
        let kernel = match (task.bits, task.bins.len()) {
            (4, 64) => dsp_loops::quantise_4_64,
            (4, 128) => dsp_loops::quantise_4_128,
            (4, 256) => dsp_loops::quantise_4_256,
            (2, 16) => dsp_loops::quantise_2_16,
            (2, 32) => dsp_loops::quantise_2_32,
            (2, 64) => dsp_loops::quantise_2_64,
            _ => return None,
        };
        // SAFETY: the token proves the DSP extension. y has a multiple of 8 values up to `end`. There is room
        // for their codes, one bin per value of the bits that the kernel uses, and one level per code.
        Some(unsafe { kernel(&arguments) })
    }

    #[inline(always)]
    fn dot(self, query: &[i32], bytes: &[u8]) -> Option<i32> {
        if bytes.len() != 2 * query.len() || !bytes.len().is_multiple_of(8) || bytes.is_empty() {
            return None;
        }
        // SAFETY: the token proves the DSP extension; bytes has a positive multiple of 8, and query one word
        // per two bytes.
        Some(unsafe { dsp_sums::dot(query.as_ptr(), bytes.as_ptr_range()) })
    }

    #[inline(always)]
    fn add_bytes(self, weight: i32, bytes: &[u8], sums: &mut [i32]) -> Option<()> {
        if bytes.len() != sums.len() || !bytes.len().is_multiple_of(8) || bytes.is_empty() {
            return None;
        }
        let weight = i16::try_from(weight).ok()?;
        // SAFETY: the token proves the DSP extension; bytes has a positive multiple of 8, and sums one word
        // per byte.
        unsafe { dsp_sums::add_bytes(weight.into(), bytes.as_ptr_range(), sums.as_mut_ptr()) };
        Some(())
    }

    #[inline(always)]
    fn products(self, task: Products<'_>, out: &mut [i32]) -> Option<()> {
        // SAFETY: the token proves the DSP extension.
        unsafe { products::products(&products::DSP, task, out) }
    }
}
