//! Runs the committed PTX instruction by instruction on the CPU, and compares it with the portable codec and
//! with attention in f64.
//!
//! By default each case of attention runs at one head dim. With `TQKV_EXHAUSTIVE=1` it runs at all head dims.

mod alu;
mod eight;
mod machine;
mod parse;
mod races;
mod reads;

use parse::Kernel;
use tqkv_core::{AnyCodec, CodecId, Options};
use tqkv_gpu_kernels::args::{Argument, Attend, AttendMerge, DecodePages, EncodeAppend, RotateQueries};
use tqkv_gpu_kernels::codecs::HEAD_DIMS;
use tqkv_gpu_kernels::encode::element;
use tqkv_gpu_kernels::tables::tables;
use tqkv_gpu_kernels::viterbi::workspace_bytes;
use tqkv_gpu_kernels::{attend, page};
use tqkv_tests::inputs::Gaussian;
use tqkv_tests::{oracle, scope};

/// Vectors that are encoded per scalar codec and head dim in exhaustive runs. The next constant is for
/// trellis codecs.
const SCALAR_VECTORS: usize = 3000;
const TRELLIS_VECTORS: usize = 600;

/// The committed file. It is read at run time, so that a new file does not compile the tests again.
fn text() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/ptx/sm_80.ptx");
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn words(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn floats(values: &[f32]) -> Vec<u8> {
    words(values.iter().map(|value| value.to_bits()))
}

fn read_floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect()
}

fn signs(codec: &AnyCodec) -> Vec<u8> {
    words((0..codec.dim() / 32).map(|g| codec.signs().group(g)))
}

/// One sequence with one KV head in pages numbered backwards.
struct Encoded {
    pool: Vec<u8>,
    page_table: Vec<u8>,
    outcomes: Vec<u8>,
}

fn encode(kernel: &Kernel, codec: &AnyCodec, rows: &[f32]) -> Encoded {
    let tokens = (rows.len() / codec.dim()) as u32;
    let pages = tokens.div_ceil(page::SLOTS);
    let table = words((0..pages).rev());
    let bytes = pages * page::head_bytes(codec.dim() as u32, codec.id().bits());
    let mut buffers = [
        floats(rows),
        signs(codec),
        // Pages are numbered backwards.
        words((0..tokens).flat_map(|i| [(pages - 1 - i / page::SLOTS) * page::SLOTS + i % page::SLOTS, 0])),
        vec![0xff; bytes as usize],
        vec![0xff; (tokens * workspace_bytes(codec.dim() as u32)) as usize],
        vec![0xff; 4 * tokens as usize],
        words([0]),
    ];
    let options = codec.options();
    let arguments = EncodeAppend {
        rows: 0,
        token_stride: codec.dim() as u32,
        kind: element::F32,
        tokens,
        num_kv_heads: 1,
        signs: 1,
        mode: u32::from(options.scale_mode.code()),
        effort: options.effort as u32,
        slots: 2,
        pool: 3,
        stride: page::head_bytes(codec.dim() as u32, codec.id().bits()),
        last_page: pages - 1,
        workspace: 4,
        outcome: 5,
        refused: 6,
    };
    kernel.launch((0..=tokens).map(|warp| (warp, 0, 0)), &arguments.list(), &mut buffers);
    let [.., pool, _, outcomes, refused] = buffers;
    assert_eq!(
        refused != [0; 4],
        outcomes.iter().any(|&byte| byte != 0),
        "one word says if a vector was refused"
    );
    Encoded { pool, page_table: table, outcomes }
}

/// Puts a block into a slot of a page of one head.
fn put_block(pool: &mut [u8], codec: &AnyCodec, page: u32, slot: u32, block: &[u8]) {
    let (dim, bits) = (codec.dim() as u32, codec.id().bits());
    let home = (page * page::head_bytes(dim, bits)) as usize;
    let scale = home + page::scale_offset(dim, bits, slot) as usize;
    let codes = home + (slot * page::row_bytes(dim, bits)) as usize;
    pool[scale..scale + 2].copy_from_slice(&block[..2]);
    pool[codes..codes + block.len() - 2].copy_from_slice(&block[2..]);
}

/// Number of vectors whose block differs from the portable codec's.
fn mismatches(codec: &AnyCodec, rows: &[f32], encoded: &Encoded) -> usize {
    let (dim, bits) = (codec.dim() as u32, codec.id().bits());
    let pages = (rows.len() / codec.dim()).div_ceil(page::SLOTS as usize) as u32;
    let row = page::row_bytes(dim, bits) as usize;
    let wrong = |(i, x): (usize, &[f32])| {
        let (number, slot) = (i as u32 / page::SLOTS, i as u32 % page::SLOTS);
        let home = ((pages - 1 - number) * page::head_bytes(dim, bits)) as usize;
        let scale = home + page::scale_offset(dim, bits, slot) as usize;
        let codes = home + slot as usize * row;
        let got = [&encoded.pool[scale..scale + 2], &encoded.pool[codes..codes + row]].concat();
        let mut want = vec![0; codec.block_bytes()];
        codec.encode(x, &mut want).expect("finite vectors encode");
        got != want || encoded.outcomes[4 * i] != 0
    };
    rows.chunks_exact(codec.dim()).enumerate().filter(|&vector| wrong(vector)).count()
}

/// `of_each_codec!(encode)` makes one test of `fn encode(id: CodecId)` per codec, such as `encode::T3`.
macro_rules! of_each_codec {
    ($check:ident) => {
        tqkv_gpu_kernels::codecs!([crate::codec_tests][$check]);
    };
}

macro_rules! codec_tests {
    ([$check:ident] $($id:ident $name:literal),*) => {
        #[allow(non_snake_case, reason = "codecs have these names")]
        mod $check {
            $(#[test]
            fn $id() {
                super::$check(tqkv_core::CodecId::$id);
            })*
        }
    };
}

pub(crate) use {codec_tests, of_each_codec};

/// Head dims with their indices.
fn shapes() -> impl Iterator<Item = (usize, usize)> {
    scope::dims(&HEAD_DIMS).into_iter().enumerate()
}

of_each_codec!(encodes_and_decodes_as_the_portable_codec_does);

fn encodes_and_decodes_as_the_portable_codec_does(id: CodecId) {
    let text = text();
    for dim in scope::dims(&HEAD_DIMS) {
        let codec = AnyCodec::new(id, dim, Options::DEFAULT).unwrap();
        let is_trellis = id.trellis().is_some();
        let vectors = match scope::is_exhaustive() {
            true if is_trellis => TRELLIS_VECTORS,
            true => SCALAR_VECTORS,
            false if is_trellis => 20,
            false => 200,
        };
        let rows = Gaussian::new(80 + dim as u64).vector(vectors * dim);
        let name = format!("{}_d{dim}", id.name());
        let encoded = encode(&Kernel::new(&text, &format!("encode_append_{name}")), &codec, &rows);
        assert_eq!(mismatches(&codec, &rows, &encoded), 0, "{name}");
        decode(&text, &codec, &encoded, &rows);
    }
}

fn decode(text: &str, codec: &AnyCodec, encoded: &Encoded, rows: &[f32]) {
    let (dim, tokens) = (codec.dim(), usize::min(rows.len() / codec.dim(), 64));
    let pages = encoded.page_table.len() as u32 / 4;
    let kernel = Kernel::new(text, &format!("decode_pages_{}_d{dim}", codec.id().name()));
    let mut buffers = [
        encoded.pool.clone(),
        encoded.page_table.clone(),
        signs(codec),
        vec![0xff; 4 * tokens * dim],
        words([0, tokens as u32]),
        words([tokens as u32]),
    ];
    let arguments = DecodePages {
        pool: 0,
        stride: page::head_bytes(dim as u32, codec.id().bits()),
        last_page: pages - 1,
        page_table: 1,
        max_pages: pages,
        last_entry: pages - 1,
        shift: 0,
        offsets: 4,
        lengths: 5,
        sequences: 1,
        tokens: tokens as u32,
        num_kv_heads: 1,
        signs: 2,
        out: 3,
        kind: element::F32,
    };
    kernel.launch((0..tokens as u32).map(|warp| (warp, 0, 0)), &arguments.list(), &mut buffers);
    let (mut block, mut want) = (vec![0; codec.block_bytes()], vec![0.0; dim]);
    for (x, got) in rows.chunks_exact(dim).zip(read_floats(&buffers[3]).chunks_exact(dim)) {
        codec.encode(x, &mut block).unwrap();
        codec.decode(&block, &mut want).unwrap();
        assert_eq!(got, want, "{}", codec.id().name());
    }
}

#[test]
fn pages_are_attended_as_f64_does() {
    use CodecId::{I8, S2, S3, S4, T2, T3, T4};
    let text = &text();
    for (shape, dim) in shapes() {
        let cases = [
            (S4, S2, 1),
            (T3, T2, 1),
            (I8, S3, 1),
            (T2, S4, 1),
            (T4, I8, 1),
            (S2, T3, 1),
            (I8, T4, 1),
            (I8, S3, 2),
            (S2, S4, 2),
            (S3, I8, 2),
            (S4, S2, 2),
            (S3, S3, 2),
            (T4, T4, 2),
            (I8, S4, 3),
            (S2, I8, 4),
            (S3, S2, 5),
            (S4, T4, 2),
            (T4, S2, 3),
            (T2, T3, 4),
            (T3, T2, 2),
            (I8, T2, 5),
            (T2, I8, 4),
            (S3, T3, 2),
            (T3, S3, 3),
            (S2, T4, 4),
            (S4, S4, 8),
            (S3, I8, 7),
            (S2, S3, 12),
        ];
        for (i, (key, value, group)) in cases.into_iter().enumerate() {
            if scope::is_turn(i, shape, HEAD_DIMS.len()) {
                attend(text, dim, (key, value), group, &Batch { num_kv_heads: 1, lengths: &[150] });
            }
        }
        // Sequences of different lengths, one of them empty, with several KV heads.
        let batch = Batch { num_kv_heads: 2, lengths: &[70, 0, 150] };
        for (i, (codecs, group)) in [((S4, S3), 4), ((T3, I8), 1), ((I8, T2), 5)].into_iter().enumerate() {
            if scope::is_turn(i, shape, HEAD_DIMS.len()) {
                attend(text, dim, codecs, group, &batch);
            }
        }
    }
}

/// Sequences that one launch attends to.
struct Batch<'a> {
    num_kv_heads: u32,
    /// Tokens per sequence.
    lengths: &'a [u32],
}

/// Most pages of a sequence.
const MAX_PAGES: u32 = 3;

impl Batch<'_> {
    fn pages(&self) -> u32 {
        MAX_PAGES * self.lengths.len() as u32
    }

    /// The sequence of each query token: row i reads the i-th sequence from the end.
    fn sequence_of(&self) -> impl Iterator<Item = u32> {
        (0..self.lengths.len() as u32).rev()
    }

    /// Parts of up to `pages` pages, with entries without work after them.
    fn parts(&self, pages: u32) -> Parts {
        let mut parts = Parts { first: vec![0], list: Vec::new() };
        for (row, length) in (0..).zip(self.lengths.iter().rev()) {
            let end = length.div_ceil(page::SLOTS);
            let starts = (0..end.max(1)).step_by(pages as usize);
            parts.list.extend(starts.map(|start| [row, start * page::SLOTS, end.min(start + pages)]));
            parts.first.push(parts.entries());
        }
        parts.list.extend([[attend::UNUSED; 3]; 3]);
        parts
    }

    /// Pages are numbered backwards.
    fn table(&self) -> impl Iterator<Item = u32> {
        (0..self.pages()).rev()
    }

    /// Page and KV head of a token, as one number.
    fn place(&self, sequence: u32, head: u32, token: u32) -> u32 {
        let page = self.pages() - 1 - (sequence * MAX_PAGES + token / page::SLOTS);
        page * self.num_kv_heads + head
    }
}

/// The parts of a launch: the first of each row and their number, and row, first token and last page of each.
struct Parts {
    first: Vec<u32>,
    list: Vec<[u32; 3]>,
}

impl Parts {
    fn entries(&self) -> u32 {
        self.list.len() as u32
    }
}

/// Keys or values of a batch: the pool with their pages, their levels, and the decoded vectors of each
/// sequence and KV head.
struct Pool {
    bytes: Vec<u8>,
    levels: Vec<u8>,
    decoded: Vec<Vec<Vec<f32>>>,
}

fn fill(id: CodecId, dim: usize, batch: &Batch<'_>, gaussian: &mut Gaussian) -> Pool {
    let codec = AnyCodec::new(id, dim, Options::DEFAULT).unwrap();
    let heads = batch.pages() * batch.num_kv_heads;
    let mut bytes = vec![0xff; (heads * page::head_bytes(dim as u32, id.bits())) as usize];
    let (mut block, mut out) = (vec![0; codec.block_bytes()], vec![0.0; dim]);
    let mut decoded = Vec::new();
    for (sequence, &tokens) in (0..).zip(batch.lengths) {
        for head in 0..batch.num_kv_heads {
            let rows = gaussian.vector(tokens as usize * dim);
            let one = (0..tokens).zip(rows.chunks_exact(dim)).map(|(token, x)| {
                codec.encode(x, &mut block).unwrap();
                put_block(
                    &mut bytes,
                    &codec,
                    batch.place(sequence, head, token),
                    token % page::SLOTS,
                    &block,
                );
                codec.decode(&block, &mut out).unwrap();
                out.clone()
            });
            decoded.push(one.collect());
        }
    }
    Pool { bytes, levels: words(tables(&codec)), decoded }
}

fn attend(text: &str, dim: usize, (key, value): (CodecId, CodecId), group: u32, batch: &Batch<'_>) {
    let kernel = match group {
        1 => ("attend", 1),
        _ => attend::kernel([key, value].map(|id| page::format(id.layout())), group, dim),
    };
    attend_by(text, dim, (key, value), (kernel, group), batch);
}

/// Attends by this kernel, compares with f64, and returns the results.
fn attend_by(
    text: &str,
    dim: usize,
    (key, value): (CodecId, CodecId),
    ((name, heads_a_warp), group): ((&str, u32), u32),
    batch: &Batch<'_>,
) -> Vec<f32> {
    // One sequence has parts of two pages. The batch has a page per part.
    let parts = batch.parts(if batch.lengths.len() > 1 { 1 } else { 2 });
    let mut gaussian = Gaussian::new(3);
    let keys = fill(key, dim, batch, &mut gaussian);
    let values = fill(value, dim, batch, &mut gaussian);
    let sequences = batch.lengths.len() as u32;
    let count = sequences * batch.num_kv_heads * group;
    let queries = gaussian.vector(count as usize * dim);
    let codec = AnyCodec::new(key, dim, Options::DEFAULT).unwrap();
    let factor = std::f32::consts::LOG2_E / (dim as f32 * (dim as f32).sqrt());
    let mut buffers = [
        floats(&queries),
        signs(&codec),
        vec![0xff; 4 * queries.len()],
        keys.bytes,
        keys.levels,
        values.bytes,
        values.levels,
        words(batch.table()),
        words(batch.lengths.iter().rev().copied()),
        vec![0xff; parts.entries() as usize * (batch.num_kv_heads * group) as usize * 4 * (4 + dim)],
        vec![0xff; 4 * queries.len()],
        words(batch.sequence_of()),
        words(parts.list.iter().copied().flatten()),
        words(parts.first.iter().copied()),
        vec![0xff; 4 * count as usize],
    ];
    let rotate = Kernel::new(text, &format!("rotate_queries_d{dim}"));
    let arguments = RotateQueries {
        queries: 0,
        token_stride: 0,
        heads: count,
        kind: element::F32,
        count,
        signs: 1,
        rotated: 1,
        factor,
        out: 2,
    };
    rotate.launch((0..count).map(|warp| (warp, 0, 0)), &arguments.list(), &mut buffers);
    let (key_format, value_format) = (page::format(key.layout()), page::format(value.layout()));
    let name = format!("{name}_d{dim}_r{heads_a_warp}");
    // A batch runs the text that a cache gets; a single sequence runs the committed text.
    let fixed =
        tqkv_gpu::with_formats(text, &name, [key_format, value_format]).expect("it reads its formats");
    let kernel = Kernel::new(if batch.lengths.len() > 1 { &fixed } else { text }, &name);
    let arguments = Attend {
        parts: parts.entries(),
        list: 12,
        queries: 2,
        num_kv_heads: batch.num_kv_heads,
        group,
        keys: 3,
        key_stride: batch.num_kv_heads * page::head_bytes(dim as u32, key.bits()),
        key_format,
        key_levels: 4,
        values: 5,
        value_stride: batch.num_kv_heads * page::head_bytes(dim as u32, value.bits()),
        value_format,
        value_levels: 6,
        // A prefetch changes no result: batches have it or not, by their number of heads.
        ahead: batch.num_kv_heads % 3,
        last_page: batch.pages() - 1,
        page_table: 7,
        max_pages: MAX_PAGES,
        last_entry: batch.pages() - 1,
        shift: 0,
        sequence_of: 11,
        lengths: 8,
        partials: 9,
    };
    // The last block may have warps without an entry.
    let rows = 0..batch.num_kv_heads * group.div_ceil(heads_a_warp);
    let warps = rows.flat_map(|y| (0..parts.entries() + 2).map(move |part| (part, y, 0)));
    kernel.launch(warps, &arguments.list(), &mut buffers);
    let merge = Kernel::new(text, &format!("attend_merge_d{dim}"));
    let mut results = |kind: u32| {
        let heads = batch.num_kv_heads * group;
        let arguments = AttendMerge {
            count,
            heads,
            partials: 9,
            first_part: 13,
            signs: 1,
            rotated: 1,
            out: 10,
            kind,
            has_lse: u32::from(kind == element::F32),
            lse: 14,
        };
        merge.launch((0..count).map(|warp| (warp, 0, 0)), &arguments.list(), &mut buffers);
        buffers[10].clone()
    };
    let got = read_floats(&results(element::F32));
    let halves = got.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect::<Vec<_>>();
    assert_eq!(results(element::F16)[..halves.len()], halves);
    let brains = got.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect::<Vec<_>>();
    assert_eq!(results(element::BF16)[..brains.len()], brains);
    // Only the first launch wrote them.
    let lse = read_floats(&buffers[14]);
    for (i, (query, got)) in queries.chunks_exact(dim).zip(got.chunks_exact(dim)).enumerate() {
        let heads = batch.num_kv_heads as usize;
        let row = i / (group as usize * heads);
        let head = (sequences as usize - 1 - row) * heads + i / group as usize % heads;
        let (keys, values) = (&keys.decoded[head], &values.decoded[head]);
        let name = format!("{} {} dim {dim} group {group}, head {head}", key.name(), value.name());
        if keys.is_empty() {
            assert!(got.iter().all(|&x| x == 0.0), "{name}: nothing to attend to");
            assert_eq!(lse[i], f32::NEG_INFINITY, "{name}: the sum of nothing");
            continue;
        }
        let error = (f64::from(lse[i]) - oracle::log_sum_exp(query, keys)).abs();
        assert!(error < 1e-4, "{name}: {error:e} in the logarithm of the sum");
        for (&got, want) in got.iter().zip(oracle::attention(query, keys, values)) {
            let error = (f64::from(got) - want).abs();
            assert!(error < 2e-4, "{name}: {error:e}");
        }
    }
    got
}

#[test]
fn arguments_are_as_many_and_as_wide_as_the_parameters() {
    use tqkv_gpu_kernels::args::{
        AttendMergeExact, GiveUnits, KeepRows, KeepUnits, PlanParts, QjlCorrect, QjlSketch, ReadBytes,
        Scores, SeeUnits, WeightDecode,
    };
    let lists: [(&str, &[(&str, usize)]); 16] = [
        ("keep_rows_", &KeepRows::<()>::PARAMETERS),
        ("encode_append_", &EncodeAppend::<()>::PARAMETERS),
        ("decode_pages_", &DecodePages::<()>::PARAMETERS),
        ("weight_decode_", &WeightDecode::<()>::PARAMETERS),
        ("rotate_queries_", &RotateQueries::<()>::PARAMETERS),
        ("scores_", &Scores::<()>::PARAMETERS),
        ("attend_merge_exact_", &AttendMergeExact::<()>::PARAMETERS),
        ("attend_merge_", &AttendMerge::<()>::PARAMETERS),
        ("attend_", &Attend::<()>::PARAMETERS),
        ("qjl_sketch_", &QjlSketch::<()>::PARAMETERS),
        ("qjl_correct_", &QjlCorrect::<()>::PARAMETERS),
        ("plan_parts", &PlanParts::<()>::PARAMETERS),
        ("give_units", &GiveUnits::<()>::PARAMETERS),
        ("keep_units", &KeepUnits::<()>::PARAMETERS),
        ("see_units", &SeeUnits::<()>::PARAMETERS),
        ("read_bytes", &ReadBytes::<()>::PARAMETERS),
    ];
    let text = text();
    let kernels: Vec<_> = text.split(".visible .entry ").skip(1).collect();
    assert!(kernels.len() > 100);
    for kernel in kernels {
        let (name, rest) = kernel.split_once('(').unwrap();
        let (_, list) = lists.iter().find(|(start, _)| name.starts_with(start)).expect(name);
        let declared = rest.split_once(')').unwrap().0.lines().map(str::trim).filter(|line| !line.is_empty());
        // `.param .u64 .ptr .align 1 name_param_0,`
        let bytes = declared.map(|line| match line.split_whitespace().nth(1) {
            Some(".u64" | ".b64") => 8,
            Some(".u32" | ".b32" | ".f32") => 4,
            other => panic!("{name}: a parameter of type {other:?}"),
        });
        assert_eq!(
            bytes.collect::<Vec<_>>(),
            list.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>(),
            "{name}"
        );
    }
}

/// Changes the `nth` occurrence of `from` in a kernel.
fn mutate(text: &str, kernel: &str, nth: usize, from: &str, to: &str) -> String {
    let start = text.find(&format!(".entry {kernel}(")).unwrap();
    let (at, _) = text[start..].match_indices(from).nth(nth).expect("the instruction is there");
    format!("{}{to}{}", &text[..start + at], &text[start + at + from.len()..])
}

/// Returns true if a changed instruction of an encoder stops the machine or changes a block.
fn noticed(text: &str, codec: &AnyCodec, rows: &[f32], (nth, from, to): (usize, &str, &str)) -> bool {
    let kernel = format!("encode_append_{}_d{}", codec.id().name(), codec.dim());
    let mutated = mutate(text, &kernel, nth, from, to);
    let wrong = std::panic::catch_unwind(|| {
        mismatches(codec, rows, &encode(&Kernel::new(&mutated, &kernel), codec, rows))
    });
    wrong.map_or(true, |wrong| wrong > 0)
}

#[test]
fn a_mutated_instruction_is_noticed() {
    let text = text();
    let codec = AnyCodec::new(CodecId::S4, 128, Options::DEFAULT).unwrap();
    let rows = Gaussian::new(1).vector(64 * 128);
    let none = (0, "add.rn.f32", "add.rn.f32");
    assert!(!noticed(&text, &codec, &rows, none), "the kernel as it is");
    for change in [
        (0, "add.rn.f32", "sub.rn.f32"),
        (17, "add.rn.f32", "sub.rn.f32"),
        (3, "mul.rn.f32", "add.rn.f32"),
        (0, "xor.b32", "or.b32"),
        (0, "div.rn.f32", "mul.rn.f32"),
        (0, "setp.ge.f32", "setp.lt.f32"),
        // The first two write zeros for vectors that cannot be encoded.
        (2, "st.global.b16", "st.global.b32"),
        (2, "shl.b32", "shr.u32"),
    ] {
        assert!(noticed(&text, &codec, &rows, change), "{change:?} went unnoticed");
    }
    let codec = AnyCodec::new(CodecId::T3, 64, Options::DEFAULT).unwrap();
    assert!(!noticed(&text, &codec, &rows[..8 * 64], none), "the kernel as it is");
    for change in [
        (3, "min.u32", "max.u32"),
        (0, "max.u32", "min.u32"),
        (9, "setp.lt.u32", "setp.ge.u32"),
        (0, "bar.warp.sync", "bar.sync"),
        (0, "cvt.rzi.s16.f32", "cvt.u16.u32"),
        (2, "shfl.sync.idx.b32", "shfl.sync.bfly.b32"),
    ] {
        assert!(noticed(&text, &codec, &rows[..8 * 64], change), "{change:?} went unnoticed");
    }
}

fn stops(text: &str) -> bool {
    let text = format!(".visible .entry k(\n\t.param .u64 k_param_0\n)\n{{\n{text}\n\tret;\n}}\n");
    std::panic::catch_unwind(|| {
        Kernel::new(&text, "k").launch([(0, 0, 0)], &[Argument::Memory(0)], &mut [vec![0; 128]]);
    })
    .is_err()
}

#[test]
fn the_machine_stops_where_a_gpu_would_go_wrong() {
    let lane = "mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [k_param_0];";
    let store = "mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; st.global.b32 [%rd3], %r1;";
    assert!(!stops(&format!("{lane}{store}")), "a correct kernel runs");
    assert!(stops(&format!("{lane}{}", store.replace("[%rd3]", "[%rd3+4]"))), "an access past the end");
    assert!(stops(&format!("{lane}{}", store.replace("[%rd3]", "[%rd3+2]"))), "a misaligned access");
    assert!(stops("lop3.b32 %r1, %r1, %r1, %r1, 1;"), "an unknown opcode");
    let unwritten = "add.s32 %r1, %r9, %r1;";
    assert!(!stops(&format!("{lane}{unwritten}")), "nobody looks at it");
    assert!(
        stops(&format!("{lane}{store}{unwritten}bar.warp.sync -1;st.global.b32 [%rd3], %r1;")),
        "it is stored"
    );
    assert!(stops(&format!("{lane}{unwritten}{store}")), "it is an address");
    assert!(
        stops(&format!("{lane}{unwritten}shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;")),
        "it is shown to others"
    );
    assert!(stops("setp.lt.u32 %p1, %r9, 7; @%p1 bra L; L:"), "a jump depends on it");
    let chosen = "setp.lt.u32 %p1, %r1, 99; selp.b32 %r1, %r1, %r9, %p1;";
    assert!(!stops(&format!("{lane}{chosen}{store}")), "it is not chosen");
    assert!(stops(&format!("{lane}{}{store}", chosen.replace("99", "9"))), "some choose it");
    // -1 as a word is 32 bits wide, so the shift gives 1.
    let word = "mov.b32 %r2, -1; cvt.u64.u32 %rd5, %r2; shr.u64 %rd6, %rd5, 31; cvt.u32.u64 %r1, %rd6;";
    assert!(stops(&format!("{lane}{word}{store}")), "all threads write word 1");
    let divergent = "setp.lt.u32 %p1, %r1, 7; @%p1 bra L; shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1; L:";
    assert!(stops(&format!("{lane}{divergent}")), "a divergent shuffle");
    for exchange in ["vote.sync.ballot.b32 %r2, %p1, -1;", "bar.warp.sync -1;"] {
        let divergent = divergent.replace("shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;", exchange);
        assert!(stops(&format!("{lane}{divergent}")), "a divergent {exchange}");
    }
    // The last thread would store past the end if it joined in the other threads' instructions.
    let apart = "setp.gt.u32 %p1, %r1, 30; @%p1 bra L; add.s32 %r1, %r1, 1; bra M; L: xor.b32 %r1, %r1, 31; M: bar.warp.sync -1;";
    assert!(!stops(&format!("{lane}{apart}{store}")), "threads that branched apart meet");
    assert!(stops(&format!("{lane}{}{store}", apart.replace("@%p1 bra L;", ""))), "all threads add");
    let guarded = "setp.gt.u32 %p1, %r1, 30; @!%p1 add.s32 %r1, %r1, 1; @%p1 xor.b32 %r1, %r1, 31;";
    assert!(!stops(&format!("{lane}{guarded}{store}")), "a guard keeps a thread's register");
    let load = store.replace("st.global.b32 [%rd3], %r1", "ld.global.b32 %r2, [%rd3+4]");
    assert!(stops(&format!("{lane}{load}")), "a load past the end");
    let pair = "setp.gt.u32 %p1, %r1, 30; @!%p1 st.global.v2.b32 [%rd3], {%r1, %r1};";
    assert!(stops(&format!("{lane}{store}bar.warp.sync -1;{pair}")), "a misaligned pair within the buffer");
    let even = pair.replace("%r1, 30", "%r1, 15").replace("[%rd3]", "[%rd4]");
    let pairs = format!("mul.wide.u32 %rd2, %r1, 8; add.s64 %rd4, %rd1, %rd2; {even}");
    let meet = "bar.warp.sync -1;";
    assert!(!stops(&format!("{lane}{store}{meet}{pairs}")), "aligned pairs");
    assert!(stops(&format!("{lane}{store}{pairs}")), "two threads write a word");
    let neighbour = "xor.b32 %r2, %r1, 1; mul.wide.u32 %rd4, %r2, 4; add.s64 %rd5, %rd1, %rd4;";
    let read = "ld.global.b32 %r3, [%rd5];";
    assert!(
        !stops(&format!("{lane}{store}{meet}{neighbour}{read}")),
        "a word of another thread, behind a barrier"
    );
    assert!(stops(&format!("{lane}{store}{neighbour}{read}")), "without one");
    assert!(!stops(&format!("{lane}{neighbour}{read}{meet}{store}")), "a word that another thread has read");
    assert!(stops(&format!("{lane}{neighbour}{read}{store}")), "that another may still read");
    let all = "ld.global.b32 %r3, [%rd1];";
    assert!(!stops(&format!("{lane}{all}")), "a word that all threads read");
    assert!(stops(&format!("{lane}{all}st.global.b32 [%rd1], %r1;")), "and all write");
}

#[test]
fn two_warps_do_not_write_a_byte() {
    let stops = |value: &str| {
        let text = format!(
            ".visible .entry k(\n\t.param .u64 k_param_0\n)\n{{\nmov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; \
             ld.param.b64 %rd1, [k_param_0]; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; \
             st.global.b32 [%rd3], {value};\n\tret;\n}}\n"
        );
        let two = [(0, 0, 0), (1, 0, 0)];
        let run = || Kernel::new(&text, "k").launch(two, &[Argument::Memory(0)], &mut [vec![0; 128]]);
        std::panic::catch_unwind(run).is_err()
    };
    assert!(stops("%r2"), "each warp writes its number");
    assert!(!stops("%r1"), "all warps write the same");
}

#[test]
fn encoders_without_their_barriers_stop() {
    let text = text();
    let bare: String =
        text.lines().filter(|line| !line.contains("bar.warp.sync")).flat_map(|line| [line, "\n"]).collect();
    assert!(bare.len() < text.len());
    let codec = AnyCodec::new(CodecId::T2, 64, Options::DEFAULT).unwrap();
    let rows = Gaussian::new(2).vector(2 * 64);
    let encoded = |text: &str| {
        let kernel = Kernel::new(text, "encode_append_t2_d64");
        std::panic::catch_unwind(|| mismatches(&codec, &rows, &encode(&kernel, &codec, &rows)))
    };
    assert_eq!(encoded(&text).ok(), Some(0));
    let why = encoded(&bare).expect_err("a race");
    let why = why.downcast_ref::<String>().expect("a message");
    assert!(why.contains("no barrier since another thread"), "{why}");
}
