//! Shifts of positions. They turn exact rows, and note the turns of codes ([`super::turns`]).

use super::format::SlotFormat;
use super::store::SlotStore;
use super::stream::Stream;
use super::turns::{Angles, MOST_TURNS, TurnRule};
use crate::cache::life::PAGE_TOKENS;
use crate::rope::{Rope, RopePairing};
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The settings of a rotation that all rows share, as a host of llama.cpp gives them to its `ROPE`.
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
    /// Size of the Hadamard transforms, of Sylvester's order and without change of length, that a host applies to the
    /// rotated values after RoPE; 0 for none.
    pub mixed: usize,
}

/// What the factors of lengths may be off 1 by, since a host computes them in f32.
const ROUNDING: f32 = 1e-6;

/// First and last pair of YaRN's ramp.
pub fn ramp(dims: usize, trained: usize, base: f32, [fast, slow]: [f32; 2]) -> [f32; 2] {
    let pair = |turns: f32| {
        dims as f32 * (trained as f32 / (turns * 2.0 * std::f32::consts::PI)).ln() / (2.0 * base.ln())
    };
    [pair(fast).floor().max(0.0), pair(slow).ceil().min(dims as f32 - 1.0)]
}

impl Shift {
    /// A rotation of complete heads by positions alone, NEOX, with the usual base.
    pub fn plain(head_dim: usize) -> Self {
        Self {
            head_dim,
            first: 0,
            dims: head_dim,
            halves: true,
            base: 10_000.0,
            scale: 1.0,
            extrapolated: 0.0,
            factor: 1.0,
            ramp: [0.0, 1.0],
            divisors: Vec::new(),
            mixed: 0,
        }
    }

    /// True if the rotation keeps lengths, so that codes stay as they are.
    pub fn keeps_lengths(&self) -> bool {
        (self.length() - 1.0).abs() <= ROUNDING
    }

    /// Factor of the length of rotated pairs, with that of YaRN.
    fn length(&self) -> f32 {
        let of_yarn = if self.extrapolated == 0.0 { 1.0 } else { 1.0 + 0.1 * (1.0 / self.scale).ln() };
        self.factor * of_yarn
    }

    /// How a position turns keys.
    fn rule(&self) -> TurnRule {
        let step = f64::from(self.base.powf(-2.0 / self.dims as f32));
        let frequency = |pair: usize| {
            let divisor = f64::from(self.divisors.get(pair).copied().unwrap_or(1.0));
            let given = step.powi(pair as i32) / divisor;
            let way = (pair as f32 - self.ramp[0]) / (self.ramp[1] - self.ramp[0]).max(0.001);
            let mix = f64::from((1.0 - way.clamp(0.0, 1.0)) * self.extrapolated);
            f64::from(self.scale) * given * (1.0 - mix) + given * mix
        };
        let pairs = if self.halves { RopePairing::Half } else { RopePairing::Interleaved };
        let rope = Rope::new(self.first, pairs, (0..self.dims / 2).map(frequency).collect());
        TurnRule { rope, mixed: self.mixed }
    }
}

/// Turns keys by shifts. Most keys move by the same number of positions.
#[derive(Debug)]
pub struct Turner {
    head_dim: usize,
    rule: Arc<TurnRule>,
    /// Factor of the length of rotated pairs.
    length: f32,
    last: Option<(i32, Angles)>,
}

impl Turner {
    /// Turns as a shift says.
    pub fn new(shift: &Shift) -> Self {
        let length = if shift.keeps_lengths() { 1.0 } else { shift.length() };
        Self { head_dim: shift.head_dim, rule: Arc::new(shift.rule()), length, last: None }
    }

    /// Turns as a position turns keys of `head_dim` values.
    pub(super) fn of_rope(head_dim: usize, rope: &Rope) -> Self {
        Self { head_dim, rule: Arc::new(TurnRule { rope: rope.clone(), mixed: 0 }), length: 1.0, last: None }
    }

    /// True if a shift changes keys.
    fn moves(&self, shift: i32) -> bool {
        shift != 0 || self.length != 1.0
    }

    /// Turns the key of one head.
    pub fn turn(&mut self, shift: i32, key: &mut [f32]) {
        if self.moves(shift) {
            let last = self.last.take().filter(|(of, _)| *of == shift);
            let make = || (shift, self.rule.angles(shift.into(), self.length));
            let (_, angles) = self.last.insert(last.unwrap_or_else(make));
            self.rule.turn(angles, key);
        }
    }
}

/// Rotates the keys of rows `0..shifts.len()`, counted over all streams. Codes stay as they are unless the rotation
/// changes lengths.
pub fn rotate(store: &mut SlotStore, shift: &Shift, shifts: &[i32]) {
    turn(store, &mut Turner::new(shift), shifts);
}

/// Same as [`rotate`].
pub(super) fn turn(store: &mut SlotStore, turner: &mut Turner, shifts: &[i32]) {
    let slots = store.slots();
    let (streams, format) = store.streams_mut();
    for (stream, shifts) in streams.iter_mut().zip(shifts.chunks(slots)) {
        let shifts = &shifts[..stream.end().min(shifts.len())];
        turn_rows(stream, turner, shifts);
        match format {
            Some(format) if turner.length == 1.0 => turn_codes(stream, format, turner, shifts),
            Some(format) => {
                let is_wanted = |slot: usize| slot < shifts.len();
                encode_again(stream, format, is_wanted, |slot, x| turner.turn(shifts[slot], x));
            }
            None => {}
        }
    }
}

/// Rotates exact rows where they lie.
fn turn_rows(stream: &mut Stream, turner: &mut Turner, shifts: &[i32]) {
    let mut x = vec![0.0; turner.head_dim];
    for (slot, &shift) in shifts.iter().enumerate() {
        let row = stream.exact.row_of(slot).filter(|_| turner.moves(shift));
        let Some(at) = row else { continue };
        stream.exact.change(at, |part| {
            for head in part.chunks_exact_mut(turner.head_dim) {
                head.convert_to_f32_slice(&mut x);
                turner.turn(shift, &mut x);
                head.convert_from_f32_slice(&x);
            }
        });
    }
}

/// Notes how far codes are turned. Those with the rarest turns are encoded again if there are too many.
fn turn_codes(stream: &mut Stream, format: &SlotFormat, turner: &mut Turner, shifts: &[i32]) {
    if stream.pages.are_empty() || shifts.iter().all(|shift| *shift == 0) {
        return;
    }
    if stream.pages.turns.are_of_other(&turner.rule) {
        let turns = stream.pages.turns.clone();
        encode_again(stream, format, |slot| turns.of(slot) > 0, |_, _| ());
    }
    let turns = &stream.pages.turns;
    let shift = |slot: usize| i64::from(shifts.get(slot).copied().unwrap_or(0));
    let slots = 0..stream.pages.len() * PAGE_TOKENS;
    let mut of: Vec<i64> = slots.map(|slot| turns.positions(turns.of(slot)) + shift(slot)).collect();
    let kept = frequent(stream, &of);
    let is_rare: Vec<bool> = of.iter().map(|by| *by != 0 && !kept.contains(by)).collect();
    let shift = |slot: usize| shifts.get(slot).copied().unwrap_or(0);
    encode_again(stream, format, |slot| is_rare[slot], |slot, x| turner.turn(shift(slot), x));
    of.iter_mut().zip(is_rare).filter(|(_, is_rare)| *is_rare).for_each(|(by, _)| *by = 0);
    stream.pages.set_all_turns(&turner.rule, &kept, &of);
}

/// The turns, in positions and without none, that most codes have. `of` has those of all slots.
fn frequent(stream: &Stream, of: &[i64]) -> Vec<i64> {
    let mut counts = BTreeMap::new();
    for (page, of) in of.chunks(PAGE_TOKENS).enumerate() {
        let codes = stream.pages.all(page);
        let own = of.iter().enumerate().filter(|(slot, by)| codes >> slot & 1 == 1 && **by != 0);
        let own: Vec<i64> = own.map(|(_, by)| *by).collect();
        for run in own.chunk_by(|a, b| a == b) {
            *counts.entry(run[0]).or_insert(0) += run.len();
        }
    }
    let mut all: Vec<(i64, usize)> = counts.into_iter().collect();
    all.sort_by_key(|(_, count)| Reverse(*count));
    all.into_iter().take(MOST_TURNS).map(|(by, _)| by).collect()
}

/// Decodes some slots, changes each vector with `change`, and encodes them again as keys without a turn. If one of a page
/// cannot be encoded, all of them become exact rows.
fn encode_again(
    stream: &mut Stream,
    format: &SlotFormat,
    is_wanted: impl Fn(usize) -> bool,
    mut change: impl FnMut(usize, &mut [f32]),
) {
    for page in 0..stream.pages.len() {
        for tier in 0..format.tiers() {
            let (of, from) = ((format, tier), page * PAGE_TOKENS);
            let mut slots = stream.pages.slots(tier, page);
            slots.retain(|slot| is_wanted(from + slot));
            let mut heads: Vec<Vec<f32>> =
                (0..stream.exact.heads()).map(|head| stream.decode(of, head, page, &slots)).collect();
            for (i, slot) in slots.iter_mut().enumerate() {
                *slot += from;
                heads.iter_mut().for_each(|x| change(*slot, &mut x[i * format.dim..][..format.dim]));
            }
            encode_slots(stream, of, &slots, &heads);
        }
    }
}

/// Writes keys of some slots of a page back.
fn encode_slots(stream: &mut Stream, of: (&SlotFormat, usize), slots: &[usize], heads: &[Vec<f32>]) {
    let Some(&first) = slots.first() else { return };
    let mut blocks = vec![Vec::new(); heads.len()];
    let (mut fine, basis) = (true, stream.pages.bases.of(first));
    for (head, (x, blocks)) in heads.iter().zip(&mut blocks).enumerate() {
        fine &= stream.code(of, (head, basis), &mut x.clone(), blocks);
    }
    if fine {
        return stream.put(of, slots, (basis, 0), &blocks, &[0]);
    }
    for (i, &slot) in slots.iter().enumerate() {
        let part = |x: &Vec<f32>| x[i * of.0.dim..][..of.0.dim].to_vec();
        let row: Vec<f16> = heads.iter().flat_map(part).map(f16::from_f32).collect();
        stream.write(slot, &row, Some(stream.place_of_code(slot)));
    }
}
