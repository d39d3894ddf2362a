//! Logits on tensor cores are exact integers: sums over the same levels that the CPU's kernels multiply.
//!
//! The query differs: the CPU rounds it to 8 bits per 32 coordinates, and a GPU rounds it to 16 bits per
//! vector. So this file repeats the definition in integers, with the levels from the portable codec's dot
//! product.

use crate::attention::{Side, list_of, with_stack};
use crate::scene::Scene;
use crate::warp::{Buffer, Emulated};
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_gpu_kernels::args::Attend;
use tqkv_gpu_kernels::attend::{PARTIAL_HEADER, Share};
use tqkv_gpu_kernels::codecs::HEAD_DIMS;
use tqkv_gpu_kernels::{page, tensor, with_groups};
use tqkv_tests::inputs::Gaussian;
use tqkv_tests::scope;

/// Query heads per KV head.
const GROUP: u32 = 4;

/// The integer of a query's largest coordinate.
const LARGEST: f32 = 32_639.0;

/// Levels of a block as whole numbers. They are dot products of the portable codec with one coordinate at a
/// time, divided by the value of a level of 1.
fn levels(codec: &AnyCodec, block: &[u8]) -> Vec<i64> {
    let scale = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
    let one = |i: usize| {
        let (mut query, mut score) = (vec![0.0; codec.dim()], [0.0]);
        query[i] = 1.0;
        codec.scores(&query, block, &mut score);
        let level = score[0] / (scale * codec.unit());
        assert!(
            (level - level.round()).abs() < 1e-3,
            "{} {i}: {level} is no whole number",
            codec.id().name()
        );
        level.round() as i64
    };
    (0..codec.dim()).map(one).collect()
}

/// The logit of a query by integers.
fn logit(query: &[f32], levels: &[i64], scale: f32, unit: f32) -> f32 {
    let largest = query.iter().fold(0.0, |m: f32, v| m.max(v.abs()));
    let steps = LARGEST / largest;
    let integer = |v: f32| (v * steps).round_ties_even() as i64;
    let dot: i64 = query.iter().zip(levels).map(|(v, level)| integer(*v) * level).sum();
    let dot = i32::try_from(dot).expect("sums are 32 bits");
    dot as f32 * (scale * (largest / LARGEST * unit))
}

/// The largest logits of sequences of one token, which are the only logits.
fn maxima(scene: &Scene, dim: usize, queries: &[f32], keys: &Side, values: &Side) -> Vec<f32> {
    let count = scene.lengths.len() as u32 * GROUP;
    let stride = PARTIAL_HEADER as usize + dim;
    let (partials, queries) = (Buffer::garbage(4 * count as usize * stride), Buffer::from_f32(queries));
    let (page_table, lengths) = (Buffer::from_u32(&scene.page_table), Buffer::from_u32(&scene.lengths));
    let sequence_of = Buffer::from_u32(&(0..scene.lengths.len() as u32).collect::<Vec<_>>());
    let (list, _) = list_of(&scene.lengths.iter().map(|&end| 0..end).collect::<Vec<_>>(), 1);
    let list = Buffer::from_u32(&list);
    let args = Attend {
        parts: scene.lengths.len() as u32,
        list: list.place(),
        queries: queries.place(),
        num_kv_heads: 1,
        group: GROUP,
        keys: keys.pool.place(),
        key_stride: keys.stride(scene, dim),
        key_format: keys.format,
        key_levels: keys.levels.place(),
        values: values.pool.place(),
        value_stride: values.stride(scene, dim),
        value_format: values.format,
        value_levels: values.levels.place(),
        ahead: 2,
        last_page: scene.last_page(),
        page_table: page_table.place(),
        max_pages: scene.max_pages,
        last_entry: scene.last_page(),
        shift: 0,
        sequence_of: sequence_of.place(),
        lengths: lengths.place(),
        partials: partials.place(),
    };
    for part in 0..scene.lengths.len() as u32 {
        let share = Share { part, chunk: 0, kv_head: 0 };
        with_groups!(dim, G => if page::is_trellis(keys.format) {
            tensor::attend::<Emulated<'_>, G, true, { tensor::slice(G, true) }, 1>(share, args);
        } else {
            tensor::attend::<Emulated<'_>, G, false, { tensor::slice(G, false) }, 1>(share, args);
        });
    }
    partials.floats().chunks_exact(stride).map(|part| part[0]).collect()
}

of_each_codec!(logits_are_the_integer_sums_of_the_levels);

fn logits_are_the_integer_sums_of_the_levels(id: CodecId) {
    with_stack(move || {
        for dim in scope::dims(&HEAD_DIMS) {
            let scene = Scene::new(&[1; 4], 1);
            let codec = AnyCodec::new(id, dim, Options::DEFAULT).unwrap();
            let mut gaussian = Gaussian::new(dim as u64);
            let (rows, queries) = (gaussian.vector(4 * dim), gaussian.vector(16 * dim));
            let values = AnyCodec::new(CodecId::S2, dim, Options::DEFAULT).unwrap();
            let [keys, values] = [&codec, &values].map(|codec| Side::encoded(&scene, codec, &rows));
            let got = maxima(&scene, dim, &queries, &keys, &values);
            let mut block = vec![0; codec.block_bytes()];
            for (i, (query, got)) in queries.chunks_exact(dim).zip(got).enumerate() {
                codec.encode(&rows[i / GROUP as usize * dim..][..dim], &mut block).unwrap();
                let scale = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
                let want = logit(query, &levels(&codec, &block), scale, codec.unit());
                assert_eq!(got.to_bits(), want.to_bits(), "{} {dim}: {got} {want}", id.name());
            }
        }
    });
}
