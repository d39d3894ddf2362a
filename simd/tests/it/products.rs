//! Products in bytes: every level compared with portable, and portable with exact arithmetic.

use crate::common::{Random, assert_bits, levels};
use tqkv_simd::Level;
use tqkv_simd::page::Line;
use tqkv_simd::products::{
    Group, MAX_GROUP, MAX_TOKENS, RUN, Rounded, Scale, TILE, lines, place, product, round,
};

/// Rows and columns of the matrix, tokens, runs of each group, and whether the groups have remainders.
type Case = (usize, usize, usize, &'static [&'static [usize]], bool);

const CASES: [Case; 7] = [
    (16, 16, 1, &[&[0]], false),
    (32, 16, 8, &[&[0]], true),
    (48, 80, 13, &[&[4, 0], &[1, 2, 3]], false),
    (80, 160, 7, &[&[0, 1, 2, 3, 4, 5, 6, 7], &[9]], true),
    (64, 32, 5, &[], false),
    (128, 128, 31, &[&[0, 2, 5, 7]], true),
    (96, 256, MAX_TOKENS, &[&[0, 1, 3], &[8, 9, 10, 11, 12, 13, 14, 15]], false),
];

/// Groups of numbers, rounded.
struct Rows {
    runs: Vec<usize>,
    bytes: Vec<[u32; TILE]>,
    scales: Vec<Scale>,
}

impl Rows {
    fn new(runs: &[usize], tokens: usize) -> Self {
        // Earlier contents do not count.
        Self {
            runs: runs.to_vec(),
            bytes: vec![[0x7f80_0181; TILE]; tokens.div_ceil(TILE) * runs.len() * RUN / 4],
            scales: vec![Scale { unit: f32::NAN, total: 7 }; tokens],
        }
    }

    fn rounded(&mut self) -> Rounded<'_> {
        Rounded { bytes: &mut self.bytes, scales: &mut self.scales }
    }

    /// The number that the bytes stand for.
    fn number(&self, token: usize, column: usize) -> f64 {
        let at = token / TILE * (self.runs.len() * RUN / 4) + column / 4;
        let byte = self.bytes[at][token % TILE].to_le_bytes()[column % 4].cast_signed();
        f64::from(byte) * f64::from(self.scales[token].unit)
    }
}

/// Rounds `x`, `[tokens, stride]`, whose columns are those of all groups, one after the other.
fn rounded(
    level: Level,
    x: &[f32],
    stride: usize,
    factors: &[f32],
    (_, _, tokens, groups, fine): Case,
) -> Vec<Rows> {
    let (mut all, mut first) = (Vec::new(), 0);
    for runs in groups {
        let columns = runs.len() * RUN;
        let (mut coarse, mut rest) = (Rows::new(runs, tokens), fine.then(|| Rows::new(runs, tokens)));
        let own = &factors[first..first + columns];
        round(level, (&x[first..], stride), own, coarse.rounded(), rest.as_mut().map(Rows::rounded));
        all.push(coarse);
        all.extend(rest);
        first += columns;
    }
    all
}

#[test]
fn products_are_alike_on_every_level_and_near_the_exact_ones() {
    for case in CASES {
        let (rows, columns, tokens, groups, fine) = case;
        let mut random = Random((rows * columns) as u64);
        let mut entries: Vec<i8> = random.normals(rows * columns).iter().map(|x| (60.0 * x) as i8).collect();
        entries[0] = i8::MIN;
        entries[columns + 1] = i8::MAX;
        let mut matrix = vec![Line::ZERO; lines(rows, columns)];
        for (at, entry) in entries.iter().enumerate() {
            let (line, byte) = place(columns, at / columns, at % columns);
            matrix[line].0[byte] = entry.cast_unsigned();
        }
        let used: usize = groups.iter().map(|runs| runs.len() * RUN).sum();
        let stride = used + 3;
        let mut x = random.normals(tokens * stride);
        // One token of zeros, one of numbers that are nearly zero.
        x[..used].fill(0.0);
        x[(tokens - 1) * stride..]
            .iter_mut()
            .take(if tokens > 1 { used } else { 0 })
            .for_each(|x| *x *= 1e-38);
        let factors: Vec<f32> = random.normals(used).iter().map(|x| 0.1 + x.abs()).collect();

        let wanted = rounded(Level::Portable, &x, stride, &factors, case);
        let run = |level: Level, all: &[Rows]| {
            let groups: Vec<Group<'_>> = all
                .iter()
                .map(|own| Group { runs: &own.runs, bytes: &own.bytes, scales: &own.scales })
                .collect();
            let out_stride = rows + 5;
            let mut out = vec![7.5f32; (tokens - 1) * out_stride + rows];
            product(level, &matrix, rows, &groups, &mut out, out_stride);
            out
        };
        let want = run(Level::Portable, &wanted);
        for token in 0..tokens {
            for row in 0..rows {
                let mut exact = 0.0;
                for own in &wanted {
                    for column in 0..own.runs.len() * RUN {
                        let entry = entries[row * columns + own.runs[column / RUN] * RUN + column % RUN];
                        exact += own.number(token, column) * f64::from(entry);
                    }
                }
                let got = f64::from(want[token * (rows + 5) + row]);
                assert!((got - exact).abs() <= 1e-6 * 128.0 * 127.0, "{got} is not {exact} in {case:?}");
            }
            let gap = want.get(token * (rows + 5) + rows..(token + 1) * (rows + 5)).unwrap_or_default();
            assert!(gap.iter().all(|x| *x == 7.5), "written behind a row");
        }
        // The bytes stand for what was rounded.
        let mut first = 0;
        for own in wanted.chunks(1 + usize::from(fine)) {
            for token in 0..tokens {
                for column in 0..own[0].runs.len() * RUN {
                    let exact =
                        f64::from(x[token * stride + first + column]) * f64::from(factors[first + column]);
                    let got: f64 = own.iter().map(|own| own.number(token, column)).sum();
                    let unit = f64::from(own[own.len() - 1].scales[token].unit);
                    assert!(
                        (got - exact).abs() <= 0.501 * unit + 1e-6 * exact.abs() + 1e-30,
                        "{got} is not {exact}"
                    );
                }
            }
            first += own[0].runs.len() * RUN;
        }
        for level in levels() {
            let got = rounded(level, &x, stride, &factors, case);
            // Bytes of tokens that do not exist are not used.
            let live = |own: &Rows| {
                let quads = own.runs.len() * RUN / 4;
                let of = |(i, dwords): (usize, &[u32; TILE])| {
                    dwords[..TILE.min(tokens - i / quads * TILE)].to_vec()
                };
                (own.bytes.iter().enumerate().map(of).collect::<Vec<_>>(), own.scales.clone())
            };
            let all = |rows: &[Rows]| rows.iter().map(live).collect::<Vec<_>>();
            assert_eq!(all(&got), all(&wanted), "{level:?} {case:?}");
            assert_bits(&run(level, &got), &want, "products");
        }
    }
}

#[test]
fn the_largest_sums_are_exact() {
    let (rows, columns) = (32, MAX_GROUP);
    for byte in [i8::MIN, i8::MAX] {
        let matrix = vec![Line([byte.cast_unsigned(); 64]); lines(rows, columns)];
        let runs: Vec<usize> = (0..columns / RUN).collect();
        for sign in [1.0, -1.0] {
            for level in Level::available() {
                let (x, factors) = (vec![127.0 * sign; columns], vec![1.0; columns]);
                let mut own = Rows::new(&runs, 1);
                round(level, (&x, columns), &factors, own.rounded(), None);
                let group = Group { runs: &own.runs, bytes: &own.bytes, scales: &own.scales };
                let mut out = vec![0.0; rows];
                product(level, &matrix, rows, &[group], &mut out, rows);
                let want = 127.0 * sign * f32::from(byte) * columns as f32;
                assert_eq!(out, vec![want; rows], "{level:?}");
            }
        }
    }
}
