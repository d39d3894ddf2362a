//! The rotation of keys by a shift of positions, with the formulas of the host's own `ROPE`.

use super::format::SlotFormat;
use super::store::SlotStore;
use super::stream::{SlotPlace, Stream};
use crate::cache::life::PAGE_TOKENS;
use half::f16;
use half::slice::HalfFloatSliceExt;

/// The settings of a rotation that all rows share.
#[derive(Clone, Debug)]
pub struct Shift {
    /// Values per head.
    pub head_dim: usize,
    /// First value of a head that is rotated.
    pub first: usize,
    /// Values per head that are rotated, from `first` on.
    pub dims: usize,
    /// True if the two values of a pair are `dims / 2` apart (NEOX); false if they are neighbours.
    pub halves: bool,
    /// Base of the angles.
    pub base: f32,
    /// Factor of positions.
    pub scale: f32,
    /// Share of the extrapolated angle in each angle (YaRN); 0 for none.
    pub extrapolated: f32,
    /// Factor of the length of rotated pairs.
    pub factor: f32,
    /// First and last pair of the ramp from extrapolated to interpolated angles.
    pub ramp: [f32; 2],
    /// Divisors of the angles, one per pair; empty for none.
    pub divisors: Vec<f32>,
}

/// First and last pair of YaRN's ramp.
pub fn ramp(dims: usize, trained: usize, base: f32, [fast, slow]: [f32; 2]) -> [f32; 2] {
    let pair = |turns: f32| {
        dims as f32 * (trained as f32 / (turns * 2.0 * std::f32::consts::PI)).ln() / (2.0 * base.ln())
    };
    [pair(fast).floor().max(0.0), pair(slow).ceil().min(dims as f32 - 1.0)]
}

impl Shift {
    /// Cosine and sine of each pair for a shift, times the factor of lengths.
    fn angles(&self, shift: i32) -> Vec<[f32; 2]> {
        let step = self.base.powf(-2.0 / self.dims as f32);
        let mut outer = shift as f32;
        let pairs = 0..self.dims / 2;
        let angle = |pair: usize| {
            let given = outer / self.divisors.get(pair).copied().unwrap_or(1.0);
            outer *= step;
            let (mut angle, mut length) = (self.scale * given, self.factor);
            if self.extrapolated != 0.0 {
                let way = (pair as f32 - self.ramp[0]) / (self.ramp[1] - self.ramp[0]).max(0.001);
                let mix = (1.0 - way.clamp(0.0, 1.0)) * self.extrapolated;
                angle = angle * (1.0 - mix) + given * mix;
                length *= 1.0 + 0.1 * (1.0 / self.scale).ln();
            }
            [angle.cos() * length, angle.sin() * length]
        };
        pairs.map(angle).collect()
    }

    fn rotate(&self, angles: &[[f32; 2]], x: &mut [f32]) {
        let x = &mut x[self.first..];
        for (pair, [cos, sin]) in angles.iter().enumerate() {
            let (a, b) = if self.halves { (pair, pair + self.dims / 2) } else { (2 * pair, 2 * pair + 1) };
            let (first, second) = (x[a], x[b]);
            x[a] = first * cos - second * sin;
            x[b] = first * sin + second * cos;
        }
    }
}

/// Rotates the keys of rows `0..shifts.len()`, counted over all streams. Codes are decoded, rotated and
/// encoded again.
pub fn rotate(store: &mut SlotStore, rope: &Shift, shifts: &[i32]) {
    let slots = store.slots();
    let (streams, format) = store.streams_mut();
    for (stream, shifts) in streams.iter_mut().zip(shifts.chunks(slots)) {
        rotate_stream(stream, format, rope, shifts);
    }
}

fn rotate_stream(stream: &mut Stream, format: Option<&SlotFormat>, rope: &Shift, shifts: &[i32]) {
    // Most rows move by the same number of positions.
    let mut known: Option<(i32, Vec<[f32; 2]>)> = None;
    let mut angles_of = |shift: i32| {
        if known.as_ref().is_none_or(|(of, _)| *of != shift) {
            known = Some((shift, rope.angles(shift)));
        }
        known.as_ref().map(|(_, angles)| angles.clone()).unwrap_or_default()
    };
    let is_moved = |shift: i32| shift != 0 || rope.factor != 1.0 || rope.extrapolated != 0.0;
    let end = stream.end().min(shifts.len());
    for slot in (0..end).filter(|&slot| is_moved(shifts[slot])) {
        let SlotPlace::Exact(at) = stream.place(slot) else { continue };
        let angles = angles_of(shifts[slot]);
        let mut x = vec![0.0; rope.head_dim];
        stream.exact.change(at, |part| {
            for head in part.chunks_exact_mut(rope.head_dim) {
                head.convert_to_f32_slice(&mut x);
                rope.rotate(&angles, &mut x);
                head.convert_from_f32_slice(&x);
            }
        });
    }
    let Some(format) = format else { return };
    for page in 0..end.div_ceil(PAGE_TOKENS) {
        let from = page * PAGE_TOKENS;
        for tier in 0..format.tiers() {
            let mut slots = stream.pages.slots(tier, page);
            slots.retain(|slot| from + slot < end && is_moved(shifts[from + slot]));
            let decoded =
                (0..stream.exact.heads()).map(|head| stream.decode((format, tier), head, page, &slots));
            let mut heads: Vec<Vec<f32>> = decoded.collect();
            for (i, slot) in slots.iter().enumerate() {
                let angles = angles_of(shifts[from + slot]);
                heads.iter_mut().for_each(|x| rope.rotate(&angles, &mut x[i * format.dim..][..format.dim]));
            }
            encode_again(stream, (format, tier), from, &slots, &heads);
        }
    }
}

/// Writes keys back as codes. If one cannot be encoded, all of them become exact rows.
fn encode_again(
    stream: &mut Stream,
    of: (&SlotFormat, usize),
    from: usize,
    slots: &[usize],
    heads: &[Vec<f32>],
) {
    if slots.is_empty() {
        return;
    }
    let mut blocks = vec![Vec::new(); heads.len()];
    let (mut fine, basis) = (true, stream.pages.bases.of(from + slots[0]));
    for (head, (x, blocks)) in heads.iter().zip(&mut blocks).enumerate() {
        fine &= stream.code(of, (head, basis), &mut x.clone(), blocks);
    }
    if fine {
        let slots: Vec<usize> = slots.iter().map(|slot| from + slot).collect();
        stream.put(of, &slots, basis, &blocks, &[0]);
        return;
    }
    for (i, slot) in slots.iter().enumerate() {
        let part = |x: &Vec<f32>| x[i * of.0.dim..][..of.0.dim].to_vec();
        let row: Vec<f16> = heads.iter().flat_map(part).map(f16::from_f32).collect();
        stream.write(from + slot, &row, Some(stream.place_of_code(from + slot)));
    }
}
