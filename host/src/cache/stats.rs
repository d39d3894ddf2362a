//! What a cache holds, counted on the structures themselves.

use super::head::Head;
use super::means::State;

/// Tokens by tier and bytes as allocated. Token counts are of the first KV head that holds any;
/// bytes are of the whole cache.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Tokens appended and not truncated, evicted ones included.
    pub tokens: usize,
    /// First tokens, f16.
    pub sinks: usize,
    /// Values in the hot window, f16.
    pub hot: usize,
    /// Keys beyond the hot window that wait for the mean, f16.
    pub waiting_keys: usize,
    /// Values in warm pages.
    pub warm: usize,
    /// Values in cold pages.
    pub cold: usize,
    /// Values evicted behind the sliding window.
    pub evicted: usize,
    /// KV heads (over all layers) whose keys are centred.
    pub centred_heads: usize,
    /// Bytes of memory held for keys and values, spare capacity included; what is shared with forks counts
    /// whole.
    pub allocated_bytes: usize,
    /// Bytes of that which other caches use as well.
    pub shared_bytes: usize,
    /// Bytes in the spill file.
    pub spilled_bytes: usize,
}

impl CacheStats {
    pub(super) fn of<'a>(heads: impl Iterator<Item = &'a Head>) -> Self {
        let mut heads = heads.peekable();
        let mut stats = heads.peek().map_or_else(Self::default, |head| {
            let pages = head.other.pages();
            let (cold, evicted) = (pages.cold_len(), pages.first());
            let hot = head.other.recent().len();
            Self {
                tokens: head.len(),
                sinks: head.other.sinks().len(),
                hot,
                waiting_keys: head.keys.recent().len().saturating_sub(hot),
                warm: pages.len() - cold - evicted,
                cold,
                evicted,
                ..Self::default()
            }
        });
        for head in heads {
            stats.centred_heads += usize::from(head.keys.means().state() == State::On);
            stats.allocated_bytes += head.allocated_bytes();
            for track in [&head.keys, &head.other] {
                stats.shared_bytes += track.shared_bytes();
                stats.spilled_bytes += track.pages().spilled_bytes();
            }
        }
        stats
    }

    /// Allocated bytes per token held; 0 where there are none.
    pub fn bytes_per_token(&self) -> f64 {
        let held = self.tokens - self.evicted;
        if held == 0 { 0.0 } else { self.allocated_bytes as f64 / held as f64 }
    }
}

/// What encoding and centring did in one KV head, on a running sample of one token a page since the cache was
/// made or reset; 0 where no page is full yet.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct HeadStats {
    /// Layer.
    pub layer: usize,
    /// KV head.
    pub kv_head: usize,
    /// Bytes of memory held, as [`CacheStats::allocated_bytes`].
    pub allocated_bytes: usize,
    /// Means that the keys have had.
    pub means: usize,
    /// Energy of the keys that is left when their mean is taken off: 1 where they are not centred.
    pub centred_energy: f64,
    /// Squared error of keys over their squared norm.
    pub key_error: f64,
    /// Squared error of values over their squared norm; of positional parts in a cache of latent vectors,
    /// which have none.
    pub value_error: f64,
}

impl HeadStats {
    pub(super) fn of(layer: usize, kv_head: usize, head: &Head) -> Self {
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let (keys, values) = (head.keys.sample(), head.other.sample());
        Self {
            layer,
            kv_head,
            allocated_bytes: head.allocated_bytes(),
            means: head.keys.means().list().len(),
            centred_energy: share(keys.centred, keys.energy),
            key_error: share(keys.error, keys.energy),
            value_error: share(values.error, values.energy),
        }
    }
}
