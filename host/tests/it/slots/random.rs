//! Random numbers of the tests.

/// A random generator that needs no crate (64-bit linear congruential, mixed).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Numbers of the plain generator that are a power of two apart resemble each other.
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed >> 33) as u32
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.bits() as usize % n
    }

    pub(crate) fn normal(&mut self) -> f32 {
        (0..6).map(|_| self.bits() as f32 / 2.0f32.powi(31) - 0.5).sum::<f32>() * std::f32::consts::SQRT_2
    }
}
