//! D halves as D / 2 words: stable Rust cannot yet name an array of `D / 2` words.

/// `D` 16-bit halves, read as 32-bit words.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(C, align(4))]
pub(super) struct Words<const D: usize>(pub(super) [i16; D]);

impl<const D: usize> Words<D> {
    /// The words; alignment and length fit by construction.
    #[inline(always)]
    pub(super) fn as_slice(&self) -> &[i32] {
        bytemuck::try_cast_slice(&self.0).unwrap_or_default()
    }

    /// The words; alignment and length fit by construction.
    #[inline(always)]
    pub(super) fn as_mut_slice(&mut self) -> &mut [i32] {
        bytemuck::try_cast_slice_mut(&mut self.0).unwrap_or_default()
    }

    /// The dot of halves with signed bytes; the second coordinate of a pair is in the low half.
    #[inline(always)]
    pub(super) fn dot(&self, bytes: &[u8]) -> i32 {
        let pairs = self.as_slice().iter().zip(bytes.as_chunks::<2>().0);
        pairs.fold(0, |dot, (&q, &[first, second])| {
            dot + (q >> 16) * i32::from(first as i8) + i32::from(q as i16) * i32::from(second as i8)
        })
    }
}
