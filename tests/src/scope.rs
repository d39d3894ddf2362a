//! The extent of the tests. The default is the usual head dims and one codec per layout. `TQKV_EXHAUSTIVE=1`
//! tests everything.
//!
//! `TQKV_TEST_DIMS` (numbers separated by commas) sets the head dims, for emulators.

use tqkv_core::CodecId;
use tqkv_core::code::Layout;

/// Head dims in use.
const USUAL_DIMS: [usize; 4] = [64, 80, 128, 256];

/// Returns true if everything is tested: `TQKV_EXHAUSTIVE=1`.
pub fn is_exhaustive() -> bool {
    std::env::var_os("TQKV_EXHAUSTIVE").is_some_and(|value| value == "1")
}

/// The usual extent of a test, or the whole one with `TQKV_EXHAUSTIVE=1`.
pub fn extent<T>(usual: T, whole: T) -> T {
    if is_exhaustive() { whole } else { usual }
}

/// Returns true if case `number` runs at shape `shape` of `shapes`. By default each case runs at one shape.
pub fn is_turn(number: usize, shape: usize, shapes: usize) -> bool {
    is_exhaustive() || number % shapes == shape % shapes
}

/// The head dims under test among `all`.
///
/// # Panics
/// If `TQKV_TEST_DIMS` names none of them.
pub fn dims(all: &[usize]) -> Vec<usize> {
    let named = std::env::var("TQKV_TEST_DIMS").unwrap_or_default();
    let named: Vec<usize> = named.split(',').filter_map(|dim| dim.trim().parse().ok()).collect();
    let is_tested = |dim: &usize| {
        if named.is_empty() { is_exhaustive() || USUAL_DIMS.contains(dim) } else { named.contains(dim) }
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
        is_new || is_exhaustive()
    };
    all.iter().copied().filter(|id| is_new(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_has_a_codec() {
        let tested = codecs(CodecId::ALL);
        for id in CodecId::ALL {
            assert!(tested.iter().any(|other| other.layout() == id.layout()), "{}", id.name());
        }
    }
}
