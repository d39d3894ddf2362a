//! The ten codes, as `cargo xtask trellis-search` finds them.

use super::Trellis;
use super::code::{Code, MAX_LEVELS, PARITIES, Plain, Predictor};
use crate::codec_id::CodecId;

/// The trellis of a codec of [`crate::Family::Trellis`].
pub const fn trellis(id: CodecId) -> Option<&'static Trellis<'static>> {
    match id {
        CodecId::T1 => Some(&T1),
        CodecId::T2 => Some(&T2),
        CodecId::T3 => Some(&T3),
        CodecId::T4 => Some(&T4),
        CodecId::T1H => Some(&T1H),
        CodecId::T2H => Some(&T2H),
        CodecId::T1S8 => Some(&T1S8),
        CodecId::T2S8 => Some(&T2S8),
        CodecId::T3S8 => Some(&T3S8),
        CodecId::T4S8 => Some(&T4S8),
        _ => None,
    }
}

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
        static $name: Trellis<'static> = {
            const CODE: Code = $code;
            static ROWS: [[u8; PARITIES]; CODE.row_count()] = {
                let mut rows = [[0; PARITIES]; CODE.row_count()];
                CODE.fill_rows(&mut rows);
                rows
            };
            Trellis::new(CODE, &ROWS)
        };
    };
}

entry!(
    T1,
    Code {
        memory: 8,
        generators: [301, 126, 241],
        plain: Plain::Bits(0),
        levels: levels(&[-104, -54, -28, -20, 20, 28, 54, 104]),
        per_sigma: 68.16201,
        divisor: 1024,
            predictor: Predictor { offset: 1.0, slope: 0.0 },
    }
);

entry!(
    T2,
    Code {
        memory: 8,
        generators: [499, 244, 93],
        plain: Plain::Bits(1),
        levels: levels(&[-118, -78, -61, -46, -32, -27, -11, -7, 7, 11, 27, 32, 46, 61, 78, 118]),
        per_sigma: 54.58512,
        divisor: 256,
            predictor: Predictor { offset: 1.38, slope: 0.132 },
    }
);

entry!(
    T3,
    Code {
        memory: 8,
        generators: [437, 162, 353],
        plain: Plain::Bits(2),
        levels: levels(&[
            -115, -88, -71, -62, -52, -49, -39, -38, -28, -29, -20, -20, -12, -11, -4, -4, 4, 4, 11, 12, 20,
            20, 29, 28, 38, 39, 49, 52, 62, 71, 88, 115
        ]),
        per_sigma: 41.96548,
        divisor: 64,
            predictor: Predictor { offset: 1.684, slope: 0.226 },
    }
);

entry!(
    T4,
    Code {
        memory: 8,
        generators: [425, 134, 56],
        plain: Plain::Bits(3),
        levels: levels(&[
            -120, -101, -88, -78, -71, -65, -60, -56, -52, -49, -46, -43, -40, -38, -35, -33, -30, -28, -26,
            -24, -22, -20, -18, -16, -14, -12, -10, -8, -6, -5, -3, -1, 1, 3, 5, 6, 8, 10, 12, 14, 16, 18,
            20, 22, 24, 26, 28, 30, 33, 35, 38, 40, 43, 46, 49, 52, 56, 60, 65, 71, 78, 88, 101, 120
        ]),
        per_sigma: 38.09175,
        divisor: 16,
            predictor: Predictor { offset: 1.565, slope: 0.171 },
    }
);

entry!(
    T1H,
    Code {
        memory: 8,
        generators: [499, 244, 93],
        plain: Plain::PairBit,
        levels: levels(&[-120, -104, -88, -72, -56, -40, -24, -8, 8, 24, 40, 56, 72, 88, 104, 120]),
        per_sigma: 50.0,
        divisor: 64,
            predictor: Predictor { offset: 1.0, slope: 0.0 },
    }
);

entry!(
    T2H,
    Code {
        memory: 8,
        generators: [437, 162, 353],
        plain: Plain::PairOfThree,
        levels: levels(&[
            -120, -110, -99, -89, -78, -68, -57, -47, -37, -26, -16, -5, 5, 16, 26, 37, 47, 57, 68, 78, 89,
            99, 110, 120
        ]),
        per_sigma: 50.0,
        divisor: 64,
            predictor: Predictor { offset: 1.0, slope: 0.0 },
    }
);

entry!(
    T1S8,
    Code {
        memory: 3,
        generators: [11, 6, 4],
        plain: Plain::Bits(0),
        levels: levels(&[-120, -86, -51, -17, 17, 51, 86, 120]),
        per_sigma: 50.0,
        divisor: 64,
            predictor: Predictor { offset: 1.0, slope: 0.0 },
    }
);

entry!(
    T2S8,
    Code {
        memory: 3,
        generators: [11, 6, 4],
        plain: Plain::Bits(1),
        levels: levels(&[-120, -104, -88, -72, -56, -40, -24, -8, 8, 24, 40, 56, 72, 88, 104, 120]),
        per_sigma: 50.0,
        divisor: 64,
            predictor: Predictor { offset: 1.0, slope: 0.0 },
    }
);

entry!(
    T3S8,
    Code {
        memory: 3,
        generators: [11, 4, 2],
        plain: Plain::Bits(2),
        levels: levels(&[
            -120, -112, -105, -97, -89, -81, -74, -66, -58, -50, -43, -35, -27, -19, -12, -4, 4, 12, 19, 27,
            35, 43, 50, 58, 66, 74, 81, 89, 97, 105, 112, 120
        ]),
        per_sigma: 50.0,
        divisor: 64,
            predictor: Predictor { offset: 1.0, slope: 0.0 },
    }
);

entry!(
    T4S8,
    Code {
        memory: 3,
        generators: [15, 4, 2],
        plain: Plain::Bits(3),
        levels: levels(&[
            -120, -116, -112, -109, -105, -101, -97, -93, -90, -86, -82, -78, -74, -70, -67, -63, -59, -55,
            -51, -48, -44, -40, -36, -32, -29, -25, -21, -17, -13, -10, -6, -2, 2, 6, 10, 13, 17, 21, 25, 29,
            32, 36, 40, 44, 48, 51, 55, 59, 63, 67, 70, 74, 78, 82, 86, 90, 93, 97, 101, 105, 109, 112, 116,
            120
        ]),
        per_sigma: 50.0,
        divisor: 64,
            predictor: Predictor { offset: 1.0, slope: 0.0 },
    }
);
