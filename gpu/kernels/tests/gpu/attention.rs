//! Attention on a warp against attention in f64 over the decoded cache.

use crate::scene::{Scene, rotate, signs};
use crate::warp::{Buffer, Emulated};
use half::f16;
use std::ops::Range;
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_gpu_kernels::args::{Attend, AttendMerge};
use tqkv_gpu_kernels::attend::{self, PARTIAL_HEADER, Share};
use tqkv_gpu_kernels::codecs::{CODECS, HEAD_DIMS};
use tqkv_gpu_kernels::merge::attend_merge;
use tqkv_gpu_kernels::rows::{Codes, Halves};
use tqkv_gpu_kernels::tables::tables;
use tqkv_gpu_kernels::{encode, page, tensor, with_groups};
use tqkv_tests::inputs::Gaussian;
use tqkv_tests::scope;

/// Keys or values: their pool, their codec (none for f16), and the decoded pool,
/// `[sequence][position][head][dim]`.
pub(crate) struct Side {
    pub(crate) pool: Buffer,
    pub(crate) format: u32,
    pub(crate) levels: Buffer,
    decoded: Vec<Vec<Vec<f32>>>,
}

impl Side {
    pub(crate) fn encoded(scene: &Scene, codec: &AnyCodec, rows: &[f32]) -> Self {
        let pool = scene.fill(codec, rows);
        let decoded = (0..scene.lengths.len() as u32)
            .map(|sequence| {
                let all = scene.decode(codec, &pool, sequence, encode::element::F32).floats();
                all.chunks_exact(codec.dim()).map(<[f32]>::to_vec).collect()
            })
            .collect();
        Self {
            pool,
            format: page::format(codec.id().layout()),
            levels: Buffer::from_u32(&tables(codec)),
            decoded,
        }
    }

    /// Bytes from a page to the next.
    pub(crate) fn stride(&self, scene: &Scene, dim: usize) -> u32 {
        scene.stride(dim, page::bits(self.format))
    }

    fn half(scene: &Scene, dim: usize, rows: &[f32]) -> Self {
        let mut pool = scene.pool(dim, page::HALF_BITS).bytes();
        let mut decoded = vec![Vec::new(); scene.lengths.len()];
        for (i, row) in rows.chunks_exact(dim).enumerate() {
            let (token, head) = (i / scene.num_kv_heads as usize, i as u32 % scene.num_kv_heads);
            let (sequence, position) = (scene.sequence_of[token], scene.position_of[token]);
            let (home, slot) = scene.home(sequence, position, head, dim, page::HALF_BITS);
            let halves: Vec<f16> = row.iter().map(|&v| f16::from_f32(v)).collect();
            let at = home + slot as usize * 2 * dim;
            for (byte, value) in
                pool[at..at + 2 * dim].iter_mut().zip(halves.iter().flat_map(|v| v.to_le_bytes()))
            {
                *byte = value;
            }
            decoded[sequence as usize].push(halves.iter().map(|v| v.to_f32()).collect());
        }
        let levels = Buffer::from_f32(&[f32::NAN; 32]);
        Self { pool: Buffer::from_bytes(&pool), format: page::HALF_BITS, levels, decoded }
    }
}

/// A kernel. The number is its query heads per warp.
#[derive(Clone, Copy, Debug)]
enum Kernel {
    Codes,
    Halves(u32),
    /// True if a side may have a trellis code.
    Tensor(bool),
    /// Eight heads, up to D = 128.
    TensorOfEight,
}

impl Kernel {
    fn heads(self) -> u32 {
        match self {
            Self::Codes => 1,
            Self::Halves(heads) => heads,
            Self::Tensor(_) => tensor::HEADS,
            Self::TensorOfEight => 2 * tensor::HEADS,
        }
    }
}

/// The tensor-core kernel for these sides.
fn tensor_of(keys: &Side, values: &Side, group: u32, dim: usize) -> Kernel {
    match attend::kernel([keys.format, values.format], group, dim) {
        ("attend_tensor", 8) => Kernel::TensorOfEight,
        _ => Kernel::Tensor([keys, values].iter().any(|side| page::is_trellis(side.format))),
    }
}

/// The list of parts of rows that see these tokens, each in `parts` parts; then the first part of each row and the
/// number of parts. Behind the parts of a row is an entry without work.
pub(crate) fn list_of(seen: &[Range<u32>], parts: u32) -> (Vec<u32>, Vec<u32>) {
    let (mut list, mut first) = (Vec::new(), vec![0]);
    for (row, seen) in (0..).zip(seen) {
        let (begin, end) = (seen.start / page::SLOTS, seen.end.div_ceil(page::SLOTS));
        let each = (end - begin).div_ceil(parts);
        for part in 0..parts {
            let page = |part: u32| u32::min(begin + part * each, end);
            let token = u32::max(page(part) * page::SLOTS, seen.start);
            list.extend([row, token, page(part + 1)]);
        }
        first.push(list.len() as u32 / 3);
    }
    list.extend([attend::UNUSED; 6]);
    (list, first)
}

/// Runs the rotation, attention in `parts` parts per row, and the merge. Returns the results, and their
/// logarithms of sums of exponentials.
fn run(
    scene: &Scene,
    dim: usize,
    group: u32,
    queries: &[f32],
    keys: &Side,
    values: &Side,
    (kernel, parts): (Kernel, u32),
) -> (Vec<f32>, Vec<f32>) {
    let rotated = keys.format != page::HALF_BITS;
    let codec = AnyCodec::new(CodecId::S4, dim, Options::DEFAULT).unwrap();
    let signs = signs(&codec);
    let scale = if rotated { 1.0 / dim as f32 } else { 1.0 };
    let factor = scale / (dim as f32).sqrt() * std::f32::consts::LOG2_E;
    let queries = rotate(dim, &signs, queries, rotated, factor);
    let count = scene.lengths.len() as u32 * scene.num_kv_heads * group;
    let heads = scene.num_kv_heads * group;
    let page_table = Buffer::from_u32(&scene.page_table);
    // The rows are the sequences in reverse, so that a mix-up of the two shows.
    let sequences: Vec<u32> = (0..scene.lengths.len() as u32).rev().collect();
    let lengths: Vec<u32> = scene.lengths.iter().rev().copied().collect();
    let seen: Vec<_> =
        lengths.iter().zip(scene.starts.iter().rev()).map(|(&end, &start)| start..end).collect();
    let (list, first_part) = list_of(&seen, parts);
    let entries = list.len() as u32 / 3;
    let partials = Buffer::garbage((entries * heads * (PARTIAL_HEADER + dim as u32) * 4) as usize);
    let (list, first_part) = (Buffer::from_u32(&list), Buffer::from_u32(&first_part));
    let (sequence_of, lengths) = (Buffer::from_u32(&sequences), Buffer::from_u32(&lengths));
    let out = Buffer::garbage(4 * count as usize * dim);
    let args = Attend {
        parts: entries,
        list: list.place(),
        queries: queries.place(),
        num_kv_heads: scene.num_kv_heads,
        group,
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
    let chunks = group.div_ceil(kernel.heads());
    for kv_head in 0..scene.num_kv_heads {
        for (chunk, part) in (0..chunks).flat_map(|chunk| (0..entries).map(move |part| (chunk, part))) {
            let share = Share { part, chunk, kv_head };
            with_groups!(dim, G => match kernel {
                Kernel::Codes => attend::attend::<Emulated<'_>, Codes, G, 1>(share, args),
                Kernel::Halves(1) => attend::attend::<Emulated<'_>, Halves, G, 1>(share, args),
                Kernel::Halves(_) => attend::attend::<Emulated<'_>, Halves, G, 2>(share, args),
                Kernel::Tensor(false) => {
                    tensor::attend::<Emulated<'_>, G, false, { tensor::slice(G, false) }, 1>(share, args);
                }
                Kernel::Tensor(true) => {
                    tensor::attend::<Emulated<'_>, G, true, { tensor::slice(G, true) }, 1>(share, args);
                }
                Kernel::TensorOfEight => {
                    tensor::attend::<Emulated<'_>, G, false, { tensor::slice(G, false) }, 2>(share, args);
                }
            });
        }
    }
    let lse = Buffer::garbage(4 * count as usize);
    let args = AttendMerge {
        count,
        heads,
        partials: partials.place(),
        first_part: first_part.place(),
        signs: signs.place(),
        rotated: u32::from(rotated),
        out: out.place(),
        kind: encode::element::F32,
        has_lse: 1,
        lse: lse.place(),
    };
    for warp in 0..=count {
        with_groups!(dim, G => attend_merge::<Emulated<'_>, G>(warp, args));
    }
    (out.floats(), lse.floats())
}

#[test]
fn results_are_rounded_to_the_type_asked_for() {
    let (dim, count, parts) = (64, 5, 3);
    let mut partials = Gaussian::new(9).vector((count * parts) as usize * (PARTIAL_HEADER as usize + dim));
    for part in partials.chunks_exact_mut(PARTIAL_HEADER as usize + dim) {
        part[1] = part[1].abs();
    }
    // One value is NaN, and one is beyond every half.
    (partials[PARTIAL_HEADER as usize], partials[1000]) = (f32::NAN, 1e30);
    let first_part = Buffer::from_u32(&(0..=count).map(|row| row * parts).collect::<Vec<_>>());
    let (partials, signs) =
        (Buffer::from_f32(&partials), signs(&AnyCodec::new(CodecId::S4, dim, Options::DEFAULT).unwrap()));
    let run = |kind| {
        let out = Buffer::garbage((count * encode::element::bytes(kind)) as usize * dim);
        let args = AttendMerge {
            count,
            heads: 1,
            partials: partials.place(),
            first_part: first_part.place(),
            signs: signs.place(),
            rotated: 1,
            out: out.place(),
            kind,
            has_lse: 0,
            lse: signs.place(),
        };
        for warp in 0..=count {
            with_groups!(dim, G => attend_merge::<Emulated<'_>, G>(warp, args));
        }
        out
    };
    let floats = run(encode::element::F32).floats();
    let halves = floats.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect::<Vec<_>>();
    let brains = floats.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect::<Vec<_>>();
    assert!(floats.iter().any(|v| v.is_nan()) && floats.iter().any(|v| *v > 1e20), "the edges are in");
    assert_eq!(run(encode::element::F16).bytes(), halves);
    assert_eq!(run(encode::element::BF16).bytes(), brains);
}

/// Compares every head of every sequence with softmax attention in f64.
fn check(scene: &Scene, dim: usize, group: u32, keys: &Side, values: &Side, shape: (Kernel, u32)) {
    let heads = scene.num_kv_heads * group;
    let queries = Gaussian::new(u64::from(group)).vector(scene.lengths.len() * heads as usize * dim);
    let (out, lse) = run(scene, dim, group, &queries, keys, values, shape);
    for (i, (query, got)) in queries.chunks_exact(dim).zip(out.chunks_exact(dim)).enumerate() {
        let (sequence, head) = (scene.lengths.len() - 1 - i / heads as usize, i % heads as usize);
        let of_head = |side: &Side| -> Vec<Vec<f32>> {
            let kv_head = head / group as usize;
            side.decoded[sequence]
                .iter()
                .skip(kv_head)
                .step_by(scene.num_kv_heads as usize)
                .skip(scene.starts[sequence] as usize)
                .cloned()
                .collect()
        };
        // Tensor cores multiply queries and weights of 16 bits.
        let tolerance =
            if matches!(shape.0, Kernel::Tensor(_) | Kernel::TensorOfEight) { 1.5e-4 } else { 1e-5 };
        let sum = tqkv_tests::oracle::log_sum_exp(query, &of_head(keys));
        let error = (f64::from(lse[i]) - sum).abs();
        assert!(
            f64::from(lse[i]) == sum || error < tolerance,
            "dim {dim}, group {group}, {shape:?}: {}, not {sum}",
            lse[i]
        );
        let want = tqkv_tests::oracle::attention(query, &of_head(keys), &of_head(values));
        let largest = want.iter().fold(0.0, |a: f64, b| a.max(b.abs())).max(1.0);
        for (got, want) in got.iter().zip(want) {
            let error = (f64::from(*got) - want).abs();
            assert!(
                error <= tolerance * largest,
                "dim {dim}, formats {} {}, group {group}, sequence {sequence}, {shape:?}: {error:e}",
                keys.format,
                values.format
            );
        }
    }
}

/// Lengths around every boundary: no token, one token, one step, one page, many pages.
const LENGTHS: [u32; 8] = [0, 1, 7, 16, 63, 64, 65, 330];

/// Returns `few` lengths, or all of them in exhaustive runs.
fn lengths(few: &[u32]) -> &[u32] {
    scope::extent(few, &LENGTHS)
}

/// The rows of `seed`, encoded with `id`.
fn side(scene: &Scene, dim: usize, id: CodecId, seed: u64) -> Side {
    let rows = Gaussian::new(seed).vector((scene.tokens() * scene.num_kv_heads) as usize * dim);
    match id {
        CodecId::F16 => Side::half(scene, dim, &rows),
        id => Side::encoded(scene, &AnyCodec::new(id, dim, Options::DEFAULT).unwrap(), &rows),
    }
}

/// Runs a test on a large stack, because unoptimised bodies keep many copies.
pub(crate) fn with_stack(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(64 << 20).spawn(test).expect("a thread starts");
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Head dims with their indices.
fn shapes() -> impl Iterator<Item = (usize, usize)> {
    scope::dims(&HEAD_DIMS).into_iter().enumerate()
}

of_each_codec!(pairs_with_any_values_attend_as_f64_does);

fn pairs_with_any_values_attend_as_f64_does(key_id: CodecId) {
    with_stack(move || {
        let number = CODECS.iter().position(|&id| id == key_id).expect("a codec with kernels");
        for (shape, dim) in shapes() {
            let scene = Scene::new(lengths(&[0, 1, 16, 65]), 2);
            let key = side(&scene, dim, key_id, 1);
            for (i, value_id) in CODECS.into_iter().enumerate() {
                if scope::is_turn(number + i, shape, HEAD_DIMS.len()) {
                    let value = side(&scene, dim, value_id, 2);
                    check(&scene, dim, 1, &key, &value, (Kernel::Codes, 3));
                    check(&scene, dim, 2, &key, &value, (tensor_of(&key, &value, 2, dim), 3));
                }
            }
        }
    });
}

// One test per pair, so that they run in parallel.
#[test]
fn every_group_size_and_split_of_bytes_and_3_bits_attends_as_f64_does() {
    group_sizes_and_splits(0, [CodecId::I8, CodecId::S3]);
}

#[test]
fn every_group_size_and_split_of_4_and_2_bits_attends_as_f64_does() {
    group_sizes_and_splits(1, [CodecId::S4, CodecId::S2]);
}

#[test]
fn every_group_size_and_split_of_trellis_codes_attends_as_f64_does() {
    group_sizes_and_splits(2, [CodecId::T2, CodecId::T3]);
}

#[test]
fn every_group_size_and_split_of_a_trellis_code_and_4_bits_attends_as_f64_does() {
    group_sizes_and_splits(3, [CodecId::T4, CodecId::S4]);
}

fn group_sizes_and_splits(number: usize, ids: [CodecId; 2]) {
    with_stack(move || {
        // The longest sequence has more parts than pages, and more than one round of the merge takes.
        const PARTS: [u32; 4] = [1, 3, 70, 9];
        for (shape, dim) in shapes() {
            let scene = Scene::new(lengths(&[0, 63, 150]), 2);
            let (keys, values) = (side(&scene, dim, ids[0], 1), side(&scene, dim, ids[1], 2));
            for group in 1..=8 {
                // By default each group size runs with two of the four pairs.
                if scope::is_turn(number + group, 2 * shape, 2 * HEAD_DIMS.len()) {
                    let shape = (tensor_of(&keys, &values, group as u32, dim), PARTS[(group + number) % 4]);
                    check(&scene, dim, group as u32, &keys, &values, shape);
                }
            }
            if scope::is_turn(number, shape, HEAD_DIMS.len()) {
                check(&scene, dim, 3, &keys, &values, (Kernel::Codes, PARTS[number]));
            }
        }
    });
}

#[test]
fn the_f16_baseline_attends_as_f64_does() {
    with_stack(|| {
        use Kernel::Halves;
        for (_, dim) in shapes() {
            let scene = Scene::new(lengths(&[0, 63, 150]), 2);
            let (keys, values) = (side(&scene, dim, CodecId::F16, 1), side(&scene, dim, CodecId::F16, 2));
            for (group, shape) in
                [(1, (Halves(1), 2)), (3, (Halves(2), 3)), (4, (Halves(2), 2)), (4, (Halves(1), 3))]
            {
                check(&scene, dim, group, &keys, &values, shape);
            }
        }
    });
}

#[test]
fn tokens_before_the_first_one_have_no_weight() {
    with_stack(|| {
        use CodecId::{F16, S4, T2};
        let dim = 64;
        let mut scene = Scene::new(&[0, 70, 70, 64, 150, 150, 150, 40], 2);
        scene.starts = vec![0, 3, 69, 63, 64, 129, 40, 39];
        for (id, kernels) in [
            (S4, &[Kernel::Codes, Kernel::Tensor(false), Kernel::TensorOfEight, Kernel::Tensor(true)][..]),
            (T2, &[Kernel::Codes, Kernel::Tensor(true)]),
            (F16, &[Kernel::Halves(1), Kernel::Halves(2)]),
        ] {
            let (keys, values) = (side(&scene, dim, id, 1), side(&scene, dim, id, 2));
            for (i, &kernel) in (1..).zip(kernels) {
                check(&scene, dim, 4, &keys, &values, (kernel, i));
            }
        }
    });
}

#[test]
fn eight_heads_at_once_are_four_heads_to_the_bit() {
    use CodecId::{I8, S2, S3, S4};
    with_stack(|| {
        for (dim, ids, group) in [(64, [S4, S2], 8), (128, [S3, I8], 5), (64, [S4, S4], 11)] {
            let scene = Scene::new(&[0, 3, 130], 2);
            let (keys, values) = (side(&scene, dim, ids[0], 1), side(&scene, dim, ids[1], 2));
            let count = scene.lengths.len() * 2 * group as usize;
            let queries = Gaussian::new(5).vector(count * dim);
            let of = |kernel| run(&scene, dim, group, &queries, &keys, &values, (kernel, 2)).0;
            let (four, eight) = (of(Kernel::Tensor(false)), of(Kernel::TensorOfEight));
            assert!(four.iter().any(|v| *v != 0.0), "{ids:?}");
            assert_eq!(eight, four, "{ids:?}, group {group}");
            check(&scene, dim, group, &keys, &values, (Kernel::TensorOfEight, 2));
        }
    });
}

/// A query with one coordinate that is not finite gives NaN in all its results, and the other heads are as
/// they were. A sequence without tokens still gives zeros.
fn check_not_finite(scene: &Scene, dim: usize, group: u32, keys: &Side, values: &Side, kernel: Kernel) {
    let heads = (scene.num_kv_heads * group) as usize;
    let queries = Gaussian::new(8).vector(scene.lengths.len() * heads * dim);
    let (good, _) = run(scene, dim, group, &queries, keys, values, (kernel, 3));
    for (i, bad) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].into_iter().enumerate() {
        let mut queries = queries.clone();
        let is_bad = |row: usize| row % heads == i % heads;
        for (row, query) in queries.chunks_exact_mut(dim).enumerate().filter(|(row, _)| is_bad(*row)) {
            query[(17 * row + 5) % dim] = bad;
        }
        let (out, _) = run(scene, dim, group, &queries, keys, values, (kernel, 3));
        for (row, (got, good)) in out.chunks_exact(dim).zip(good.chunks_exact(dim)).enumerate() {
            let is_empty = scene.lengths[scene.lengths.len() - 1 - row / heads] == 0;
            let name = format!("{kernel:?}, format {}, row {row}, {bad}: {got:?}", keys.format);
            if is_bad(row) && !is_empty {
                assert!(got.iter().all(|v| v.is_nan()), "{name}");
            } else {
                assert_eq!(got, good, "{name}");
            }
        }
    }
}

#[test]
fn a_query_that_is_not_finite_shows_in_every_kernel() {
    with_stack(|| {
        use CodecId::{F16, S4, T2};
        let dim = 64;
        let scene = Scene::new(&[0, 3, 70], 1);
        for (id, kernels) in [
            (S4, &[Kernel::Codes, Kernel::Tensor(false), Kernel::TensorOfEight, Kernel::Tensor(true)][..]),
            (T2, &[Kernel::Codes, Kernel::Tensor(true)]),
            (F16, &[Kernel::Halves(1), Kernel::Halves(2)]),
        ] {
            let (keys, values) = (side(&scene, dim, id, 1), side(&scene, dim, id, 2));
            for &kernel in kernels {
                check_not_finite(&scene, dim, 3, &keys, &values, kernel);
            }
        }
    });
}

#[test]
fn bytes_and_a_unit_are_the_levels_of_the_portable_codec() {
    for id in CODECS {
        for dim in HEAD_DIMS {
            let codec = AnyCodec::new(id, dim, Options::DEFAULT).unwrap();
            let words = tables(&codec);
            assert_eq!(f32::from_bits(words[8]), codec.unit());
            let Some(book) = codec.codebook() else { continue };
            // The bytes repeat, so that the bits above a code do not count.
            for (i, &level) in (0..32).zip(book.bytes().iter().cycle()) {
                let byte = (words[i / 4] >> (8 * (i % 4))) as i8;
                assert_eq!(byte, level, "{} {dim} code {i}", id.name());
            }
        }
    }
}
