//! `keep_rows` and `attend_merge_exact`: exact tokens, whose keys and values lie as the model computed them.
//!
//! An engine holds them next to the codes, in rows of the model's type that are not rotated. `keep_rows` copies
//! new ones there, in the launch that encodes. `attend_merge_exact` is [`crate::merge`] with two more parts of
//! each query head: the exact tokens that its row sees, and a learned sink.
//!
//! The warp that merges also attends to these tokens, because they are few. A separate kernel would start
//! later, and write one more part. A thread has neighbours of each row, and the warp computes the logits of
//! [`RUN`] tokens together, so that their loads and sums do not wait for each other.

use crate::args::{AttendMergeExact, KeepRows};
use crate::attend::LOWEST;
use crate::decode::store_elements;
use crate::encode::{element, load_element, load_row, rows_of};
use crate::merge::{Parts, in_order, load_wide, neighbour};
use crate::threads::{Threads, divide, kv_head_of, uniform};
use crate::warp::Lane;
use tqkv_core::unstable::machine::Lanes;

/// Tokens whose logits are computed together.
const RUN: usize = 8;

/// Copies vector `warp` of `tokens * num_kv_heads` to its place, if it has one.
#[inline(always)]
pub fn keep_rows<T: Threads, const G: usize>(warp: u32, args: KeepRows<T::Memory>) {
    let KeepRows { token_stride, kind, num_kv_heads, .. } = args;
    if warp >= args.tokens * num_kv_heads {
        return;
    }
    let (token, head) = divide(warp, num_kv_heads);
    let (place, high) = (T::read(args.places, 8 * token), T::read(args.places, 8 * token + 4));
    if high != 0 || place >= args.held {
        return;
    }
    let y = load_row::<T, G>(rows_of::<T>(args.rows, token, token_stride, kind), head, kind);
    let row = u64::from(head) * u64::from(args.head_places) + u64::from(place);
    let out = T::at(args.pool, row * u64::from(32 * G as u32 * element::bytes(kind)));
    for (g, v) in y.iter().enumerate() {
        store_elements::<T>(out, kind, 32 * g as u32, v.0);
    }
}

/// Where the exact tokens of a row are.
#[derive(Clone, Copy)]
struct Columns<T: Threads> {
    /// The places of the row.
    places: T::Memory,
    count: u32,
    /// Places that may hold a token.
    held: u32,
}

impl<T: Threads> Columns<T> {
    /// The places of 32 columns from `first` on, and a word whose bit i is set if column i has a token. The
    /// place of a column without one is 0.
    #[inline(always)]
    fn load(self, first: u32) -> (T::Of<u32>, u32) {
        let column = T::map(T::lane(), |lane| first + lane);
        let at = T::map(column, |column| 8 * u32::min(column, self.count - 1));
        let place = T::zip(column, T::load::<2>(self.places, at), |column, [place, high]| {
            let is_held = column < self.count && high == 0 && place < self.held;
            (if is_held { place } else { 0 }, is_held)
        });
        (T::map(place, |(place, _)| place), T::ballot(T::map(place, |(_, is_held)| is_held)))
    }
}

/// Keys and values of a KV head.
#[derive(Clone, Copy)]
struct HeadRows<T: Threads> {
    keys: T::Memory,
    values: T::Memory,
    kind: u32,
}

impl<T: Threads> HeadRows<T> {
    /// A row of keys or of values.
    #[inline(always)]
    fn row<const G: usize>(self, side: T::Memory, place: u32) -> [T::Of<f32>; G] {
        let bytes = 32 * G as u32 * element::bytes(self.kind);
        load_wide::<T, G>(T::at(side, u64::from(place) * u64::from(bytes)), 0, self.kind)
    }
}

/// A running softmax. Each thread has neighbours of the sum of values, as [`load_wide`] gives them.
struct Softmax<T: Threads, const G: usize> {
    max: f32,
    sum: f32,
    acc: [T::Of<f32>; G],
}

impl<T: Threads, const G: usize> Softmax<T, G> {
    /// Attends to all exact tokens of a row.
    #[inline(always)]
    fn over(query: &[T::Of<f32>; G], rows: HeadRows<T>, columns: Columns<T>) -> Self {
        let mut all = Self { max: LOWEST, sum: 0.0, acc: [T::splat(0.0); G] };
        let mut first = 0;
        while first < columns.count {
            let (places, seen) = columns.load(first);
            let mut run = 0;
            while run < 32 {
                if seen >> run & ((1 << RUN) - 1) != 0 {
                    all.add(query, rows, places, seen, run);
                }
                run += RUN as u32;
            }
            first += 32;
        }
        all
    }

    /// Attends to the tokens of columns `run ..` of these places that are `seen`.
    #[inline(always)]
    fn add(&mut self, query: &[T::Of<f32>; G], rows: HeadRows<T>, places: T::Of<u32>, seen: u32, run: u32) {
        let is_seen = |i: usize| seen >> (run + i as u32) & 1 != 0;
        let (mut logits, mut values) = ([LOWEST; RUN], [[T::splat(0.0); G]; RUN]);
        unroll32!(I => {
            if I < RUN {
                let place = uniform::<T>(T::shuffle(places, T::splat(run + I as u32)));
                let logit = dot::<T, G>(query, &rows.row(rows.keys, place));
                logits[I % RUN] = if is_seen(I) { logit } else { LOWEST };
                values[I % RUN] = rows.row(rows.values, place);
            }
        });
        let old = self.max;
        self.max = logits.iter().fold(old, |max, &logit| f32::max(max, logit));
        let factor = T::exp2(old - self.max);
        self.sum *= factor;
        unroll32!(I => { if I < G { self.acc[I % G] = T::map(self.acc[I % G], |v| v * factor); } });
        unroll32!(I => {
            if I < RUN {
                let is_seen = is_seen(I);
                let weight = if is_seen { T::exp2(logits[I % RUN] - self.max) } else { 0.0 };
                self.sum += weight;
                unroll32!(J => {
                    if J < G {
                        // Memory that holds no token may hold NaN.
                        let acc = &mut self.acc[J % G];
                        *acc = T::zip(*acc, values[I % RUN][J % G], |sum, value| {
                            T::mul_add(weight, if is_seen { value } else { 0.0 }, sum)
                        });
                    }
                });
            }
        });
    }
}

/// The dot product of two rows, in all threads.
#[inline(always)]
fn dot<T: Threads, const G: usize>(a: &[T::Of<f32>; G], b: &[T::Of<f32>; G]) -> f32 {
    let mut sum = T::splat(0.0);
    unroll32!(I => {
        if I < G {
            let pair = T::zip(a[I % G], b[I % G], |a, b| (a, b));
            sum = T::zip(pair, sum, |(a, b), sum| T::mul_add(a, b, sum));
        }
    });
    Lane::<T>(sum).sum()
}

/// The query of a head times the factor of logits. It may begin at any element, so it is not read in wide loads.
#[inline(always)]
fn query<T: Threads, const G: usize>(
    args: &AttendMergeExact<T::Memory>,
    row: u32,
    head: u32,
) -> [T::Of<f32>; G] {
    let rows = rows_of::<T>(args.queries, row, args.token_stride, args.query_kind);
    let mut query = [T::splat(0.0); G];
    unroll32!(I => {
        if I < G {
            let at = |size| T::map(T::lane(), |lane| size * (32 * G as u32 * head + neighbour::<G>(I, lane)));
            let value = load_element::<T>(rows, args.query_kind, at);
            query[I % G] = T::map(value, |value| value * args.factor);
        }
    });
    query
}

/// Attends to the exact tokens of a query head.
#[inline(always)]
fn exact<T: Threads, const G: usize>(
    args: &AttendMergeExact<T::Memory>,
    row: u32,
    head: u32,
    kind: u32,
) -> Softmax<T, G> {
    let first = u64::from(kv_head_of(head, args.heads, args.num_kv_heads)) * u64::from(args.head_places);
    let of_head = |side| T::at(side, first * u64::from(32 * G as u32 * element::bytes(kind)));
    let rows = HeadRows { keys: of_head(args.keys), values: of_head(args.values), kind };
    let places = T::at(args.places, u64::from(row) * u64::from(8 * args.columns));
    let columns = Columns { places, count: args.columns, held: args.held };
    Softmax::over(&query::<T, G>(args, row, head), rows, columns)
}

/// Merges the parts of query head `warp` of `count` with what it sees exactly and with its learned sink.
#[inline(always)]
pub fn attend_merge_exact<T: Threads, const G: usize>(warp: u32, args: AttendMergeExact<T::Memory>) {
    if warp >= args.count {
        return;
    }
    let (row, head) = divide(warp, args.heads);
    // A choice of the type per load would let each wait for the one before it.
    let exact = match args.exact_kind {
        element::F32 => exact::<T, G>(&args, row, head, element::F32),
        element::F16 => exact::<T, G>(&args, row, head, element::F16),
        _ => exact::<T, G>(&args, row, head, element::BF16),
    };
    let parts = Parts::<T>::of::<G>(args.partials, args.first_part, args.heads, warp);
    let (max_of_codes, sum_of_codes) = parts.softmax();
    let mut sink = LOWEST;
    if args.has_sinks != 0 {
        let logit = load_element::<T>(args.sinks, args.sink_kind, |size| T::splat(size * head));
        sink = T::uniform(logit) * core::f32::consts::LOG2_E;
    }
    let max = f32::max(f32::max(max_of_codes, exact.max), sink);
    let (codes, rows) = (T::exp2(max_of_codes - max), T::exp2(exact.max - max));
    let of_sink = if args.has_sinks != 0 { T::exp2(sink - max) } else { 0.0 };
    let sum = sum_of_codes * codes + exact.sum * rows + of_sink;
    // The sum is 0 without tokens, and NaN for a query that is not finite.
    let factor = if sum > 0.0 { 1.0 / sum } else { 0.0 * sum };
    let of_codes = parts.unrotated::<G>(args.signs, max_of_codes);
    let of_exact = in_order::<T, G>(exact.acc.map(Lane));
    let codes = Lane(T::splat(codes * factor * (1.0 / (32 * G) as f32)));
    let rows = Lane(T::splat(rows * factor));
    let out = T::at(args.out, u64::from(warp) * u64::from(32 * G as u32 * element::bytes(args.kind)));
    for (g, (&a, &b)) in of_codes.iter().zip(&of_exact).enumerate() {
        store_elements::<T>(out, args.kind, 32 * g as u32, (a * codes + b * rows).0);
    }
}
