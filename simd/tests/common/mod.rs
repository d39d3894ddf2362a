//! What the test bodies share: the levels to run on, and inputs that reach the edges.
#![allow(dead_code, reason = "each test binary uses a part")]

use tqkv_core::HEAD_DIMS;
use tqkv_simd::{Level, LevelName};

/// The levels of this machine beside portable. Levels that it lacks are reported as skipped;
/// where `TQKV_REQUIRE_LEVELS` (names with commas between) demands one, that is a failure.
pub(crate) fn levels() -> Vec<Level> {
    let required = std::env::var("TQKV_REQUIRE_LEVELS").unwrap_or_default();
    for &name in LevelName::ALL {
        if let Err(error) = Level::new(name) {
            let demanded = required.split(',').any(|wanted| wanted.trim() == name.name());
            assert!(!demanded, "TQKV_REQUIRE_LEVELS demands {}: {error}", name.name());
            eprintln!("skipped level {}: {error}", name.name());
        }
    }
    Level::available().filter(|level| level.name() != LevelName::Portable).collect()
}

/// Head dims under test: all, or those in `TQKV_TEST_DIMS` (with commas between), for emulators.
pub(crate) fn dims() -> Vec<usize> {
    let wanted = std::env::var("TQKV_TEST_DIMS").unwrap_or_default();
    let wanted: Vec<usize> = wanted.split(',').filter_map(|dim| dim.trim().parse().ok()).collect();
    let tested = |dim: &usize| wanted.is_empty() || wanted.contains(dim);
    let dims: Vec<usize> = HEAD_DIMS.into_iter().filter(tested).collect();
    assert!(!dims.is_empty(), "TQKV_TEST_DIMS names no supported head dim");
    dims
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// About N(0, 1): twelve uniforms.
    pub(crate) fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }

    pub(crate) fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}

/// Vectors of `dim`: random ones and the edges of the number format and of the rotation.
pub(crate) fn vectors(dim: usize) -> Vec<Vec<f32>> {
    let mut random = Random(dim as u64);
    let mut all: Vec<Vec<f32>> = (0..6).map(|_| random.normals(dim)).collect();
    let scaled = |v: &[f32], by: f32| v.iter().map(|x| x * by).collect::<Vec<_>>();
    let first = all[0].clone();
    for by in [1e-3, 1e3, 1e15, 1e25, 1e-9, 1e-30, 1e-40] {
        all.push(scaled(&first, by));
    }
    all.push(vec![0.0; dim]);
    all.push(vec![-0.0; dim]);
    all.push(vec![1.0; dim]);
    let one_hot = |at: usize, value: f32| (0..dim).map(|i| if i == at { value } else { 0.0 }).collect();
    all.push(one_hot(0, 1.0));
    all.push(one_hot(dim - 1, -3.0));
    all.push(one_hot(dim / 2, f32::MIN_POSITIVE / 4.0));
    for row in [1, dim / 2, dim - 1] {
        let walsh = |i: usize| if (i & row).count_ones().is_multiple_of(2) { 0.5 } else { -0.5 };
        all.push((0..dim).map(walsh).collect());
    }
    let mut offset = random.normals(dim);
    offset.iter_mut().for_each(|v| *v += 100.0);
    offset[dim / 3] = 3e4;
    all.push(offset);
    let mut bad = first;
    bad[dim - 1] = f32::NAN;
    all.push(bad.clone());
    bad[dim - 1] = f32::NEG_INFINITY;
    all.push(bad);
    all
}

/// Equal to the bit.
pub(crate) fn assert_bits(a: &[f32], b: &[f32], what: &str) {
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert_eq!(x.to_bits(), y.to_bits(), "{what}: value {i} is {x:e}, portable says {y:e}");
    }
    assert_eq!(a.len(), b.len(), "{what}");
}
