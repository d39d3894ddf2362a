//! `Sample`: the element type of a vector.

/// The element type of a vector: `i16` or `i8`, with any value.
pub trait Sample: Copy + sealed::Sealed {
    /// The value.
    fn widen(self) -> i32;

    /// The same vector, if its elements are `i16`.
    fn wide(x: &[Self]) -> Option<&[i16]>;
}

impl Sample for i16 {
    #[inline(always)]
    fn widen(self) -> i32 {
        i32::from(self)
    }

    #[inline(always)]
    fn wide(x: &[Self]) -> Option<&[i16]> {
        Some(x)
    }
}

impl Sample for i8 {
    #[inline(always)]
    fn widen(self) -> i32 {
        i32::from(self)
    }

    #[inline(always)]
    fn wide(_: &[Self]) -> Option<&[i16]> {
        None
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for i16 {}
    impl Sealed for i8 {}
}
