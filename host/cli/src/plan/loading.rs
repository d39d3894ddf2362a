//! Loading stored tokens compared with computing them anew.

use tqkv_core::CodecId;
use tqkv_storage::Budget;

use super::StorageTier;
use crate::preset::KvCodecs;

/// Processor time that a form takes per token, in nanoseconds. M9 and M17 have the measurements,
/// with AVX-512 at head dim 128.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CodingTime {
    pub(crate) encode_ns: f64,
    pub(crate) decode_ns: f64,
}

impl CodingTime {
    /// Blocks of codecs, for `values` values of keys and as many of values.
    pub(crate) fn of_codecs(codecs: KvCodecs, values: f64) -> Self {
        // Nanoseconds per value.
        let per_value = |codec: CodecId| match codec {
            CodecId::F16 => (0.0, 0.0),
            _ if codec.trellis().is_some() => (43.0, 0.17),
            _ if codec.is_rotated() => (0.8, 0.29),
            _ => (0.42, 0.20),
        };
        let (k, v) = (per_value(codecs.k), per_value(codecs.v));
        Self { encode_ns: values * (k.0 + v.0), decode_ns: values * (k.1 + v.1) }
    }

    /// Chunks of the storage tier, for `values` values of keys and values together. Each byte of the basis is
    /// multiplied once per token, unless its column has no bits.
    pub(crate) fn of_storage(tier: &StorageTier, bits: Budget, values: f64) -> Self {
        let basis = tier.basis_bytes as f64;
        let per_byte = (1.0 + 1.1 * f64::from(bits.bits())) / 1e3;
        Self { encode_ns: 13.6 * values + 8.6e-3 * basis, decode_ns: 2.8 * values + per_byte * basis }
    }
}

/// The figures that all forms of a plan share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loads {
    pub(crate) tokens: u64,
    pub(crate) cores: u32,
    /// Bytes of the tokens in f16.
    pub(crate) plain: u64,
    /// Tokens per second that are computed anew.
    pub(crate) prefill: Option<f64>,
}

/// Times of one form, in seconds. Coding and transfer overlap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Times {
    pub(crate) load: f64,
    pub(crate) store: f64,
    /// Loads after which storing has paid; `None` if it never does, or if nothing is known of computing anew.
    pub(crate) loads_to_pay: Option<f64>,
}

impl Loads {
    /// Seconds to compute the tokens anew.
    pub(crate) fn compute(&self) -> Option<f64> {
        Some(self.tokens as f64 / self.prefill?)
    }

    /// Seconds to encode and to decode all tokens.
    pub(crate) fn coding(&self, time: CodingTime) -> [f64; 2] {
        [time.encode_ns, time.decode_ns].map(|ns| ns * 1e-9 * self.tokens as f64 / f64::from(self.cores))
    }

    pub(crate) fn times(&self, time: CodingTime, bytes: u64, bandwidth: u64) -> Times {
        let transfer = bytes as f64 / bandwidth as f64;
        let [store, load] = self.coding(time).map(|coding| coding.max(transfer));
        let gain = self.compute().map(|compute| compute - load);
        let loads_to_pay = gain.filter(|gain| *gain > 0.0).map(|gain| store / gain);
        Times { load, store, loads_to_pay }
    }

    /// Bytes per second up to which the form is there sooner than f16; `None` for f16.
    pub(crate) fn sooner_than_plain_to(&self, time: CodingTime) -> Option<f64> {
        let [_, decode] = self.coding(time);
        (decode > 0.0).then(|| self.plain as f64 / decode)
    }

    /// Bytes per second from which loading is faster than computing anew; `None` if it never is.
    pub(crate) fn pays_from(&self, time: CodingTime, bytes: u64) -> Option<f64> {
        let [_, decode] = self.coding(time);
        let compute = self.compute().filter(|compute| *compute > decode)?;
        Some(bytes as f64 / compute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOADS: Loads = Loads { tokens: 1000, cores: 2, plain: 1_000_000, prefill: Some(2000.0) };
    const TIME: CodingTime = CodingTime { encode_ns: 400_000.0, decode_ns: 100_000.0 };

    #[test]
    fn the_slower_of_coding_and_transfer_counts() {
        assert_eq!(LOADS.coding(TIME), [0.2, 0.05]);
        let near = LOADS.times(TIME, 250_000, 10_000_000);
        assert_eq!((near.load, near.store), (0.05, 0.2));
        assert!((near.loads_to_pay.unwrap() - 0.2 / 0.45).abs() < 1e-12);
        let far = LOADS.times(TIME, 250_000, 1_000_000);
        assert_eq!((far.load, far.store), (0.25, 0.25));
        assert_eq!(LOADS.times(TIME, 250_000, 400_000).loads_to_pay, None);
        let unknown = Loads { prefill: None, ..LOADS };
        assert_eq!(unknown.times(TIME, 250_000, 10_000_000).loads_to_pay, None);
    }

    #[test]
    fn break_evens_are_where_the_times_are_equal() {
        let sooner = LOADS.sooner_than_plain_to(TIME).unwrap();
        assert_eq!(LOADS.times(TIME, 250_000, sooner as u64).load, LOADS.plain as f64 / sooner);
        let pays = LOADS.pays_from(TIME, 250_000).unwrap();
        assert_eq!(LOADS.times(TIME, 250_000, pays as u64).load, LOADS.compute().unwrap());
        assert_eq!(LOADS.sooner_than_plain_to(CodingTime::default()), None);
        let slow = CodingTime { decode_ns: 1_000_001.0, ..TIME };
        assert_eq!(LOADS.pays_from(slow, 250_000), None);
        assert_eq!(Loads { prefill: None, ..LOADS }.pays_from(TIME, 250_000), None);
    }

    #[test]
    fn coding_times_are_near_those_measured() {
        let tier = |layers, heads, head_dim| {
            StorageTier::new(&super::super::CacheShape::new(layers, heads, head_dim)).unwrap()
        };
        // Microseconds per token in M17: SmolLM2 and a shape of 8 billion parameters.
        for (tier, values, bits, encode, decode) in [
            (tier(30, 3, 64), 11_520.0, 1.0, 195.0, 39.0),
            (tier(30, 3, 64), 11_520.0, 2.0, 195.0, 49.0),
            (tier(32, 8, 128), 65_536.0, 1.0, 1519.0, 311.0),
            (tier(32, 8, 128), 65_536.0, 2.0, 1416.0, 414.0),
        ] {
            let time = CodingTime::of_storage(&tier, Budget::new(bits).unwrap(), values);
            for (got, measured) in [(time.encode_ns / 1e3, encode), (time.decode_ns / 1e3, decode)] {
                assert!((got / measured - 1.0f64).abs() < 0.15, "{got} for {measured}");
            }
        }
    }
}
