//! Lives of a cache with four sequences, some of which write values that are not finite. The test
//! `not_finite` and a fuzz target run them; each makes choices of its own.
//!
//! After every batch, queries are compared with attention in f64 over the rows that they see, as the cache
//! reads them back. A query that sees a row which is not finite may get anything. No other query may notice.
//! Rows themselves are compared with those that were written, which f64 turns where a sequence was shifted.

use half::f16;
use std::collections::BTreeMap;
use tqkv::CodecId;
use tqkv::cache::CacheSpec;
use tqkv::cache::{Cold, KeyMap};
use tqkv::unstable::slots::{QueryMask, QueryRule, Shift, SlotStore, StoreSide, StreamSide, attend, rotate};

/// The choices of a life.
pub(crate) trait Choose {
    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize;

    /// True once there are no more choices.
    fn is_done(&self) -> bool;
}

const SLOTS: usize = 640;
const HEADS: usize = 2;
const DIM: usize = 64;
const WIDTH: usize = HEADS * DIM;
const SEQUENCES: usize = 4;
/// Larger values are not compared, because logits of such keys have large errors.
const LARGE: f32 = 1000.0;

/// Values that are not finite, as bits of f16, and the largest that is.
const ODD: [u16; 6] = [0x7c00, 0xfc00, 0x7e00, 0xffff, 0x7c01, 0x7bff];

/// Codecs that a cache of this library has for one side. Codes of quarters are for keys that go through a
/// map.
pub(crate) fn codecs(side: StoreSide) -> Vec<CodecId> {
    let spec = CacheSpec::new(1, 1, 1, DIM);
    let all = CodecId::ALL.iter().copied();
    let served = all.filter(|id| SlotStore::format_of(side, *id, &spec, WIDTH, DIM).is_some());
    served.filter(|id| side == StoreSide::Keys || !id.rotates_quarters()).collect()
}

/// The largest relative error of a row.
fn most_error(id: CodecId) -> f32 {
    match id.bits() {
        16 => 0.0,
        8 => 0.03,
        4.. => 0.25,
        3 => 0.5,
        2 => 0.9,
        _ => 1.1,
    }
}

/// The codec of old tokens, for the codecs that have one here.
fn colder(id: CodecId) -> CodecId {
    match id {
        CodecId::T4 => CodecId::T2,
        CodecId::S4 => CodecId::S2,
        CodecId::N4 => CodecId::N2,
        other => other,
    }
}

/// A token of the cache.
#[derive(Clone, Debug)]
struct Token {
    /// One bit per sequence.
    sequences: usize,
    position: usize,
    /// What was written, as keys and values, with keys as shifts have turned them. None where a row came back from a
    /// state, or is not finite and was turned.
    written: Option<[Vec<f16>; 2]>,
    /// Number of shifts, each of which rounds an exact row, and the truth, to f16.
    shifts: usize,
}

/// Slots of all streams that hold a token, counted as rows.
type Tokens = BTreeMap<usize, Token>;

struct Life<'a, C> {
    choose: &'a mut C,
    keys: SlotStore,
    values: SlotStore,
    errors: [f32; 2],
    rope: Shift,
    tokens: Tokens,
    streams: usize,
    /// Position of the next token of each sequence.
    next: [usize; SEQUENCES],
    /// Number of outputs that were compared with f64.
    compared: usize,
}

/// Lives until the choices end. Returns the number of outputs that were compared.
pub(crate) fn live(choose: &mut impl Choose) -> usize {
    let [key, value] = [StoreSide::Keys, StoreSide::Values].map(|side| {
        let codecs = codecs(side);
        codecs[choose.below(codecs.len())]
    });
    let mut spec =
        CacheSpec::new(1, 1, 1, DIM).hot([0, 7, 64][choose.below(3)]).sinks([0, 4][choose.below(2)]);
    if key.rotates_quarters() || choose.below(3) == 0 {
        spec.key_map = KeyMap::Pairs;
    }
    let cold = [key, value].map(colder);
    if choose.below(2) == 0 {
        spec.cold = vec![(80, Cold::Demote { key: cold[0], value: cold[1] })];
    }
    let streams = [1, SEQUENCES][choose.below(2)];
    let store = |side, id| {
        let mut store = SlotStore::new(side, &spec, WIDTH, SLOTS, streams);
        assert!(store.divide(DIM, id), "{id:?} has pages");
        store
    };
    let mut life = Life {
        keys: store(StoreSide::Keys, key),
        values: store(StoreSide::Values, value),
        errors: if spec.cold.is_empty() { [key, value] } else { cold }.map(most_error),
        rope: rope(choose),
        tokens: Tokens::new(),
        streams,
        next: [0; SEQUENCES],
        compared: 0,
        choose,
    };
    while !life.choose.is_done() {
        match life.choose.below(16) {
            0 => life.remove(),
            1 => life.copy(),
            2 => life.restore(),
            3 | 5 => life.shift(),
            4 if life.choose.below(8) == 0 => life.clear(),
            _ => life.batch(),
        }
        life.check_rows();
    }
    life.compared
}

impl<C: Choose> Life<'_, C> {
    fn stream_of(&self, sequence: usize) -> usize {
        sequence % self.streams
    }

    /// A row, one in eight with a value that is not finite or very large if `is_odd`.
    fn row(&mut self, mean: f32, is_odd: bool) -> Vec<f16> {
        // Few choices make a row, so that a fuzzer's bytes make many.
        let (seed, size) = (self.choose.below(65536) as u32, 1.0 + self.choose.below(3) as f32);
        let value = |i: usize| {
            let mut bits =
                (seed + 1).wrapping_mul(0x9e37_79b9).wrapping_add((i as u32).wrapping_mul(0x85eb_ca6b));
            bits = (bits ^ (bits >> 15)).wrapping_mul(0x2c1b_3c6d);
            bits = (bits ^ (bits >> 13)).wrapping_mul(0x297a_2d39);
            let sum: i32 = bits.to_ne_bytes().into_iter().map(|byte| i32::from(byte) - 128).sum();
            f16::from_f32(size * sum as f32 / 148.0 + mean * (i % 5) as f32)
        };
        let mut row: Vec<f16> = (0..WIDTH).map(value).collect();
        if is_odd && self.choose.below(8) == 0 {
            for _ in 0..=self.choose.below(3) {
                row[self.choose.below(WIDTH)] = f16::from_bits(ODD[self.choose.below(ODD.len())]);
            }
        }
        row
    }

    fn free_row(&mut self, sequence: usize) -> Option<usize> {
        let (stream, start) = (self.stream_of(sequence) * SLOTS, self.choose.below(SLOTS));
        (0..SLOTS).map(|i| stream + (start + i) % SLOTS).find(|row| !self.tokens.contains_key(row))
    }

    /// Tokens of one or more sequences are written, and their queries attend.
    fn batch(&mut self) {
        let (mut asking, shown) = (Vec::new(), 1 + self.choose.below(24));
        for _ in 0..=self.choose.below(3) {
            let sequence = self.choose.below(SEQUENCES);
            let is_odd = sequence % 2 == 1;
            for _ in 0..=self.choose.below(40) {
                let Some(row) = self.free_row(sequence) else { break };
                let written = [self.row(0.3, is_odd), self.row(0.0, is_odd)];
                self.keys.write(row, &written[0]);
                self.values.write(row, &written[1]);
                let position = self.next[sequence];
                self.next[sequence] += 1;
                asking.push((sequence, position));
                let token = Token { sequences: 1 << sequence, position, written: Some(written), shifts: 0 };
                self.tokens.insert(row, token);
            }
        }
        // Neighbours first, as in a prefill; then every seventh.
        let asking: Vec<_> = asking.iter().chain(asking.iter().step_by(7)).copied().take(shown).collect();
        for stream in 0..self.streams {
            let asking: Vec<_> =
                asking.iter().copied().filter(|(sequence, _)| self.stream_of(*sequence) == stream).collect();
            if !asking.is_empty() {
                self.ask(stream, &asking);
            }
        }
        self.keys.cool();
        self.values.cool();
    }

    fn sees(&self, row: usize, stream: usize, (sequence, position): (usize, usize)) -> bool {
        let token = self.tokens.get(&row).filter(|_| row / SLOTS == stream);
        token.is_some_and(|token| token.sequences >> sequence & 1 == 1 && token.position <= position)
    }

    /// Queries of some tokens, as sequence and position, attend to one head of a stream.
    fn ask(&mut self, stream: usize, asking: &[(usize, usize)]) {
        let slots =
            1 + self.tokens.keys().filter(|row| *row / SLOTS == stream).max().map_or(0, |row| row % SLOTS);
        let rule = QueryRule { scale: 0.125, soft_cap: [None, Some(15.0)][self.choose.below(2)], slots };
        let (head, bias, slope) = (self.choose.below(HEADS), self.choose.below(2), 0.5);
        let masks: Vec<Vec<f16>> = asking
            .iter()
            .map(|&by| {
                let shown = |slot| self.sees(stream * SLOTS + slot, stream, by);
                let mask = |slot: usize| {
                    let distance = f16::from_f32(-((bias * (slot % 5)) as f32));
                    if shown(slot) { distance } else { f16::NEG_INFINITY }
                };
                (0..slots).map(mask).collect()
            })
            .collect();
        let mut queries = Vec::new();
        for (sequence, _) in asking {
            let query = self.row(0.0, *sequence == 3);
            queries.extend(query[..DIM].iter().map(|x| x.to_f32()));
        }
        let sink = (self.choose.below(3) == 0).then_some(0.5);
        let asked: Vec<QueryMask<'_>> = masks.iter().map(|mask| QueryMask { mask, slope, sink }).collect();
        let mut out = vec![f32::NAN; asking.len() * DIM];
        let of = |store| StreamSide {
            stream: SlotStore::stream(store, stream).expect("a stream"),
            format: store.format().expect("rows are divided"),
            head,
        };
        attend(&rule, (of(&self.keys), of(&self.values)), &asked, &queries, &mut out);
        let [keys, values] = [&self.keys, &self.values].map(|store| heads(store, stream, head, slots));
        for ((asked, query), out) in asked.iter().zip(queries.chunks(DIM)).zip(out.chunks(DIM)) {
            self.compared += usize::from(compare(&rule, asked, query, (&keys, &values), out));
        }
        if self.keys.is_learning(stream) {
            (0..HEADS).for_each(|head| self.keys.show((stream, head), &rule, &asked, &queries));
        }
    }

    /// Forgets the tokens of a sequence; the store does not hear of it.
    fn free(&mut self, sequence: usize) {
        self.tokens.retain(|_, token| {
            token.sequences &= !(1 << sequence);
            token.sequences != 0
        });
        self.next[sequence] = 0;
    }

    fn remove(&mut self) {
        let sequence = self.choose.below(SEQUENCES);
        self.free(sequence);
    }

    fn copy(&mut self) {
        let (from, to) = (self.choose.below(SEQUENCES), self.choose.below(SEQUENCES));
        if from == to {
            return;
        }
        self.free(to);
        self.next[to] = self.next[from];
        let (source, target) = (self.stream_of(from), self.stream_of(to));
        if source == target {
            let own = self.tokens.values_mut().filter(|token| token.sequences >> from & 1 == 1);
            own.for_each(|token| token.sequences |= 1 << to);
            return;
        }
        self.keys.copy_stream(source, target);
        self.values.copy_stream(source, target);
        let own: Tokens = self
            .tokens
            .range(source * SLOTS..(source + 1) * SLOTS)
            .map(|(row, token)| {
                (row - source * SLOTS + target * SLOTS, Token { sequences: 1 << to, ..token.clone() })
            })
            .collect();
        self.tokens.extend(own);
    }

    /// The rows of one sequence are read and restored as those of another.
    fn restore(&mut self) {
        let (from, to) = (self.choose.below(SEQUENCES), self.choose.below(SEQUENCES));
        if from == to {
            return;
        }
        let own = self.tokens.iter().filter(|(_, token)| token.sequences >> from & 1 == 1);
        let own: Vec<(usize, usize)> = own.map(|(row, token)| (*row, token.position)).collect();
        let read = |store: &SlotStore, row| {
            let mut values = vec![f16::ZERO; WIDTH];
            store.read(row, &mut values);
            values
        };
        let saved: Vec<_> =
            own.iter().map(|&(row, at)| (at, [read(&self.keys, row), read(&self.values, row)])).collect();
        self.free(to);
        self.next[to] = self.next[from];
        for (position, mut values) in saved {
            let Some(row) = self.free_row(to) else { break };
            if to % 2 == 1 && self.choose.below(16) == 0 {
                let (side, at) = (self.choose.below(2), self.choose.below(WIDTH));
                values[side][at] = f16::from_bits(ODD[self.choose.below(ODD.len())]);
            }
            self.tokens.insert(row, Token { sequences: 1 << to, position, written: None, shifts: 0 });
            for (store, values) in [&mut self.keys, &mut self.values].into_iter().zip(&values) {
                store.restore(&[row], &[row % SLOTS], values);
            }
        }
    }

    /// Turns the keys of sequences by shifts of positions, those of later tokens further than the others.
    fn shift(&mut self) {
        for _ in 0..=self.choose.below(4) {
            let (sequence, by) = (self.choose.below(SEQUENCES), self.choose.below(201) as i32 - 100);
            let (from, more) = (self.choose.below(100), self.choose.below(3) as i32);
            let mut shifts = vec![0; SLOTS * self.streams];
            let own = self.tokens.iter_mut().filter(|(_, token)| token.sequences >> sequence & 1 == 1);
            for (row, token) in own {
                let by = if token.position < from { by } else { by + more };
                shifts[*row] = by;
                token.shifts += usize::from(by != 0);
                let key = token.written.as_mut().map(|[key, _]| key).filter(|_| by != 0);
                let is_finite = key.is_none_or(|key| turn(&self.rope, by, key));
                token.written = token.written.take().filter(|_| is_finite);
            }
            rotate(&mut self.keys, &self.rope, &shifts);
        }
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.values.clear();
        self.tokens.clear();
        self.next = [0; SEQUENCES];
    }

    /// Rows come back as they were written, or nearly. A finite row comes back finite.
    fn check_rows(&mut self) {
        let [keys, values] = [&self.keys, &self.values].map(|store| {
            let mut rows = vec![f16::ZERO; SLOTS * self.streams * WIDTH];
            store.read(0, &mut rows);
            rows
        });
        for (row, token) in &self.tokens {
            let Some(written) = &token.written else { continue };
            // Exact rows and the truth are rounded at each shift.
            let errors = [self.errors[0] + 1e-3 * token.shifts as f32, self.errors[1]];
            for ((held, written), most) in [&keys, &values].into_iter().zip(written).zip(errors) {
                let held = &held[row * WIDTH..][..WIDTH];
                if !written.iter().all(|x| x.is_finite()) {
                    let bits = |row: &[f16]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(held), bits(written), "row {row} is kept as it is");
                    continue;
                }
                assert!(held.iter().all(|x| x.is_finite()), "row {row} was finite");
                if written.iter().all(|x| x.to_f32().abs() < LARGE) {
                    let pairs = || held.iter().zip(written).map(|(a, b)| (a.to_f32(), b.to_f32()));
                    let error: f32 = pairs().map(|(a, b)| (a - b).powi(2)).sum();
                    let energy: f32 = pairs().map(|(_, b)| b * b).sum();
                    assert!(error <= most * most * energy, "row {row}: {error} of {energy}");
                }
            }
        }
    }
}

/// Rows of one head from the first slot of a stream on, `[slots, dim]`.
fn heads(store: &SlotStore, stream: usize, head: usize, slots: usize) -> Vec<f32> {
    let mut rows = vec![f16::ZERO; slots * WIDTH];
    store.read(stream * SLOTS, &mut rows);
    rows.chunks(WIDTH).flat_map(|row| &row[head * DIM..(head + 1) * DIM]).map(|x| x.to_f32()).collect()
}

/// Compares an output with attention in f64 over the rows that the query sees. False if these rows or the
/// query are not finite, where any output is right.
fn compare(
    rule: &QueryRule,
    asked: &QueryMask<'_>,
    query: &[f32],
    (keys, values): (&[f32], &[f32]),
    out: &[f32],
) -> bool {
    let seen: Vec<usize> = (0..rule.slots).filter(|slot| asked.mask[*slot].is_finite()).collect();
    let of = |rows: &[f32], slot: usize| rows[slot * DIM..(slot + 1) * DIM].to_vec();
    let rows = || seen.iter().flat_map(|&slot| [of(keys, slot), of(values, slot)]).flatten();
    let largest = rows()
        .chain(query.iter().copied())
        .fold(0.0, |most: f32, x| if x.is_nan() { x } else { most.max(x.abs()) });
    if !(rows().all(f32::is_finite) && query.iter().all(|x| x.is_finite())) {
        return false;
    }
    assert!(out.iter().all(|x| x.is_finite()), "what the query sees is finite: {out:?}");
    if largest >= LARGE {
        return false;
    }
    let logit = |&slot: &usize| {
        let key = of(keys, slot);
        let dot: f64 = key.iter().zip(query).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum();
        let logit = dot * f64::from(rule.scale);
        let logit = rule.soft_cap.map(f64::from).map_or(logit, |cap| cap * (logit / cap).tanh());
        logit + f64::from(asked.slope) * asked.mask[slot].to_f64()
    };
    let logits: Vec<f64> = seen.iter().map(logit).collect();
    let sink = asked.sink.map_or(f64::NEG_INFINITY, f64::from);
    let most = logits.iter().copied().fold(sink, f64::max);
    let weights: Vec<f64> = logits.iter().map(|logit| (logit - most).exp()).collect();
    let sum = weights.iter().sum::<f64>() + (sink - most).exp();
    let mut want = vec![0.0; DIM];
    for (slot, weight) in seen.iter().zip(&weights).filter(|_| !seen.is_empty()) {
        let values = of(values, *slot);
        want.iter_mut().zip(values).for_each(|(want, x)| *want += weight / sum * f64::from(x));
    }
    let error: f64 = out.iter().zip(&want).map(|(o, w)| (f64::from(*o) - w).powi(2)).sum();
    let error = (error / DIM as f64).sqrt();
    // Bytes of queries and weights give the most of it. Values are about `largest` / 4.
    assert!(error <= 0.02 * f64::from(largest.max(1.0)), "{error} of {largest}");
    true
}

/// A RoPE of all or a part of a head, of either order of pairs, and one of whose pairs turn slower.
fn rope(choose: &mut impl Choose) -> Shift {
    let dims = [DIM, DIM / 2, DIM / 4 + 2][choose.below(3)];
    let first = [0, DIM - dims][choose.below(2)];
    let divisors = [vec![], (0..dims / 2).map(|i| 1.0 + (i % 3) as f32).collect()][choose.below(2)].clone();
    Shift { first, dims, halves: choose.below(2) == 0, divisors, ..Shift::plain(DIM) }
}

/// Turns the keys of a row in f64. False if they are not finite.
fn turn(rope: &Shift, by: i32, row: &mut [f16]) -> bool {
    for head in row.chunks_mut(DIM) {
        let x = &mut head[rope.first..];
        for pair in 0..rope.dims / 2 {
            let (a, b) = if rope.halves { (pair, pair + rope.dims / 2) } else { (2 * pair, 2 * pair + 1) };
            let angle = f64::from(by) * f64::from(rope.base).powf(-2.0 * pair as f64 / rope.dims as f64);
            let (sin, cos) = (angle / f64::from(rope.divisors.get(pair).copied().unwrap_or(1.0))).sin_cos();
            let (first, second) = (x[a].to_f64(), x[b].to_f64());
            x[a] = f16::from_f64(first * cos - second * sin);
            x[b] = f16::from_f64(first * sin + second * cos);
        }
    }
    row.iter().all(|x| x.is_finite())
}
