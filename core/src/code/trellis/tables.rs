//! The nine codes. `cargo xtask trellis-search` found all but `m2` and `m3`, which are made of them.

use super::Trellis;
use super::code::{Code, MAX_LEVELS, PARITIES, Plain, Predictor, TapMasks};
use super::quarters::{Quarter, Quarters};

const fn levels(used: &[i8]) -> [i8; MAX_LEVELS] {
    let (mut all, mut i) = ([0; MAX_LEVELS], 0);
    while i < used.len() {
        all[i] = used[i];
        i += 1;
    }
    all
}

macro_rules! entry {
    ($name:ident, $code:expr) => {
        pub(in crate::code) static $name: Trellis<'static> = {
            const CODE: Code = $code;
            static ROWS: [[u8; PARITIES]; CODE.row_count()] = {
                let mut rows = [[0; PARITIES]; CODE.row_count()];
                CODE.fill_rows(&mut rows);
                rows
            };
            static TAPS: TapMasks = CODE.tap_masks();
            Trellis::of_parts(CODE, &ROWS, &TAPS)
        };
    };
}

entry!(
    T1,
    Code {
        memory: 8,
        generators: [301, 126, 241],
        plain: Plain::Bits(0),
        levels: levels(&[-102, -50, -23, -25, 25, 23, 50, 102]),
        per_sigma: 66.08218,
        divisor: 873,
        predictor: Predictor { offset: 1.016, slope: 0.014 },
    }
);

entry!(
    T2,
    Code {
        memory: 8,
        generators: [499, 244, 93],
        plain: Plain::Bits(1),
        levels: levels(&[-127, -84, -65, -50, -34, -29, -11, -8, 8, 11, 29, 34, 50, 65, 84, 127]),
        per_sigma: 58.556084,
        divisor: 171,
        predictor: Predictor { offset: 1.417, slope: 0.145 },
    }
);

entry!(
    T3,
    Code {
        memory: 8,
        generators: [437, 162, 353],
        plain: Plain::Bits(2),
        levels: levels(&[
            -116, -88, -71, -63, -50, -51, -38, -39, -28, -29, -20, -20, -12, -11, -4, -4, 4, 4, 11, 12, 20,
            20, 29, 28, 39, 38, 51, 50, 63, 71, 88, 116
        ]),
        per_sigma: 42.100468,
        divisor: 33,
        predictor: Predictor { offset: 1.722, slope: 0.236 },
    }
);

entry!(
    T4,
    Code {
        memory: 8,
        generators: [425, 134, 56],
        plain: Plain::Bits(3),
        levels: levels(&[
            -118, -100, -87, -78, -71, -65, -60, -56, -52, -48, -46, -42, -40, -37, -35, -32, -30, -27, -26,
            -23, -21, -20, -18, -15, -14, -12, -10, -8, -7, -4, -3, 0, 0, 3, 4, 7, 8, 10, 12, 14, 15, 18, 20,
            21, 23, 26, 27, 30, 32, 35, 37, 40, 42, 46, 48, 52, 56, 60, 65, 71, 78, 87, 100, 118
        ]),
        per_sigma: 37.66938,
        divisor: 8,
        predictor: Predictor { offset: 1.724, slope: 0.22 },
    }
);

entry!(
    T2H,
    Code {
        memory: 8,
        generators: [231, 470, 50],
        plain: Plain::PairOfThree,
        levels: levels(&[
            -118, -84, -65, -55, -42, -37, -27, -17, -18, -9, 0, 7, 9, 20, 33, 66, 23, 34, 47, 44, 56, 77,
            93, 124
        ]),
        per_sigma: 45.65806,
        divisor: 125,
        predictor: Predictor { offset: 1.618, slope: 0.194 },
    }
);

entry!(
    T3H,
    Code {
        memory: 8,
        generators: [244, 73, 299],
        plain: Plain::PairOfSix,
        levels: levels(&[
            -80, -49, -60, -41, -36, -21, -30, -20, -31, -16, -25, -13, -9, 3, -8, 3, -3, 9, -2, 10, 13, 25,
            15, 30, 20, 31, 22, 38, 38, 50, 61, 81, 43, 56, 48, 72, 66, 90, 104, 126, -125, -105, -90, -69,
            -68, -50, -56, -40
        ]),
        per_sigma: 44.038506,
        divisor: 48,
        predictor: Predictor { offset: 1.574, slope: 0.199 },
    }
);

entry!(
    T2S8,
    Code {
        memory: 3,
        generators: [13, 4, 2],
        plain: Plain::Bits(1),
        levels: levels(&[-122, -78, -72, -48, -41, -23, -19, -3, 3, 19, 23, 41, 48, 72, 78, 122]),
        per_sigma: 50.72264,
        divisor: 221,
        predictor: Predictor { offset: 1.381, slope: 0.101 },
    }
);

/// A quarter of the width of `$of`.
macro_rules! quarter {
    ($of:ident) => {{
        // Stretch of the code in one sigma, and the inverse of 1 - D, with which it is unbiased.
        const STRETCH: f64 = stretch::$of;
        const GAMMA: f64 = gamma::$of;
        const FIRST: f64 = gamma::T4 / (T4.code.per_sigma as f64 * stretch::T4);
        const PER_SIGMA: f64 = $of.code.per_sigma as f64 * STRETCH;
        Quarter::new($of.code, $of.rows, PER_SIGMA as f32, GAMMA / PER_SIGMA / FIRST)
    }};
}

/// Sigmas of a code in one sigma of its quarter.
mod stretch {
    pub(super) const T1: f64 = 0.98;
    pub(super) const T2: f64 = 1.02;
    pub(super) const T3: f64 = 1.07;
    pub(super) const T4: f64 = 1.08;
}

/// 1 / (1 - D), D the relative squared error of the width inside these codes.
mod gamma {
    pub(super) const T1: f64 = 1.38;
    pub(super) const T2: f64 = 1.08;
    pub(super) const T3: f64 = 1.02;
    pub(super) const T4: f64 = 1.005;
}

macro_rules! of_quarters {
    ($name:ident, $widths:expr, [$($of:ident)*]) => {
        pub(in crate::code) static $name: Trellis<'static> = {
            const CODE: Code = Code {
                memory: 8,
                generators: T2.code.generators,
                plain: Plain::Quarters($widths),
                levels: T4.code.levels,
                per_sigma: (T4.code.per_sigma as f64 * stretch::T4 / gamma::T4) as f32,
                divisor: T4.code.divisor,
                predictor: Predictor { offset: 1.0, slope: 0.0 },
            };
            static QUARTERS: Quarters = [$(quarter!($of)),*];
            static TAPS: TapMasks = CODE.tap_masks();
            Trellis::of_quarters(CODE, &QUARTERS, &TAPS)
        };
    };
}

of_quarters!(M2, [4, 2, 1, 1], [T4 T2 T1 T1]);
of_quarters!(M3, [4, 3, 3, 2], [T4 T3 T3 T2]);
