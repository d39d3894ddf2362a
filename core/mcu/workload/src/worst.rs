//! Inputs that make a push or an attention of a ring slow. Scores rise with every token, vectors have one
//! coordinate after the rotation, and scales are at both ends of f16.

use super::vector;
use tqkv_core::code::I8;
use tqkv_core::fixed::FixedCodec;

/// Kinds of tokens.
pub const HISTORIES: u32 = 9;
/// Kinds of queries.
pub const QUERIES: u32 = 5;
/// Tokens of a history.
pub const LENGTH: u32 = 48;

/// A vector of one coordinate after the rotation, the decoder's signs. Its scale takes a second pass.
fn one_coordinate() -> [i16; 128] {
    let (mut block, mut out) = ([0; 130], [0; 128]);
    block[..3].copy_from_slice(&[0x00, 0x3c, 127]);
    let _ = FixedCodec::<128, I8>::DEFAULT.decode(&block, -13, &mut out);
    out
}

/// Keys of a history. History 0 is the usual one.
pub fn key(history: u32, token: u32) -> ([i16; 128], i32) {
    let along: [i16; 128] = vector(1);
    let scaled = |factor: u32| along.map(|v| (i32::from(v) * factor as i32 / LENGTH as i32) as i16);
    match history {
        // Scores of query 0 rise, or fall, by more than a power of two per token.
        1 => (scaled(token + 1), -9),
        2 => (scaled(LENGTH - token), -9),
        3 => (core::array::from_fn(|i| if i == token as usize { i16::MIN } else { 0 }), -15),
        4 => (one_coordinate(), -15),
        5 => ([0; 128], -15),
        6 => ([if token.is_multiple_of(2) { i16::MAX } else { i16::MIN }; 128], -8),
        // The scale is subnormal, or too large.
        7 => (vector::<128>(token).map(|v| v >> 8), -28),
        8 => ([i16::MAX; 128], if token.is_multiple_of(3) { 4 } else { -1 }),
        _ => (vector(token), -15),
    }
}

/// Values of a history.
pub fn value(history: u32, token: u32) -> ([i16; 128], i32) {
    match history {
        1 | 2 => ([if token.is_multiple_of(2) { i16::MAX } else { i16::MIN }; 128], -15 + (token % 3) as i32),
        _ => key(history, token + 7),
    }
}

/// Queries. Number 0 is the usual one.
pub fn query(number: u32) -> ([i16; 128], i32) {
    match number {
        1 => (vector(1), -9),
        2 => ([0; 128], -15),
        3 => ([i16::MIN; 128], -2),
        4 => (one_coordinate(), -12),
        _ => (vector(1), -13),
    }
}
