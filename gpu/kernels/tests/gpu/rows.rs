//! Exact rows: what `keep_rows` copies, `attend_merge_exact` finds, in every type and at every head dim.

use crate::scene::signs;
use crate::warp::{Buffer, Emulated};
use half::{bf16, f16};
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_gpu_kernels::args::{AttendMergeExact, KeepRows};
use tqkv_gpu_kernels::attend::PARTIAL_HEADER;
use tqkv_gpu_kernels::codecs::HEAD_DIMS;
use tqkv_gpu_kernels::encode::element;
use tqkv_gpu_kernels::exact::{attend_merge_exact, keep_rows};
use tqkv_gpu_kernels::with_groups;
use tqkv_tests::inputs::Gaussian;
use tqkv_tests::oracle;

/// KV heads, query heads, places of a head, those of them that are used, and tokens.
const KV_HEADS: usize = 2;
const HEADS: usize = 4;
const PLACES: usize = 44;
const HELD: u32 = 42;
const TOKENS: usize = 40;

/// The bytes of values of a type, and the values that these bytes have.
fn typed(kind: u32, values: &[f32]) -> (Buffer, Vec<f32>) {
    let halves = |bits: Vec<u16>| bits.into_iter().flat_map(u16::to_le_bytes).collect::<Vec<_>>();
    match kind {
        element::F32 => (Buffer::from_f32(values), values.to_vec()),
        element::F16 => (
            Buffer::from_bytes(&halves(values.iter().map(|&v| f16::from_f32(v).to_bits()).collect())),
            values.iter().map(|&v| f16::from_f32(v).to_f32()).collect(),
        ),
        _ => (
            Buffer::from_bytes(&halves(values.iter().map(|&v| bf16::from_f32(v).to_bits()).collect())),
            values.iter().map(|&v| bf16::from_f32(v).to_f32()).collect(),
        ),
    }
}

/// Places in i64. Those that are none are on both sides of the ones that are used.
fn places(of: impl Iterator<Item = Option<u32>>) -> Buffer {
    let none = [[HELD, 0], [u32::MAX; 2], [3, 1], [PLACES as u32, 0]];
    let words = of.enumerate().flat_map(|(i, place)| place.map_or(none[i % 4], |place| [place, 0]));
    Buffer::from_u32(&words.collect::<Vec<_>>())
}

/// The place of a token, if it is kept.
fn place(token: usize) -> Option<u32> {
    (token % 5 != 3).then(|| HELD - 1 - token as u32)
}

/// Keeps rows whose tokens are `stride` values apart, and returns the pool.
fn kept(dim: usize, kind: u32, rows: &Buffer, stride: usize) -> Buffer {
    let pool = Buffer::garbage(KV_HEADS * PLACES * dim * element::bytes(kind) as usize);
    let places = places((0..TOKENS).map(place));
    let args = KeepRows {
        rows: rows.place(),
        token_stride: stride as u32,
        kind,
        tokens: TOKENS as u32,
        num_kv_heads: KV_HEADS as u32,
        places: places.place(),
        pool: pool.place(),
        head_places: PLACES as u32,
        held: HELD,
    };
    for warp in 0..(TOKENS * KV_HEADS) as u32 + 3 {
        with_groups!(dim, G => keep_rows::<Emulated<'_>, G>(warp, args));
    }
    pool
}

/// Attends with two rows, of which the second sees every other token, and codes of no token.
fn attended(dim: usize, kind: u32, pools: [&Buffer; 2], queries: &Buffer, factor: f32) -> Vec<f32> {
    let codec = AnyCodec::new(CodecId::S4, dim, Options::DEFAULT).unwrap();
    let (signs, out) = (signs(&codec), Buffer::garbage(2 * HEADS * dim * 4));
    let partials = Buffer::from_f32(&vec![0.0; 2 * HEADS * (PARTIAL_HEADER as usize + dim)]);
    let seen = |row: usize, token: usize| if token.is_multiple_of(row + 1) { place(token) } else { None };
    let places = places((0..2).flat_map(|row| (0..TOKENS).map(move |token| seen(row, token))));
    let (keys, values) = (pools[0].place(), pools[1].place());
    let first_part = Buffer::from_u32(&[0, 1, 2]);
    let args = AttendMergeExact {
        count: 2 * HEADS as u32,
        heads: HEADS as u32,
        partials: partials.place(),
        first_part: first_part.place(),
        signs: signs.place(),
        queries: queries.place(),
        token_stride: (HEADS * dim) as u32,
        query_kind: kind,
        factor,
        num_kv_heads: KV_HEADS as u32,
        keys,
        values,
        exact_kind: kind,
        head_places: PLACES as u32,
        held: HELD,
        places: places.place(),
        columns: TOKENS as u32,
        has_sinks: 0,
        sinks: signs.place(),
        sink_kind: element::F32,
        out: out.place(),
        kind: element::F32,
    };
    for warp in 0..=2 * HEADS as u32 {
        with_groups!(dim, G => attend_merge_exact::<Emulated<'_>, G>(warp, args));
    }
    out.floats()
}

fn check(dim: usize, kind: u32) {
    let (stride, mut gaussian) = (KV_HEADS * dim + 6, Gaussian::new(dim as u64));
    let sides = [(); 2].map(|()| typed(kind, &gaussian.vector(TOKENS * stride)));
    let (queries, query_values) = typed(kind, &gaussian.vector(2 * HEADS * dim));
    let pools = sides.each_ref().map(|(rows, _)| kept(dim, kind, rows, stride));
    let factor = std::f32::consts::LOG2_E / (dim as f32).sqrt();
    let got = attended(dim, kind, pools.each_ref(), &queries, factor);
    for (head, (got, query)) in got.chunks_exact(dim).zip(query_values.chunks_exact(dim)).enumerate() {
        let (row, kv_head) = (head / HEADS, head % HEADS * KV_HEADS / HEADS);
        let tokens = || (0..TOKENS).filter(|token| token.is_multiple_of(row + 1) && place(*token).is_some());
        let rows = |side: usize| {
            let of = |token: usize| sides[side].1[token * stride + kv_head * dim..][..dim].to_vec();
            tokens().map(of).collect::<Vec<_>>()
        };
        for (got, want) in got.iter().zip(oracle::attention(query, &rows(0), &rows(1))) {
            assert!((f64::from(*got) - want).abs() < 1e-5, "{dim} {kind} {head}: {got} {want}");
        }
    }
}

#[test]
fn rows_that_are_kept_are_attended_as_they_were_given() {
    for dim in HEAD_DIMS {
        for kind in [element::F32, element::F16, element::BF16] {
            check(dim, kind);
        }
    }
}

#[test]
fn only_the_places_that_were_named_are_written() {
    let (dim, kind) = (64, element::F16);
    let (rows, _) = typed(kind, &Gaussian::new(3).vector(TOKENS * KV_HEADS * dim));
    let pool = kept(dim, kind, &rows, KV_HEADS * dim).bytes();
    for (at, row) in pool.chunks_exact(2 * dim).enumerate() {
        let is_kept = (0..TOKENS).any(|token| place(token) == Some((at % PLACES) as u32));
        assert_eq!(row.iter().any(|&byte| byte != 0xff), is_kept, "{at}");
    }
}
