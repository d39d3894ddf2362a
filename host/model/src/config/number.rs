//! Numbers of a config that are in range, or an error that names them.

use crate::error::ModelError;

/// No real model is wider than this. Up to this limit, no product of two widths overflows 64 bits.
pub(super) const MAX_WIDTH: usize = 1 << 24;

/// Checks a count. Products of accepted counts do not overflow.
pub(super) fn count(name: &str, value: Option<usize>) -> Result<usize, ModelError> {
    match value {
        Some(value) if (1..=MAX_WIDTH).contains(&value) => Ok(value),
        Some(value) => Err(ModelError::Config(format!("{name} is {value}; accepted: 1 to {MAX_WIDTH}"))),
        None => Err(ModelError::Config(format!("{name} is missing; accepted: 1 to {MAX_WIDTH}"))),
    }
}

pub(super) fn positive(name: &str, value: f64) -> Result<f32, ModelError> {
    let narrow = value as f32;
    if narrow.is_finite() && narrow > 0.0 {
        return Ok(narrow);
    }
    Err(ModelError::Config(format!("{name} is {value}; it must be a positive number")))
}
