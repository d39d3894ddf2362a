//! Chooses the bits of each run of coefficients.

use std::collections::BinaryHeap;

use crate::streams::{self, MAX_WIDTH};

/// The share of a coefficient's energy that is lost at each width.
const LEFT: [f64; 6] = [1.0, 0.273, 0.0711, 0.0178, 0.0044, 0.0024];

/// One more bit for a run.
#[derive(PartialEq)]
struct WidthStep {
    gain: f64,
    run: usize,
}

impl Eq for WidthStep {}

impl PartialOrd for WidthStep {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for WidthStep {
    /// Orders by gain. Equal gains order by run, the earlier first.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.gain.total_cmp(&other.gain).then(other.run.cmp(&self.run))
    }
}

/// Chooses widths so that the streams take at most `bytes`. Greedy: each step adds the bit that removes the
/// most energy. A run has `run_values` stored values, its coefficients of all tokens.
pub(crate) fn allot(energies: &[f64], run_values: usize, bytes: usize) -> Vec<u8> {
    let mut widths = vec![0u8; energies.len()];
    let mut runs_at = [0usize; MAX_WIDTH as usize + 1];
    runs_at[0] = energies.len();
    let gain =
        |run: usize, width: u8| energies[run] * (LEFT[usize::from(width)] - LEFT[usize::from(width) + 1]);
    let mut steps: BinaryHeap<WidthStep> =
        (0..energies.len()).map(|run| WidthStep { gain: gain(run, 0), run }).collect();
    while let Some(WidthStep { gain: worth, run }) = steps.pop() {
        let width = widths[run];
        let mut next = runs_at;
        next[usize::from(width)] -= 1;
        next[usize::from(width) + 1] += 1;
        // A run without energy gets no bit.
        if worth <= 0.0 || stream_bytes(&next, run_values) > bytes {
            continue;
        }
        runs_at = next;
        widths[run] += 1;
        if widths[run] < MAX_WIDTH {
            steps.push(WidthStep { gain: gain(run, widths[run]), run });
        }
    }
    widths
}

/// The share of the energy that is lost at these widths.
pub(crate) fn lost(energies: &[f64], widths: &[u8]) -> f64 {
    let all: f64 = energies.iter().sum();
    let left: f64 =
        energies.iter().zip(widths).map(|(energy, width)| energy * LEFT[usize::from(*width)]).sum();
    if all > 0.0 { left / all } else { 0.0 }
}

fn stream_bytes(runs_at: &[usize; 6], run_values: usize) -> usize {
    (1..=MAX_WIDTH).map(|width| streams::bytes(runs_at[usize::from(width)] * run_values, width)).sum()
}

/// Writes three bits per width, least significant first.
pub(crate) fn pack(widths: &[u8], out: &mut [u8]) {
    out.fill(0);
    for (bit, width) in (0..).step_by(3).zip(widths) {
        for i in (0..3).filter(|i| width >> i & 1 == 1) {
            out[(bit + i) / 8] |= 1 << ((bit + i) % 8);
        }
    }
}

/// Reads widths. `None` if one is above 5, or a bit past the last is set.
pub(crate) fn unpack(bytes: &[u8], count: usize) -> Option<Vec<u8>> {
    let bit = |at: usize| bytes[at / 8] >> (at % 8) & 1;
    let widths: Vec<u8> = (0..count).map(|i| (0..3).map(|b| bit(3 * i + b) << b).sum()).collect();
    let is_clear = (3 * count..8 * bytes.len()).all(|at| bit(at) == 0);
    (is_clear && widths.iter().all(|width| *width <= MAX_WIDTH)).then_some(widths)
}

pub(crate) const fn packed_bytes(count: usize) -> usize {
    (3 * count).div_ceil(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_go_where_the_energy_is_and_the_streams_fit() {
        let energies: Vec<f64> = (0..24).map(|i| 0.5f64.powi(i)).collect();
        let (run_values, bytes) = (16 * 256, 12_000);
        let widths = allot(&energies, run_values, bytes);
        assert!(widths.is_sorted_by(|a, b| a >= b), "{widths:?}");
        assert!(widths[0] >= 4 && widths[23] == 0, "{widths:?}");
        let mut runs_at = [0; 6];
        widths.iter().for_each(|width| runs_at[usize::from(*width)] += 1);
        let used = stream_bytes(&runs_at, run_values);
        assert!(used <= bytes && bytes - used < 600, "{used} of {bytes}");
    }

    #[test]
    fn equal_energies_share_and_none_is_worth_nothing() {
        assert_eq!(allot(&[1.0; 4], 256, 4 * 66 + 4), [2; 4]);
        assert_eq!(allot(&[0.0, 1.0], 256, 10_000), [0, 5]);
        assert_eq!(lost(&[3.0, 1.0], &[1, 0]), (3.0 * LEFT[1] + 1.0) / 4.0);
        assert_eq!(lost(&[0.0; 2], &[0; 2]), 0.0);
    }

    #[test]
    fn packed_widths_come_back_and_others_are_refused() {
        let widths = [5, 0, 3, 1, 4, 2, 0, 5, 1];
        let mut bytes = vec![0xff; packed_bytes(widths.len())];
        pack(&widths, &mut bytes);
        assert_eq!(unpack(&bytes, widths.len()).unwrap(), widths);
        bytes[3] |= 0x80;
        assert_eq!(unpack(&bytes, widths.len()), None);
        assert_eq!(unpack(&[0b110], 1), None);
    }
}
