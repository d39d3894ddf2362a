//! What the rows of a saved state depend on, as bytes: means, factors, turns, and runs of rows of one kind.

use super::maps::StreamMaps;
use super::means::{HeadMeans, StreamMeans};
use super::turns::{StreamTurns, TurnRule};
use crate::cache::chunks::{Parser, put, refused};
use crate::cache::life::PAGE_TOKENS;
use crate::cache::map::{Order, PairFactors};
use crate::cache::mean_rule::step_of;
use crate::error::CacheError;
use crate::rope::{Rope, RopePairing};
use std::sync::Arc;
use tqkv_core::unstable::trellis::QUARTERS;

/// What a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowKind {
    Empty,
    /// Exact for good.
    Sink,
    /// Exact, with the place of [`super::exact_rows::RowPlace`], that of the first row of a run.
    Waiting {
        phase: u8,
        mean: u8,
    },
    Code {
        tier: u8,
        basis: u8,
        turn: u8,
    },
}

/// Number of the first kind that is a code; its tier is added.
const CODES: u8 = 3;

/// Rows of one kind that follow each other, at most a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowRun {
    pub(super) kind: RowKind,
    pub(super) rows: usize,
}

impl RowRun {
    pub(super) fn put(&self, bytes: &mut Vec<u8>) {
        let [kind, first, second] = match self.kind {
            RowKind::Empty => [0, 0, 0],
            RowKind::Sink => [1, 0, 0],
            RowKind::Waiting { phase, mean } => [2, phase, mean],
            RowKind::Code { tier, basis, turn } => [CODES + tier, basis, turn],
        };
        put(bytes, &[kind, first, second, self.rows as u8]);
    }

    pub(super) fn take(parser: &mut Parser<'_>) -> Result<Self, CacheError> {
        let [kind, first, second, rows] = array(parser)?;
        let kind = match kind {
            0 => RowKind::Empty,
            1 => RowKind::Sink,
            2 => RowKind::Waiting { phase: first, mean: second },
            _ => RowKind::Code { tier: kind - CODES, basis: first, turn: second },
        };
        if !(1..=PAGE_TOKENS).contains(&usize::from(rows)) {
            return refused("a run of no rows, or of more than a page");
        }
        Ok(Self { kind, rows: rows.into() })
    }
}

/// Takes as many octets.
fn array<const N: usize>(parser: &mut Parser<'_>) -> Result<[u8; N], CacheError> {
    parser.bytes(N, 1)?.first_chunk().copied().map_or_else(|| refused("too few octets"), Ok)
}

fn octet(parser: &mut Parser<'_>) -> Result<usize, CacheError> {
    array::<1>(parser).map(|[octet]| octet.into())
}

/// Appends means of these bases, which are then numbered in this order. None if they cannot be written.
pub(super) fn put_means(means: &StreamMeans, used: &[u8], bytes: &mut Vec<u8>) -> Option<()> {
    let follow = match means {
        StreamMeans::Off => {
            put(bytes, &[0u8]);
            return Some(());
        }
        StreamMeans::Learning { .. } => return None,
        StreamMeans::Known(bases) => bases.follow(),
    };
    let place = |basis: &u8| used.iter().position(|used| used == basis).and_then(|at| u8::try_from(at).ok());
    let numbers: Vec<u8> = means.numbers().iter().map(place).collect::<Option<_>>()?;
    put(bytes, &[1 + u8::from(follow), numbers.len() as u8, used.len() as u8]);
    put(bytes, &numbers);
    for mean in used.iter().flat_map(|basis| means.heads_of((*basis).into())) {
        let step = step_of(mean);
        put(bytes, &[u8::from(!mean.is_empty())]);
        if !mean.is_empty() {
            put(bytes, &[step]);
        }
        for x in mean {
            // Means lie on a grid, and are a few thousand steps long at most.
            let steps = if step > 0.0 { x / step } else { *x };
            let short = if is_negative_zero(*x) { NEGATIVE_ZERO } else { steps as i16 };
            (of_steps(short, step).to_bits() == x.to_bits()).then(|| put(bytes, &[short.cast_unsigned()]))?;
        }
    }
    Some(())
}

/// What stands for -0, which has no steps, but gives a decoded zero its sign.
const NEGATIVE_ZERO: i16 = i16::MIN;

fn is_negative_zero(x: f32) -> bool {
    x.to_bits() == (-0.0f32).to_bits()
}

/// The value of so many steps of a grid.
fn of_steps(steps: i16, step: f32) -> f32 {
    if steps == NEGATIVE_ZERO { -0.0 } else { f32::from(steps) * step }
}

/// Takes means of heads of `dim` values.
pub(super) fn take_means(
    parser: &mut Parser<'_>,
    heads: usize,
    dim: usize,
) -> Result<StreamMeans, CacheError> {
    let kind = octet(parser)?;
    if kind == 0 {
        return Ok(StreamMeans::Off);
    }
    let (numbers, count) = (octet(parser)?, octet(parser)?);
    let numbers = parser.bytes(numbers, 1)?;
    let mut list: Vec<HeadMeans> = Vec::new();
    for _ in 0..count {
        let mut means = HeadMeans::new();
        for _ in 0..heads {
            let mut mean: Box<[f32]> = Box::default();
            if octet(parser)? > 0 {
                let step = parser.values::<f32>(1)?[0];
                let steps = parser.values::<u16>(dim)?;
                mean = steps.iter().map(|x| of_steps(x.cast_signed(), step)).collect();
            }
            means.push(mean);
        }
        list.push(means);
    }
    let is_finite = list.iter().flatten().flat_map(|mean| mean.iter()).all(|x| x.is_finite());
    let is_known = kind <= 2
        && is_finite
        && !numbers.is_empty()
        && numbers.iter().all(|basis| usize::from(*basis) < count);
    match StreamMeans::of_parts(list, numbers, kind == 2).filter(|_| is_known) {
        Some(means) => Ok(means),
        None => refused("means that the cache cannot have"),
    }
}

/// Appends the factors of keys.
pub(super) fn put_maps(maps: &StreamMaps, bytes: &mut Vec<u8>) -> Option<()> {
    let maps = match maps {
        StreamMaps::Off | StreamMaps::OfKeys => &[][..],
        StreamMaps::Learning(_) => return None,
        StreamMaps::Known(maps) => maps,
    };
    put(bytes, &[u8::from(!maps.is_empty())]);
    for map in maps {
        let (order, weights) = map.as_ref().map_or((None, None), |map| (map.order(), map.weights()));
        put(bytes, &[map.is_some(), order.is_some(), weights.is_some()].map(u8::from));
        if let Some(map) = map {
            put(bytes, &map.bits().collect::<Vec<u16>>());
        }
        put(bytes, order.map_or(&[], Order::coordinates));
        put(bytes, &weights.map_or_else(Vec::new, |weights| weights.to_vec()));
    }
    Some(())
}

/// Takes the factors of heads of `dim` values.
pub(super) fn take_maps(parser: &mut Parser<'_>, heads: usize, dim: usize) -> Result<StreamMaps, CacheError> {
    if octet(parser)? == 0 {
        return Ok(StreamMaps::Off);
    }
    let mut maps = Vec::new();
    for _ in 0..heads {
        let [has_map, has_order, has_weights] = array(parser)?.map(|x| usize::from(x > 0));
        let bits = parser.values::<u16>(has_map * dim)?;
        let coordinates = parser.values::<u16>(has_order * dim)?;
        let weights = parser.values::<f32>(has_weights * QUARTERS)?;
        let order = Order::from_coordinates(&coordinates, weights.first_chunk().copied());
        let order = if has_order > 0 { order.map(Some) } else { Some(None) };
        let map = order.and_then(|order| PairFactors::from_bits(&bits, order));
        if has_map > 0 && map.is_none() {
            return refused("factors that the cache cannot have");
        }
        maps.push(map.filter(|_| has_map > 0).map(Arc::new));
    }
    Ok(StreamMaps::known(maps))
}

/// Appends some turns, which are then numbered from 1 on in this order.
pub(super) fn put_turns(turns: &StreamTurns, used: &[u8], bytes: &mut Vec<u8>) -> Option<()> {
    put(bytes, &[used.len() as u8]);
    if used.is_empty() {
        return Some(());
    }
    let TurnRule { rope, mixed } = turns.rule()?;
    put(bytes, &[u8::from(rope.pairs == RopePairing::Interleaved)]);
    put(bytes, &[rope.first, *mixed, rope.inv_freq.len()].map(|x| x as u16));
    put(bytes, &rope.inv_freq.iter().map(|x| x.to_bits()).collect::<Vec<u64>>());
    put(bytes, &used.iter().map(|turn| turns.positions((*turn).into())).collect::<Vec<i64>>());
    Some(())
}

/// Takes turns of heads of `dim` values.
pub(super) fn take_turns(parser: &mut Parser<'_>, dim: usize) -> Result<StreamTurns, CacheError> {
    let count = octet(parser)?;
    if count == 0 {
        return Ok(StreamTurns::default());
    }
    let pairs = if octet(parser)? > 0 { RopePairing::Interleaved } else { RopePairing::Half };
    let sizes = parser.values::<u16>(3)?;
    let [first, mixed, pairs_of] = [sizes[0], sizes[1], sizes[2]].map(usize::from);
    let inv_freq: Vec<f64> = parser.values::<u64>(pairs_of)?.into_iter().map(f64::from_bits).collect();
    let turned = 2 * pairs_of;
    let fits = first + turned <= dim && inv_freq.iter().all(|x| x.is_finite());
    let mixes = mixed < 2 || mixed.is_power_of_two() && turned.is_multiple_of(mixed);
    if !fits || !mixes {
        return refused("a shift that turns what a key does not have");
    }
    let rule = TurnRule { rope: Rope::new(first, pairs, inv_freq), mixed };
    Ok(StreamTurns::new(&Arc::new(rule), &parser.values::<i64>(count)?))
}
