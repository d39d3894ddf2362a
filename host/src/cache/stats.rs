//! Statistics of a cache, computed from its structures.

use super::head::Head;
use super::means::State;

/// Tokens by tier, and allocated bytes. Token counts are of the first KV head that has any. Bytes are of the
/// whole cache.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Tokens that were appended and not truncated, evicted ones included.
    pub tokens: usize,
    /// First tokens, in f16.
    pub sinks: usize,
    /// Values in the hot window, in f16.
    pub hot: usize,
    /// Keys beyond the hot window that wait for their mean, in f16.
    pub waiting_keys: usize,
    /// Values in warm pages.
    pub warm: usize,
    /// Values in cold pages.
    pub cold: usize,
    /// Values evicted because they left the sliding window.
    pub evicted: usize,
    /// KV heads of all layers whose keys are centred.
    pub centred_heads: usize,
    /// KV heads of all layers whose keys go through a map, those among them that got one by themselves
    /// ([`super::KeyMap::Auto`]).
    pub mapped_heads: usize,
    /// Bytes allocated for keys and values, spare capacity included. Memory shared with forks counts in full.
    pub allocated_bytes: usize,
    /// Bytes of `allocated_bytes` that other caches share.
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
            stats.mapped_heads += usize::from(head.keys.pages().map().is_some());
            stats.allocated_bytes += head.allocated_bytes();
            for side in [&head.keys, &head.other] {
                stats.shared_bytes += side.shared_bytes();
                stats.spilled_bytes += side.pages().spilled_bytes();
            }
        }
        stats
    }

    /// Allocated bytes per held token; 0 without tokens.
    pub fn bytes_per_token(&self) -> f64 {
        let held = self.tokens - self.evicted;
        if held == 0 { 0.0 } else { self.allocated_bytes as f64 / held as f64 }
    }
}

/// Effect of encoding and centring in one KV head. The errors are measured on one token per page since the
/// cache was made or reset. They are 0 before the first page is full.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct HeadStats {
    /// Layer.
    pub layer: usize,
    /// KV head.
    pub kv_head: usize,
    /// Allocated bytes, counted as in [`CacheStats::allocated_bytes`].
    pub allocated_bytes: usize,
    /// Number of key means so far.
    pub means: usize,
    /// True if the keys go through a map ([`super::KeyMap`]).
    pub is_mapped: bool,
    /// Share of the keys' energy that remains after their mean is subtracted. It is 1 if they are not
    /// centred.
    pub centred_energy: f64,
    /// Squared error of keys divided by their squared norm.
    pub key_error: f64,
    /// Squared error of values divided by their squared norm. In a cache of latent vectors it is of the
    /// positional parts, whose error is 0.
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
            is_mapped: head.keys.pages().map().is_some(),
            centred_energy: share(keys.centred, keys.energy),
            key_error: share(keys.error, keys.energy),
            value_error: share(values.error, values.energy),
        }
    }
}
