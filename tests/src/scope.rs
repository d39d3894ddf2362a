//! The extent of the tests. The default is the usual head dims and one codec per layout. `TQKV_EXHAUSTIVE=1`
//! tests everything.
//!
//! `TQKV_EXHAUSTIVE=0.05` adds a twentieth of what the default leaves out: each head dim, codec and turn is
//! drawn by itself, and each test that has a usual and a full extent. `TQKV_EXHAUSTIVE_SEED` (a number) draws
//! others. `TQKV_TEST_DIMS` (numbers separated by commas) sets the head dims, for emulators.

use std::hash::{DefaultHasher, Hash, Hasher};
use tqkv_core::CodecId;
use tqkv_core::code::Layout;

/// Head dims in use.
const USUAL_DIMS: [usize; 4] = [64, 80, 128, 256];

/// The share of cases that run beyond the usual ones, from 0 to 1.
///
/// # Panics
/// If `TQKV_EXHAUSTIVE` is not such a number.
fn share() -> f64 {
    let Ok(text) = std::env::var("TQKV_EXHAUSTIVE") else { return 0.0 };
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.unwrap_or_else(|| panic!("TQKV_EXHAUSTIVE is '{text}', accepted is a number from 0 to 1"))
}

/// Returns true for `share` of all cases; `seed` chooses which.
fn is_drawn(case: impl Hash, share: f64, seed: &str) -> bool {
    let mut hasher = DefaultHasher::new();
    (seed, case).hash(&mut hasher);
    // The upper bits fit the mantissa.
    ((hasher.finish() >> 11) as f64 / (1u64 << 53) as f64) < share
}

/// Returns true if this case is drawn.
fn is_sampled(case: impl Hash) -> bool {
    is_drawn(case, share(), &std::env::var("TQKV_EXHAUSTIVE_SEED").unwrap_or_default())
}

/// Returns true if the running test covers its full extent. All of a test gets the same answer, because its
/// thread has its name.
pub fn is_exhaustive() -> bool {
    is_sampled(std::thread::current().name().unwrap_or_default())
}

/// Returns true if a case runs that is not a usual one: it is drawn, or its test is.
fn is_more(case: impl Hash) -> bool {
    is_sampled(case) || is_exhaustive()
}

/// The usual extent of a test, or the full one where [`is_exhaustive`].
pub fn extent<T>(usual: T, whole: T) -> T {
    if is_exhaustive() { whole } else { usual }
}

/// Returns true if case `number` runs at shape `shape` of `shapes`. By default each case runs at one shape.
pub fn is_turn(number: usize, shape: usize, shapes: usize) -> bool {
    number % shapes == shape % shapes || is_more((number, shape))
}

/// The head dims under test among `all`.
///
/// # Panics
/// If `TQKV_TEST_DIMS` names none of them.
pub fn dims(all: &[usize]) -> Vec<usize> {
    let named = std::env::var("TQKV_TEST_DIMS").unwrap_or_default();
    let named: Vec<usize> = named.split(',').filter_map(|dim| dim.trim().parse().ok()).collect();
    let is_tested = |dim: &usize| {
        if named.is_empty() { USUAL_DIMS.contains(dim) || is_more(dim) } else { named.contains(dim) }
    };
    let dims: Vec<usize> = all.iter().copied().filter(is_tested).collect();
    assert!(!dims.is_empty(), "TQKV_TEST_DIMS names none of {all:?}");
    dims
}

/// The codecs under test among `all`: the first codec of each layout, or all codecs.
pub fn codecs(all: &[CodecId]) -> Vec<CodecId> {
    let mut layouts: Vec<Layout> = Vec::new();
    let mut is_new = |id: &CodecId| {
        let is_new = !layouts.contains(&id.layout());
        layouts.push(id.layout());
        is_new || is_more(id.name())
    };
    all.iter().copied().filter(|id| is_new(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_cases_is_drawn_and_a_seed_draws_others() {
        let drawn =
            |share, seed: &str| (0..10_000).filter(|&case| is_drawn(case, share, seed)).collect::<Vec<_>>();
        assert_eq!((drawn(0.0, "7").len(), drawn(1.0, "7").len()), (0, 10_000));
        let some = drawn(0.05, "7");
        assert!((400..600).contains(&some.len()), "{}", some.len());
        assert!(some == drawn(0.05, "7") && some != drawn(0.05, "8"));
    }

    #[test]
    fn every_layout_has_a_codec() {
        let tested = codecs(CodecId::ALL);
        for id in CodecId::ALL {
            assert!(tested.iter().any(|other| other.layout() == id.layout()), "{}", id.name());
        }
    }
}
