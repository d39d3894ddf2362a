//! Quantises weights to codes: one scale per row (8 bits), plus one per row and group of columns (4 bits).

use super::refused::refused;
use crate::ModelError;
use crate::linear::Linear;
use tqkv_core::fixed::flat::{GROUP, LayoutBytes, MAX_EXPONENT, WeightBits};

/// Group scales are tried from this share of the scale that just holds the largest weight.
const LEAST_SHARE: f32 = 0.7;

/// The exponent at which the mantissa of `largest` has `bits` bits.
fn exponent(largest: f32, bits: i32) -> Result<i32, ModelError> {
    if !largest.is_finite() {
        return Err(refused("a weight is not finite"));
    }
    let exponent = if largest == 0.0 { 0 } else { largest.log2().floor() as i32 + 1 - bits };
    if exponent.abs() <= MAX_EXPONENT {
        Ok(exponent)
    } else {
        Err(refused("weights beyond 2^63 or below 2^-48"))
    }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most: f32, v| if v.is_nan() { f32::INFINITY } else { most.max(v.abs()) })
}

/// Writes the weights of a norm.
pub(super) fn norm(file: &mut Vec<u8>, weights: &[f32]) -> Result<(), ModelError> {
    let exponent = exponent(largest(weights), 15)?;
    file.extend(exponent.to_le_bytes());
    for weight in weights {
        let mantissa = (f64::from(*weight) * 2f64.powi(-exponent)).round();
        // A weight just below a power of two rounds up to it, and the cast saturates.
        file.extend((mantissa as i16).to_le_bytes());
    }
    Ok(())
}

/// Writes a matrix.
pub(super) fn matrix(file: &mut Vec<u8>, linear: &Linear, bits: WeightBits) -> Result<(), ModelError> {
    let (columns, mut values) = values(linear);
    let rows = values.len() / columns;
    values.resize(rows.next_multiple_of(2) * columns, 0.0);
    // The unit of a row's mantissa is the value of a code. With groups it is the value of a code in a group
    // of scale one.
    let (codes, groups) = match bits {
        WeightBits::Eight => (127.0, 1.0),
        WeightBits::Four => (7.0, 255.0),
    };
    let units: Vec<f32> = values.chunks_exact(columns).map(|row| largest(row) / codes / groups).collect();
    let exponent = exponent(largest(&units), 16)?;
    // Rounded up, so that no weight exceeds the largest code.
    let mantissas =
        units.iter().map(|unit| (f64::from(*unit) * 2f64.powi(-exponent)).ceil().min(65_535.0) as u16);
    let mantissas: Vec<u16> = mantissas.collect();
    file.extend(exponent.to_le_bytes());
    file.extend(mantissas.iter().flat_map(|mantissa| mantissa.to_le_bytes()));
    for (pair, mantissas) in values.chunks_exact(2 * columns).zip(mantissas.chunks_exact(2)) {
        let (a, b) = pair.split_at(columns);
        let scaled = |row: &[f32], mantissa: u16| -> Vec<f32> {
            let unit = f64::from(mantissa) * 2f64.powi(exponent);
            row.iter().map(|w| if mantissa == 0 { 0.0 } else { (f64::from(*w) / unit) as f32 }).collect()
        };
        let rows = [scaled(a, mantissas[0]), scaled(b, mantissas[1])];
        match bits {
            WeightBits::Eight => eight_bits(file, &rows),
            WeightBits::Four => four_bits(file, &rows),
        }
    }
    Ok(())
}

/// Writes words of four columns, of both rows in turn.
fn eight_bits(file: &mut Vec<u8>, rows: &[Vec<f32>; 2]) {
    let byte = |value: f32| value.round().clamp(-128.0, 127.0) as i8 as u8;
    for (a, b) in rows[0].chunks_exact(4).zip(rows[1].chunks_exact(4)) {
        for four in [a, b] {
            let (low, other) = (byte(four[0]), byte(four[1]));
            // The bytes before these two act as their fractions.
            let upper = |value: f32, low: u8| byte(value - f32::from(low) / 256.0);
            file.extend([low, upper(four[2], low), other, upper(four[3], other)]);
        }
    }
}

/// Writes scales of groups, then codes of 32 columns of both rows in turn.
fn four_bits(file: &mut Vec<u8>, rows: &[Vec<f32>; 2]) {
    let groups = rows[0].chunks_exact(GROUP).zip(rows[1].chunks_exact(GROUP));
    let groups: Vec<_> = groups.flat_map(|(a, b)| [a, b]).map(|group| (best_scale(group), group)).collect();
    let padded = LayoutBytes(WeightBits::Four).pair_scales(rows[0].len());
    file.extend(groups.iter().map(|(scale, _)| *scale).chain(std::iter::repeat(0)).take(padded));
    for (scale, group) in groups {
        for eight in group.chunks_exact(8) {
            let nibbles = eight.iter().enumerate().map(|(c, value)| {
                let code = (code(*value, scale) + 8.0) as u32;
                code << (4 * (c / 2 + 4 * (c % 2)))
            });
            file.extend(nibbles.sum::<u32>().to_le_bytes());
        }
    }
}

/// Rounds to a code from -8 to 7.
fn code(value: f32, scale: u8) -> f32 {
    (value / f32::from(scale.max(1))).round().clamp(-8.0, 7.0)
}

/// The scale with the least squared error.
fn best_scale(group: &[f32]) -> u8 {
    let most = (largest(group) / 7.0).ceil().clamp(1.0, 255.0);
    let error = |scale: u8| -> f32 {
        group.iter().map(|value| (value - code(*value, scale) * f32::from(scale)).powi(2)).sum()
    };
    let tried = (most * LEAST_SHARE) as u8..=most as u8;
    tried.filter(|scale| *scale > 0).min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap_or(1)
}

/// All rows.
pub(super) fn values(linear: &Linear) -> (usize, Vec<f32>) {
    let (rows, columns) = linear.shape();
    let mut values = Vec::with_capacity(rows * columns);
    (0..rows).for_each(|row| linear.push_row(row, &mut values));
    (columns, values)
}
