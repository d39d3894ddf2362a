//! Numbers for tests.

/// A repeatable number of about normal distribution.
pub(super) fn noise(seed: usize) -> f32 {
    let part = |i: u64| {
        let x = (seed as u64 * 4 + i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((x ^ (x >> 32)) & 0xffff) as f32 / 65536.0 - 0.5
    };
    (0..4).map(part).sum::<f32>() * 1.7
}
