//! Shared by the tests: the levels to run on, a test per level, and inputs that reach the edges.

use std::io::Write;
use std::sync::{Mutex, PoisonError};
use tqkv_core::code::Layout;
use tqkv_core::{CodecId, HEAD_DIMS};
use tqkv_simd::{Level, LevelName};
use tqkv_tests::scope;

/// The level with this name. A level that the machine lacks is reported once, even though test output is
/// captured. It is a failure if `TQKV_REQUIRE_LEVELS` (names separated by commas) demands the level.
pub(crate) fn level(name: LevelName) -> Option<Level> {
    Level::new(name)
        .map_err(|error| {
            let required = std::env::var("TQKV_REQUIRE_LEVELS").unwrap_or_default();
            let is_demanded = required.split(',').any(|wanted| wanted.trim() == name.name());
            assert!(!is_demanded, "TQKV_REQUIRE_LEVELS demands {}: {error}", name.name());
            static SAID: Mutex<Vec<LevelName>> = Mutex::new(Vec::new());
            let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
            if !said.contains(&name) {
                said.push(name);
                // `eprintln!` is only shown for failures. A level without tests would then look like one that
                // passed.
                let _ = writeln!(std::io::stderr(), "NOT TESTED: level {}: {error}", name.name());
            }
        })
        .ok()
}

/// The levels of this machine except portable.
pub(crate) fn levels() -> Vec<Level> {
    let others = LevelName::ALL.iter().filter(|&&name| name != LevelName::Portable);
    others.filter_map(|&name| level(name)).collect()
}

/// Layouts that are tested together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Codes of one width, side by side.
    Bits(u8),
    /// One signed byte per coordinate.
    Bytes,
    /// Runs of 32 coordinates with a scale each.
    Runs,
    /// Bit planes of a trellis with whole bits per coordinate.
    Planes,
    /// Bit planes of a trellis whose neighbours share bits.
    Pairs,
    /// Numbers that are not codes: f16.
    Values,
}

impl Group {
    /// The codecs of the group that are under test.
    pub(crate) fn codecs(self) -> Vec<CodecId> {
        scope::codecs(CodecId::ALL).into_iter().filter(|&id| Self::of(id) == self).collect()
    }

    fn of(id: CodecId) -> Self {
        match id.layout() {
            Layout::Dense { bits } => Self::Bits(bits),
            Layout::Bytes => Self::Bytes,
            Layout::Runs { .. } => Self::Runs,
            Layout::Planes(plain) if plain.pair_symbols() == 0 => Self::Planes,
            Layout::Planes(_) => Self::Pairs,
            Layout::F16 => Self::Values,
        }
    }
}

/// Runs a check of one level over the codecs of a group, unless the machine lacks the level.
pub(crate) fn check(name: LevelName, group: Group, check: fn(Level, &[CodecId])) {
    if let Some(level) = level(name) {
        check(level, &group.codecs());
    }
}

/// `of_each_level!(logits: codes)` makes tests of `fn logits(level: Level, ids: &[CodecId])`, such as
/// `logits::avx512::planes`. It makes one per level and group of layouts, for `codes` alone or for all
/// (`values` are not codes). `of_each_level!(law)` makes one test of `fn law(level: Level)` per level.
macro_rules! of_each_level {
    ($check:ident) => {
        $crate::common::for_each_level! { [$crate::common::level_tests] [$check] }
    };
    ($check:ident: codes) => {
        $crate::common::of_each_level! { [$check] [
            bits_2 Bits(2), bits_3 Bits(3), bits_4 Bits(4), bits_5 Bits(5), bytes Bytes, runs Runs,
            planes Planes, pairs Pairs
        ] }
    };
    ($check:ident: all) => {
        $crate::common::of_each_level! { [$check] [
            bits_2 Bits(2), bits_3 Bits(3), bits_4 Bits(4), bits_5 Bits(5), bytes Bytes, runs Runs,
            planes Planes, pairs Pairs, values Values
        ] }
    };
    ([$check:ident] $groups:tt) => {
        mod $check {
            $crate::common::for_each_level! { [$crate::common::of_each_group] [$check $groups] }
        }
    };
}

/// `for_each_level!([a_macro] [given])` becomes `a_macro! { [given] rows }`. A row is the name of a module,
/// the name of the level and its architecture. On another architecture its tests are ignored.
macro_rules! for_each_level {
    ([$($then:tt)*] $given:tt) => {
        $($then)*! { $given
            avx2 Avx2 "x86_64", avxvnni AvxVnni "x86_64", avx512 Avx512 "x86_64",
            neon Neon "aarch64", neondot NeonDot "aarch64", simd128 Simd128 "wasm32"
        }
    };
}

/// One test per level.
macro_rules! level_tests {
    ([$check:ident] $($test:ident $level:ident $arch:tt),*) => {
        mod $check {
            $(#[test]
            #[cfg_attr(not(target_arch = $arch), ignore = "a level of another architecture")]
            fn $test() {
                if let Some(level) = $crate::common::level(tqkv_simd::LevelName::$level) {
                    super::$check(level);
                }
            })*
        }
    };
}

/// One module per level.
macro_rules! of_each_group {
    ([$check:ident $groups:tt] $($module:ident $level:ident $arch:tt),*) => {
        $(mod $module {
            $crate::common::group_tests! { $check $level $arch $groups }
        })*
    };
}

/// One test per group.
macro_rules! group_tests {
    ($check:ident $level:ident $arch:tt [$($test:ident $group:ident $(($bits:literal))?),*]) => {
        $(#[test]
        #[cfg_attr(not(target_arch = $arch), ignore = "a level of another architecture")]
        fn $test() {
            let group = $crate::common::Group::$group $(($bits))?;
            $crate::common::check(tqkv_simd::LevelName::$level, group, super::super::$check);
        })*
    };
}

pub(crate) use {for_each_level, group_tests, level_tests, of_each_group, of_each_level};

macro_rules! level_names {
    ([] $($module:ident $level:ident $arch:tt),*) => {
        [$((stringify!($module), LevelName::$level)),*]
    };
}

/// A level without its own tests would silently go untested.
#[test]
fn every_level_and_every_codec_has_its_tests() {
    let tested = for_each_level!([level_names] []);
    assert!(tested.iter().all(|(module, level)| *module == level.name()));
    let names: Vec<LevelName> = tested.iter().map(|(_, level)| *level).collect();
    assert_eq!(names, LevelName::ALL[1..], "the levels beside portable");
    for &id in CodecId::ALL {
        let is_tested = match Group::of(id) {
            Group::Bits(bits) => (1..=5).contains(&bits),
            _ => true,
        };
        assert!(is_tested, "{}", id.name());
    }
    levels();
}

/// Head dims under test.
pub(crate) fn dims() -> Vec<usize> {
    scope::dims(&HEAD_DIMS)
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

    /// Roughly N(0, 1): the sum of twelve uniform numbers.
    pub(crate) fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }

    pub(crate) fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}

/// Vectors of `dim` values: random ones, and the edges of the number format and of the rotation.
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

/// Asserts that they are equal to the bit.
pub(crate) fn assert_bits(a: &[f32], b: &[f32], what: &str) {
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert_eq!(x.to_bits(), y.to_bits(), "{what}: value {i} is {x:e}, portable says {y:e}");
    }
    assert_eq!(a.len(), b.len(), "{what}");
}
