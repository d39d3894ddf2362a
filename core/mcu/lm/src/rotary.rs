//! RoPE. Angles are fractions of a turn in 32 bits, so they wrap around; sines come from a table.

/// Steps per quarter turn.
const STEPS: usize = 256;

/// Sines of a quarter turn in Q15; the last is one.
static SINES: [u16; STEPS + 1] = {
    let (mut table, mut i) = ([0; STEPS + 1], 0);
    while i <= STEPS {
        let x = i as f64 * core::f64::consts::FRAC_PI_2 / STEPS as f64;
        // Taylor's series, to x^17: the next term is below 2^-40.
        let (mut term, mut sum, mut n) = (x, x, 1.0);
        while n < 17.0 {
            term *= -x * x / ((n + 1.0) * (n + 2.0));
            sum += term;
            n += 2.0;
        }
        table[i] = (sum * 32_768.0 + 0.5) as u16;
        i += 1;
    }
    table
};

/// The sine at `at` steps of 2^-22 quarters, 0 to 2^30.
fn quarter(at: u32) -> i32 {
    let (step, part) = ((at >> 22) as usize, (at >> 7 & 0x7fff) as i32);
    let value = |step: usize| SINES.get(step).map_or(1 << 15, |&sine| i32::from(sine));
    let (a, b) = (value(step), value(step + 1));
    a + (((b - a) * part + (1 << 14)) >> 15)
}

/// Cosine and sine in Q15 of a fraction of 2^32 of a turn.
fn turn(angle: u32) -> (i32, i32) {
    let within = angle & 0x3fff_ffff;
    let (sine, cosine) = (quarter(within), quarter((1 << 30) - within));
    match angle >> 30 {
        0 => (cosine, sine),
        1 => (-sine, cosine),
        2 => (-cosine, -sine),
        _ => (sine, -cosine),
    }
}

/// Writes cosine and sine in Q15 of each pair of coordinates at a position.
pub(crate) fn angles(frequencies: impl Iterator<Item = u32>, position: u32, out: &mut [i32]) {
    for (out, frequency) in out.as_chunks_mut::<2>().0.iter_mut().zip(frequencies) {
        *out = turn(position.wrapping_mul(frequency)).into();
    }
}

/// Rotates a head of 14-bit mantissas in place: the first half of its coordinates with the second half.
pub(crate) fn rotate(head: &mut [i16], angles: &[i32]) {
    let Some((low, high)) = head.split_at_mut_checked(head.len() / 2) else { return };
    for ((a, b), [cosine, sine]) in low.iter_mut().zip(high).zip(angles.as_chunks::<2>().0) {
        let (x, y) = (i32::from(*a), i32::from(*b));
        let rounded = |sum: i32| ((sum + (1 << 14)) >> 15) as i16;
        (*a, *b) = (rounded(x * cosine - y * sine), rounded(y * cosine + x * sine));
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    /// Half a step of Q15 is from the table, half from the interpolation.
    #[test]
    fn angles_are_those_of_floats() {
        for i in 0..100_000_u32 {
            let angle = i.wrapping_mul(42_949_673);
            let (cosine, sine) = turn(angle);
            let x = f64::from(angle) / 4_294_967_296.0 * core::f64::consts::TAU;
            let error = |got: i32, want: f64| (f64::from(got) / 32_768.0 - want).abs();
            assert!(error(cosine, x.cos()) < 4e-5 && error(sine, x.sin()) < 4e-5, "{angle}");
        }
    }

    #[test]
    fn position_zero_changes_nothing_and_a_quarter_swaps() {
        let start = [1000, -2000, 3000, 4000];
        let rotated = |frequencies: [u32; 2], position| {
            let (mut head, mut table) = (start, [0; 4]);
            angles(frequencies.into_iter(), position, &mut table);
            rotate(&mut head, &table);
            head
        };
        assert_eq!(rotated([1 << 30, 5], 0), start);
        assert_eq!(rotated([1 << 30, 0], 1), [-3000, -2000, 1000, 4000]);
    }
}
