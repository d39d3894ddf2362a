//! silu(g) * u, with the logistic function from a table.

/// Steps of the table from 0 to 16.
const STEPS: usize = 512;
/// Fraction bits of its argument: a step is 2^10 of them.
const BITS: i32 = 15;

/// 1 / (1 + e^-x) in Q15 - 2^14, so that it fits 16 bits with a sign.
static LOGISTIC: [i16; STEPS + 1] = {
    let (mut table, mut i) = ([0; STEPS + 1], 0);
    // e^(1/32) by its series, then powers of it.
    let (mut step, mut term, mut n) = (1.0, 1.0, 1.0);
    while n < 12.0 {
        term *= 1.0 / 32.0 / n;
        step += term;
        n += 1.0;
    }
    let mut power = 1.0;
    while i <= STEPS {
        table[i] = (power / (1.0 + power) * 32_768.0 - 16_384.0 + 0.5) as i16;
        power *= step;
        i += 1;
    }
    table
};

/// 1 / (1 + e^-x) in Q15 for x in Q15.
fn logistic(x: i32) -> i32 {
    let at = x.unsigned_abs();
    let (step, part) = ((at >> 10) as usize, (at & 1023) as i32);
    let value = |step: usize| LOGISTIC.get(step).map_or(1 << 14, |&y| i32::from(y));
    let (a, b) = (value(step), value(step + 1));
    let above = a + (((b - a) * part + 512) >> 10);
    (1 << 14) + if x < 0 { -above } else { above }
}

/// Replaces mantissas of gates, in units of 2^exponent, by silu(gate) * up, in units of 2^(both exponents).
pub(crate) fn gated(gate: &mut [i32], exponent: i32, up: &[i32]) {
    // Gates have 16 bits with their sign. Units above one are taken as one: all gates except zero are then
    // beyond the table.
    let by = (exponent + BITS).clamp(-31, 15);
    let (left, right) = (by.max(0), (-by).max(0));
    for (g, &u) in gate.iter_mut().zip(up) {
        let share = logistic((*g << left) >> right);
        *g = ((*g * share + (1 << 14)) >> 15) * u;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_the_logistic_function() {
        for x in (-700_000..700_000).step_by(37).chain([i32::MIN, i32::MIN + 1, i32::MAX]) {
            let want = 1.0 / (1.0 + (-f64::from(x) / 32_768.0).exp());
            assert!((f64::from(logistic(x)) / 32_768.0 - want).abs() < 4e-5, "{x}");
        }
    }
}
