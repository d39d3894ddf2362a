//! `Sample`: the element type of a vector.

/// The element type of a vector: `i16` or `i8`, with any value.
pub trait Sample: Copy + sealed::Sealed {
    /// Bits of the type.
    const BITS: u32;

    /// Zero.
    const ZERO: Self;

    /// The value.
    fn widen(self) -> i32;

    /// The same vector, if its elements are `i16`.
    fn wide(x: &[Self]) -> Option<&[i16]>;

    /// The same vector as signed bytes, if its elements are `i8`.
    fn bytes(x: &[Self]) -> Option<&[u8]>;

    /// The nearest value of the type.
    fn saturated(value: i32) -> Self;
}

impl Sample for i16 {
    const BITS: u32 = Self::BITS;
    const ZERO: Self = 0;

    #[inline(always)]
    fn widen(self) -> i32 {
        i32::from(self)
    }

    #[inline(always)]
    fn wide(x: &[Self]) -> Option<&[i16]> {
        Some(x)
    }

    #[inline(always)]
    fn bytes(_: &[Self]) -> Option<&[u8]> {
        None
    }

    #[inline(always)]
    fn saturated(value: i32) -> Self {
        value.clamp(i32::from(Self::MIN), i32::from(Self::MAX)) as Self
    }
}

impl Sample for i8 {
    const BITS: u32 = Self::BITS;
    const ZERO: Self = 0;

    #[inline(always)]
    fn widen(self) -> i32 {
        i32::from(self)
    }

    #[inline(always)]
    fn wide(_: &[Self]) -> Option<&[i16]> {
        None
    }

    #[inline(always)]
    fn bytes(x: &[Self]) -> Option<&[u8]> {
        bytemuck::try_cast_slice(x).ok()
    }

    #[inline(always)]
    fn saturated(value: i32) -> Self {
        value.clamp(i32::from(Self::MIN), i32::from(Self::MAX)) as Self
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for i16 {}
    impl Sealed for i8 {}
}
