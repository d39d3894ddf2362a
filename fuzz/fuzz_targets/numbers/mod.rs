//! Shared by the targets of codecs and pages: vectors from bytes, and the comparison of results.

use libfuzzer_sys::arbitrary::{self, Arbitrary};

/// The way in which bytes become floats.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Numbers {
    /// Four bytes are the bits of a float: NaN, infinities, subnormal numbers.
    Bits,
    /// A byte is a float, times a power of two.
    Scaled(i8),
    /// The same, but nearly all are zero: vectors with few large coordinates.
    Sparse(i8),
}

impl Numbers {
    /// `count` numbers; zeros after the end of the bytes.
    pub fn of(self, bytes: &[u8], count: usize) -> Vec<f32> {
        let times =
            |exponent: i8| move |byte: &u8| f32::from(*byte as i8) * 2f32.powi(i32::from(exponent) / 3);
        let mut all: Vec<f32> = match self {
            Self::Bits => bytes.as_chunks().0.iter().map(|bits| f32::from_le_bytes(*bits)).collect(),
            Self::Scaled(exponent) => bytes.iter().map(times(exponent)).collect(),
            Self::Sparse(exponent) => {
                let mut all = vec![0.0; count];
                for [low, high, value] in bytes.as_chunks().0 {
                    let at = usize::from(u16::from_le_bytes([*low, *high])) % count.max(1);
                    if let Some(place) = all.get_mut(at) {
                        *place = times(exponent)(value);
                    }
                }
                all
            }
        };
        all.resize(count, 0.0);
        all
    }
}

/// Checks that both have the same bits, or that both are NaN. The bits of a NaN are not promised.
pub fn assert_same(got: &[f32], want: &[f32], what: impl Fn() -> String) {
    assert_eq!(got.len(), want.len(), "{}", what());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
        assert!(same, "{}: number {i} is {got:e}, portable says {want:e}", what());
    }
}
