//! From logits to a token.

use tqkv_core::fixed::exp2_fraction;

/// log2(e) in Q16.
const LOG2_E: i64 = 94_548;

/// Logits of the next token: `values * 2^exponent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logits<'a> {
    /// One logit per token of the vocabulary.
    pub values: &'a [i32],
    /// The common power of two.
    pub exponent: i32,
}

impl Logits<'_> {
    /// The most likely token; on a tie, the first.
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

/// Draws tokens by softmax(logits / temperature); the same seed and logits give the same tokens on every
/// machine.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Sampler {
    state: u64,
    /// log2(e) / temperature in Q16.
    slope: i64,
}

impl Sampler {
    /// `temperature` is in 256ths: 205 is 0.8. At 0 it is the smallest temperature, 1 / 256: nearly greedy.
    pub const fn new(temperature: u16, seed: u64) -> Self {
        let divisor = if temperature == 0 { 1 } else { temperature };
        Self { state: seed, slope: LOG2_E * 256 / divisor as i64 }
    }

    /// The next token. Weights have a relative error below 3e-4, or an error of 2^-31 of the largest weight
    /// if that is more.
    pub fn pick(&mut self, logits: &Logits<'_>) -> u32 {
        let (best, most) = logits.best();
        let slope = self.slope;
        let weight = move |value: i32| {
            let below = i64::from(most) - i64::from(value);
            // In Q16; above 2^24 every weight is zero.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_takes_the_first_of_equals() {
        let logits = |values| Logits { values, exponent: 0 };
        assert_eq!(logits(&[1, 3, 3]).greedy(), 1);
        assert_eq!(logits(&[i32::MIN, i32::MIN]).greedy(), 0);
        assert_eq!(logits(&[]).greedy(), 0);
    }

    /// Frequencies follow the softmax, and the same seed gives the same tokens.
    #[test]
    fn draws_follow_the_softmax() {
        for (exponent, values) in [(-16, [0, 65_536, 131_072]), (0, [0, 1, 2]), (-28, [0, 1 << 28, 1 << 29])]
        {
            let logits = Logits { values: &values, exponent };
            let mut counts = [0_u32; 3];
            let (mut a, mut b) = (Sampler::new(128, 7), Sampler::new(128, 7));
            for _ in 0..20_000 {
                let token = a.pick(&logits);
                assert_eq!(token, b.pick(&logits));
                counts[token as usize] += 1;
            }
            let total: f64 = (0..3).map(|l| (2.0 * f64::from(l)).exp()).sum();
            for (l, count) in (0..).zip(counts) {
                let want = (2.0 * f64::from(l)).exp() / total;
                let share = f64::from(count) / 20_000.0;
                assert!((share - want).abs() < 0.01, "{exponent} {l}: {share} against {want}");
            }
        }
    }

    #[test]
    fn cold_draws_are_greedy() {
        let logits = Logits { values: &[0, 100, 200], exponent: -6 };
        let mut sampler = Sampler::new(0, 3);
        assert!((0..1000).all(|_| sampler.pick(&logits) == 2));
    }

    #[test]
    fn extremes_do_not_overflow() {
        for exponent in [-200, -64, -17, -16, 0, 14, 200] {
            for values in [[i32::MIN, i32::MAX], [i32::MAX; 2], [i32::MIN; 2], [0, 1]] {
                let token = Sampler::new(1, 5).pick(&Logits { values: &values, exponent });
                assert!(token < 2);
            }
        }
    }
}
