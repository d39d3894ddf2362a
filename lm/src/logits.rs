//! From logits to a token.

use tqkv_core::fixed::exp2_fraction;

/// log2(e) in Q16.
const LOG2_E: i64 = 94_548;

/// Logits of the next token: `values * 2^exponent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logits<'a> {
    /// One a token of the vocabulary.
    pub values: &'a [i32],
    /// Power of two of all of them.
    pub exponent: i32,
}

impl Logits<'_> {
    /// The likeliest token, the first among equals.
    pub fn greedy(&self) -> u32 {
        self.best().0
    }

    fn best(&self) -> (u32, i32) {
        let mut best = (0, i32::MIN);
        for (token, &value) in (0..).zip(self.values) {
            if value > best.1 {
                best = (token, value);
            }
        }
        best
    }
}

/// Draws tokens by softmax(logits / temperature); the same seed and logits give the same tokens on every machine.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Sampler {
    state: u64,
    /// log2(e) / temperature in Q16.
    slope: i64,
}

impl Sampler {
    /// `temperature` is in 256ths: 205 is 0.8. At 0 it is the least that there is, 1 / 256: nearly greedy.
    pub const fn new(temperature: u16, seed: u64) -> Self {
        let divisor = if temperature == 0 { 1 } else { temperature };
        Self { state: seed, slope: LOG2_E * 256 / divisor as i64 }
    }

    /// The next token. Weights have a relative error below 3e-4, or are 2^-31 of the largest where they are less.
    pub fn pick(&mut self, logits: &Logits<'_>) -> u32 {
        let (best, most) = logits.best();
        let slope = self.slope;
        let weight = move |value: i32| {
            let below = i64::from(most) - i64::from(value);
            // In Q16; beyond 2^24 of it every weight is zero.
            let below = if logits.exponent + 16 >= 0 {
                below.saturating_mul(1 << (logits.exponent + 16).min(30))
            } else {
                below >> (logits.exponent + 16).unsigned_abs().min(63)
            };
            let octaves = (below.min(1 << 24) * slope) >> 16;
            // 2^-x = 2^(1 - fraction) / 2^(whole + 1).
            let (whole, fraction) = (octaves >> 16, octaves as u32 & 0xffff);
            let power = u64::from(exp2_fraction(0xffff - fraction)) << 15;
            power.checked_shr(whole.min(64) as u32).unwrap_or(0)
        };
        let total = logits.values.iter().fold(0_u64, |sum, &value| sum.saturating_add(weight(value)));
        // Below the total, which is below 2^52.
        let mut left = ((u128::from(self.next()) * u128::from(total)) >> 64) as u64;
        for (token, &value) in (0..).zip(logits.values) {
            match left.checked_sub(weight(value)) {
                Some(rest) => left = rest,
                None => return token,
            }
        }
        best
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
