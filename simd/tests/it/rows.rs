//! Rows of f16, in pages and plain, on every level compared with plain arithmetic.

use crate::common::{Random, assert_bits, levels};
use crate::pages::{RANGES, SLOTS, blocks, guarded, page};
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_simd::Level;
use tqkv_simd::page::{HalfPages, MAX_HEADS, narrow_rows, row_scores, row_sums, widen_rows};
use tqkv_tests::oracle::dot;

#[test]
fn half_rows_agree_with_plain_arithmetic() {
    for dim in [32, 64, 96, 128, 256, 576, 1024] {
        let codec = AnyCodec::new(CodecId::F16, dim, Options::DEFAULT).unwrap();
        assert_eq!(codec.id(), CodecId::F16);
        let mut random = Random(6);
        let blocks = blocks(&codec, &mut random);
        let pages = HalfPages::new(dim, SLOTS).unwrap();
        let page = page(pages.lines(), &codec, &blocks, |page, slot, block| pages.write(page, slot, block));
        let mut block = vec![0; 2 * dim];
        pages.read(&page, 7, &mut block);
        assert_eq!(block, blocks[7 * 2 * dim..8 * 2 * dim]);
        for level in Level::available() {
            for heads in [1, 2, 3, MAX_HEADS] {
                for (from, to) in RANGES {
                    let (n, q) = (to - from, random.normals(heads * dim));
                    let out = guarded(heads * n, 0.0, |out| pages.scores(level, &page, from, &q, &page, out));
                    let mut want = vec![0.0; heads * n];
                    for h in 0..heads {
                        let rows = &blocks[from * 2 * dim..to * 2 * dim];
                        codec.scores(&q[h * dim..(h + 1) * dim], rows, &mut want[h * n..(h + 1) * n]);
                    }
                    for (a, b) in out.iter().zip(&want) {
                        assert!((a - b).abs() < 1e-3 * (dim as f32).sqrt(), "{a} {b} dim {dim}");
                    }
                    let weights: Vec<f32> = (0..heads * n).map(|_| random.unit()).collect();
                    let acc = guarded(heads * dim, 0.0, |acc| {
                        pages.accumulate(level, &page, from, &weights, &[], acc)
                    });
                    let mut want = vec![0.0; heads * dim];
                    for h in 0..heads {
                        let rows = &blocks[from * 2 * dim..to * 2 * dim];
                        codec.accumulate(
                            &weights[h * n..(h + 1) * n],
                            rows,
                            &mut want[h * dim..(h + 1) * dim],
                        );
                    }
                    for (a, b) in acc.iter().zip(&want) {
                        assert!((a - b).abs() < 1e-4, "{a} {b} dim {dim}");
                    }
                }
            }
        }
    }
}

#[test]
fn plain_rows_are_summed_alike_on_every_level() {
    let levels = levels();
    for dim in [16, 64, 80, 128, 1024] {
        let mut random = Random(9);
        let (n, heads) = (21, 3);
        let rows: Vec<u16> =
            random.normals(n * dim).iter().map(|&x| half::f16::from_f32(x).to_bits()).collect();
        let plain: Vec<f32> = rows.iter().map(|&bits| half::f16::from_bits(bits).to_f32()).collect();
        let (q, weights) = (random.normals(heads * dim), random.normals(heads * n));
        let run = |level: Level| {
            let out = guarded(heads * n, 0.0, |out| row_scores(level, &rows, dim, &q, out));
            (out, guarded(heads * dim, 0.5, |acc| row_sums(level, &rows, dim, &weights, acc)))
        };
        let (scores, sums) = run(Level::Portable);
        for h in 0..heads {
            for i in 0..n {
                let exact = dot(&plain[i * dim..(i + 1) * dim], &q[h * dim..]);
                assert!((f64::from(scores[h * n + i]) - exact).abs() < 1e-4, "dim {dim}");
            }
            for j in 0..dim {
                let products = (0..n).map(|i| f64::from(weights[h * n + i]) * f64::from(plain[i * dim + j]));
                assert!((f64::from(sums[h * dim + j]) - 0.5 - products.sum::<f64>()).abs() < 1e-4);
            }
        }
        for &level in &levels {
            assert_bits(&run(level).0, &scores, "scores");
            assert_bits(&run(level).1, &sums, "sums");
        }
    }
}

#[test]
fn rows_become_f16_and_come_back_alike_on_every_level() {
    for values in [16, 48, 80, 1024] {
        let mut x = Random(values as u64).normals(values);
        // Ties, the largest number, the smallest, one that rounds to zero, and zeros of both signs.
        x[..8].copy_from_slice(&[1.000_488_3, 1.001_464_8, 65504.0, 6e-8, 2e-8, -0.0, 0.0, -6.2e-5]);
        let want: Vec<u16> = x.iter().map(|&x| half::f16::from_f32(x).to_bits()).collect();
        for level in levels() {
            let mut halves = vec![0; values];
            narrow_rows(level, &x, &mut halves);
            assert_eq!(halves, want, "{level:?}");
            let wide = guarded(values, 0.0, |out| widen_rows(level, &halves, out));
            let exact: Vec<f32> = want.iter().map(|&bits| half::f16::from_bits(bits).to_f32()).collect();
            assert_bits(&wide, &exact, "widened");
        }
    }
}
