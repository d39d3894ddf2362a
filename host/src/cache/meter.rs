//! Counters of the feature `metrics`. Without the feature they cost nothing.
//!
//! | name | counts |
//! | --- | --- |
//! | `tqkv_tokens_total` | tokens appended, one per layer |
//! | `tqkv_pages_closed_total` | pages of keys or of values that became full |
//! | `tqkv_pages_cooled_total` | pages that went to a colder tier |
//! | `tqkv_pages_spilled_total` | pages written to a spill file |
//! | `tqkv_pages_evicted_total` | pages that a sliding window left behind |
//! | `tqkv_refused_total` | operations for which the budget had no room |

/// The counted events.
#[derive(Clone, Copy)]
pub(super) enum Event {
    Tokens,
    PageClosed,
    PageCooled,
    PageSpilled,
    PageEvicted,
    Refused,
}

/// Counts some events.
#[cfg(feature = "metrics")]
pub(super) fn count(event: Event, times: usize) {
    let name = match event {
        Event::Tokens => "tqkv_tokens_total",
        Event::PageClosed => "tqkv_pages_closed_total",
        Event::PageCooled => "tqkv_pages_cooled_total",
        Event::PageSpilled => "tqkv_pages_spilled_total",
        Event::PageEvicted => "tqkv_pages_evicted_total",
        Event::Refused => "tqkv_refused_total",
    };
    metrics::counter!(name).increment(times as u64);
}

/// Does nothing.
#[cfg(not(feature = "metrics"))]
#[inline(always)]
pub(super) fn count(_: Event, _: usize) {}
