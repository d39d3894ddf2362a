//! Codebooks against independently solved tables.

use serde_json::Value;
use tqkv_core::unstable::codebook::{Codebook, Exact};
use tqkv_core::{CodecId, HEAD_DIMS};

const SCALAR: [CodecId; 4] = [CodecId::S2, CodecId::S3, CodecId::S4, CodecId::S5];
const NESTED: [CodecId; 3] = [CodecId::N2, CodecId::N3, CodecId::N4];

/// Bits of the widest scalar codec.
const WIDEST: usize = 5;

type Row = (usize, usize, Vec<f64>, Vec<f64>, f64);

/// The reference rows for Beta tables up to 5 bits: dim, bits, levels, boundaries, relative MSE.
fn reference() -> Vec<Row> {
    let text = include_str!("../../../tests/vectors/lloyd_max.json");
    let json: Value = serde_json::from_str(text).unwrap();
    let floats = |v: &Value| v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>();
    json["tables"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| {
            let whole = |key: &str| t[key].as_u64().unwrap() as usize;
            (
                whole("d"),
                whole("bits"),
                floats(&t["centroids"]),
                floats(&t["thresholds"]),
                t["mse_times_d"].as_f64().unwrap(),
            )
        })
        .filter(|(dim, bits, ..)| HEAD_DIMS.contains(dim) && *bits <= WIDEST)
        .collect()
}

#[test]
fn the_exact_solution_is_found() {
    let rows = reference();
    assert_eq!(rows.len() % WIDEST, 0);
    assert!(rows.len() >= 7 * WIDEST, "the file covers seven head dims or more");
    for (dim, bits, levels, boundaries, mse) in rows {
        let book = Exact::lloyd_max(dim, bits).unwrap();
        let (sigma, half) = ((dim as f64).sqrt(), levels.len());
        let check = |got: f64, want: f64, what: &str| {
            let error = (got / sigma - want).abs();
            assert!(error < 1e-9, "dim {dim}, {bits} bits: {what} {got} is off by {error:e}");
        };
        for (i, &level) in levels.iter().enumerate() {
            check(book.levels()[half + i], level, "level");
            check(book.levels()[half - 1 - i], -level, "level");
        }
        assert_eq!(book.boundaries()[half - 1], 0.0);
        for (i, &boundary) in boundaries.iter().enumerate() {
            check(book.boundaries()[half + i], boundary, "boundary");
            check(book.boundaries()[half - 2 - i], -boundary, "boundary");
        }
        assert!(
            (book.relative_mse() / mse - 1.0).abs() < 1e-9,
            "dim {dim}, {bits} bits: {}",
            book.relative_mse()
        );
    }
}

#[test]
fn the_committed_codebooks_are_the_solved_ones() {
    for dim in HEAD_DIMS {
        for id in SCALAR.into_iter().chain(NESTED) {
            let (kept, solved) = (id.codebook(dim).unwrap(), Codebook::solve(id, dim).unwrap());
            // Compared as text, because it shows every bit of a float.
            let same = format!("{kept:?}") == format!("{solved:?}");
            assert!(same, "{} {dim}: run `cargo xtask codebooks`", id.name());
        }
    }
}

#[test]
fn bytes_cost_next_to_nothing() {
    for dim in HEAD_DIMS {
        for id in SCALAR.into_iter().chain(NESTED) {
            let (book, exact) = (id.codebook(dim).unwrap(), Exact::solve(id, dim).unwrap());
            let loss = book.relative_mse() / exact.relative_mse() - 1.0;
            let allowed = if id == CodecId::S5 { 0.03 } else { 0.006 };
            assert!((-1e-12..allowed).contains(&loss), "{} {dim}: {loss}", id.name());
            let bytes = book.bytes();
            let largest = *bytes.last().unwrap();
            assert!(largest >= 64 && bytes.is_sorted() && bytes.len() == 1 << id.bits());
            assert!(bytes.iter().eq(bytes.iter().rev().map(|b| -b).collect::<Vec<_>>().iter()));
            if !id.is_nested() {
                for (pair, &boundary) in bytes.windows(2).zip(book.boundaries()) {
                    let middle = (f32::from(pair[0]) + f32::from(pair[1])) * 0.5 * book.unit();
                    assert_eq!(boundary, middle, "{} {dim}", id.name());
                }
            }
        }
    }
}

#[test]
fn nested_codebooks_share_their_boundaries_and_lose_little() {
    for dim in HEAD_DIMS {
        for bits in 3..=4 {
            let of = |id: CodecId| id.codebook(dim).unwrap();
            let (wide, narrow) = (of(NESTED[bits - 2]), of(NESTED[bits - 3]));
            let shared: Vec<f32> = wide.boundaries().iter().skip(1).step_by(2).copied().collect();
            assert_eq!(shared, narrow.boundaries(), "dim {dim}, {bits} bits");
            let loss = wide.relative_mse() / of(SCALAR[bits - 2]).relative_mse() - 1.0;
            // The boundaries are optimal for Gaussian coordinates; small dims are less so.
            let allowed = if dim >= 64 { 0.01 } else { 0.05 };
            assert!((0.0..allowed).contains(&loss), "dim {dim}, {bits} bits: {loss}");
        }
    }
}

#[test]
fn unsupported_head_dims_have_no_codebook() {
    for dim in [0, 33, 2048, usize::MAX] {
        for id in SCALAR.into_iter().chain(NESTED) {
            assert!(id.codebook(dim).is_none(), "{} {dim}", id.name());
        }
        assert!((0..9).all(|bits| Exact::lloyd_max(dim, bits).is_none()), "{dim}");
    }
}
