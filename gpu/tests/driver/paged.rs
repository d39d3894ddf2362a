//! Pages that an engine owns: what is stored, attended and gathered there, and what numbers that lie do not do.

use super::*;
use tqkv_gpu::paged::{
    AttendOptions, BlockTable, ExactRows, Integers, Layout, Paged, Pages, Room, TokenRows,
};
use tqkv_gpu_kernels::page;

/// Blocks of the engine's pool, and the bytes that it adds to each.
const BLOCKS: usize = 8;
const SPARE: usize = 64;

/// What an engine has: a pool of blocks in one memory, keys and values in turn.
struct Engine {
    device: Device,
    paged: Paged,
    pool: CudaSlice<u8>,
    block_tokens: usize,
    stride: usize,
}

/// The address of a buffer. Tests keep the buffers until the stream is done.
fn address<T>(slice: &CudaSlice<T>) -> u64 {
    slice.device_ptr(slice.stream()).0
}

impl Engine {
    fn new(layout: Layout, block_tokens: usize) -> Self {
        let device = device(0);
        let paged = Paged::new(&device, layout).unwrap();
        let stride = layout.block_bytes(block_tokens).unwrap() + SPARE;
        let pool = upload(&device, &vec![0xff_u8; BLOCKS * stride]);
        Self { device, paged, pool, block_tokens, stride }
    }

    fn pages(&self) -> Pages {
        let (layout, at) = (self.paged.layout(), address(&self.pool));
        // SAFETY: the pool has as many blocks, and lives as long as the engine.
        unsafe { Pages::together(layout, at, BLOCKS, self.stride, self.block_tokens) }.unwrap()
    }

    fn bytes(&self) -> Vec<u8> {
        self.device.stream().clone_dtoh(&self.pool).unwrap()
    }

    /// Stores the same rows as keys and values. Returns true if one was refused.
    fn store(&self, rows: &[f32], places: &[i64]) -> bool {
        let (rows, there) = (upload(&self.device, rows), upload(&self.device, places));
        let refused = upload(&self.device, &[0_i32]);
        let room = upload(&self.device, &vec![0xff_u8; self.paged.store_room(places.len())]);
        // SAFETY: the buffers have these lengths, and live until the word is read below.
        unsafe {
            let raw = Raw::new(address(&rows), places.len() * ROW, Element::F32);
            let places = Integers::i64(address(&there), places.len());
            let word = Integers::i32(address(&refused), 1);
            let room = Room::new(address(&room), room.len());
            self.paged.store(&self.device, raw, raw, places, self.pages(), None, room, Some(word)).unwrap();
        }
        self.device.stream().clone_dtoh(&refused).unwrap() != [0]
    }

    fn integers(&self, numbers: &CudaSlice<i32>) -> Integers {
        // SAFETY: the buffer has this length, and tests keep it until the stream is done.
        unsafe { Integers::i32(address(numbers), numbers.len()) }
    }

    /// Attends with one query token of each sequence.
    fn attend(&self, queries: &[f32], table: &[i32], max_blocks: usize, lengths: &[i32]) -> Vec<f32> {
        self.attend_from(None, queries, table, max_blocks, lengths)
    }

    /// Attends from a token of each sequence on.
    fn attend_from(
        &self,
        starts: Option<&[i32]>,
        queries: &[f32],
        table: &[i32],
        max_blocks: usize,
        lengths: &[i32],
    ) -> Vec<f32> {
        let from = starts;
        let starts = starts.map(|starts| upload(&self.device, starts));
        let [queries, out] =
            [queries, &vec![f32::NAN; queries.len()]].map(|values| upload(&self.device, values));
        let there = lengths;
        let [table, lengths] = [table, lengths].map(|numbers| upload(&self.device, numbers));
        let sums = upload(&self.device, &vec![f32::NAN; queries.len() / DIM]);
        let plan = upload(&self.device, &vec![-1_i32; self.paged.plan_words(lengths.len())]);
        let room = upload(&self.device, &vec![0xff_u8; self.paged.attend_room(lengths.len())]);
        let numbers = |numbers| self.integers(numbers);
        let most = max_blocks * self.block_tokens;
        let starts = starts.as_ref().map(numbers);
        self.paged.plan(&self.device, numbers(&lengths), starts, 1, most, numbers(&plan)).unwrap();
        let table = BlockTable { numbers: numbers(&table), max_blocks };
        // SAFETY: the buffers have these lengths, and live until the result is read below.
        unsafe {
            let [queries, out, sums] =
                [&queries, &out, &sums].map(|x| Raw::new(address(x), x.len(), Element::F32));
            let room = Room::new(address(&room), room.len());
            let options = AttendOptions { lse: Some(sums), ..AttendOptions::default() };
            self.paged
                .attend(&self.device, queries, self.pages(), table, numbers(&plan), room, out, options)
                .unwrap();
        }
        let sums = self.device.stream().clone_dtoh(&sums).unwrap();
        let of_rows = sums.chunks_exact(sums.len() / there.len());
        for (row, (of_row, &tokens)) in of_rows.zip(there).enumerate() {
            let tokens = tokens - from.map_or(0, |from| from[row].max(0)).min(tokens.max(0));
            // Pages that were never written may have scales that are no numbers.
            let right = |&sum: &f32| (sum == f32::NEG_INFINITY) == (tokens <= 0);
            assert!(of_row.iter().all(right), "{tokens} tokens: {of_row:?}");
        }
        self.device.stream().clone_dtoh(&out).unwrap()
    }

    /// Gathers the keys of sequences to rows of NaN.
    fn gather(
        &self,
        table: &[i32],
        max_blocks: usize,
        offsets: &[i32],
        lengths: &[i32],
        rows: usize,
    ) -> Vec<f32> {
        let [table, offsets, lengths] =
            [table, offsets, lengths].map(|numbers| upload(&self.device, numbers));
        let out = upload(&self.device, &vec![f32::NAN; rows * ROW]);
        let numbers = |numbers| self.integers(numbers);
        let (offsets, lengths) = (numbers(&offsets), numbers(&lengths));
        let table = BlockTable { numbers: numbers(&table), max_blocks };
        // SAFETY: the buffer has this length, and lives until it is read below.
        let raw = unsafe { Raw::new(address(&out), out.len(), Element::F32) };
        self.paged.gather(&self.device, Side::Keys, self.pages(), table, offsets, lengths, raw).unwrap();
        self.device.stream().clone_dtoh(&out).unwrap()
    }

    /// The block of a place, in the layout of SPEC.md: of keys (0) or values (1).
    fn block(&self, pool: &[u8], place: usize, side: usize, head: usize) -> Vec<u8> {
        let layout = self.paged.layout();
        let id = [layout.key, layout.value][side];
        let (dim, bits) = (layout.head_dim as u32, id.bits());
        let (number, slot) = (place / 64, place % 64);
        let head_bytes = page::head_bytes(dim, bits) as usize;
        let keys = KV_HEADS * page::head_bytes(dim, layout.key.bits()) as usize;
        let home = number * self.stride * 64 / self.block_tokens + side * keys + head * head_bytes;
        let (row, scale) = (page::row_bytes(dim, bits) as usize, page::scale_offset(dim, bits, slot as u32));
        let (codes, scale) = (home + slot * row, home + scale as usize);
        [&pool[scale..scale + 2], &pool[codes..codes + row]].concat()
    }
}

fn layout(key: CodecId, value: CodecId) -> Layout {
    Layout::new(HEADS, KV_HEADS, DIM).codecs(key, value).options(Options::DEFAULT.seed(5))
}

#[test]
fn stored_codes_are_the_portable_codecs_and_places_that_are_none_are_not_written() {
    for (key, value, block_tokens) in
        [(CodecId::S4, CodecId::S4, 64), (CodecId::S3, CodecId::T2, 128), (CodecId::I8, CodecId::S2, 64)]
    {
        let engine = Engine::new(layout(key, value), block_tokens);
        let (last, behind) = (BLOCKS * block_tokens - 1, (BLOCKS * block_tokens) as i64);
        let places = [3, -1, last as i64, 200, i64::MIN, 77];
        let rows = noise(1, places.len() * ROW);
        assert!(!engine.store(&rows, &places), "padding is no fault");
        let pool = engine.bytes();
        let mut written = vec![0xff; pool.len()];
        for (i, &place) in places.iter().enumerate().filter(|(_, place)| **place >= 0) {
            for (side, id) in [key, value].into_iter().enumerate() {
                let codec = AnyCodec::new(id, DIM, Options::DEFAULT.seed(5)).unwrap();
                for (head, row) in rows[i * ROW..(i + 1) * ROW].chunks_exact(DIM).enumerate() {
                    let got = engine.block(&pool, place as usize, side, head);
                    assert_eq!(got, blocks(&codec, row), "{place} {side} {head}");
                }
            }
        }
        // Only bytes of these blocks changed.
        let changed = pool.iter().zip(&mut written).filter(|(a, b)| a != b).count();
        assert!(changed <= 4 * KV_HEADS * (key.bits() + value.bits()) as usize * DIM / 8 + 4 * KV_HEADS * 4);

        let lies = [behind, i64::MAX, 1 << 32, behind + 64];
        assert!(engine.store(&noise(2, lies.len() * ROW), &lies), "a place behind the pool is said");
        assert!(engine.bytes() == pool, "and nothing is written");
    }
}

#[test]
fn a_vector_that_cannot_be_encoded_becomes_zeros_and_no_other_is_touched() {
    let engine = Engine::new(layout(CodecId::S4, CodecId::T3), 64);
    let rows = noise(1, 3 * ROW);
    engine.store(&rows, &[5, 6, 7]);
    let before = engine.bytes();
    let mut bad = rows;
    bad[ROW + DIM + 3] = f32::NAN;
    bad[2 * ROW..2 * ROW + DIM].fill(1e30);
    assert!(engine.store(&bad, &[5, 6, 7]));
    let after = engine.bytes();
    for side in 0..2 {
        for (place, head) in [(5, 0), (5, 1), (6, 0), (7, 1)] {
            assert_eq!(engine.block(&after, place, side, head), engine.block(&before, place, side, head));
        }
        for (place, head) in [(6, 1), (7, 0)] {
            assert!(engine.block(&after, place, side, head).iter().all(|&byte| byte == 0));
        }
    }
}

/// The places of the first `tokens` tokens of a sequence in these blocks.
fn places(blocks: &[i32], block_tokens: usize, tokens: usize) -> Vec<i64> {
    (0..tokens)
        .map(|i| i64::from(blocks[i / block_tokens]) * block_tokens as i64 + (i % block_tokens) as i64)
        .collect()
}

#[test]
fn attention_is_that_of_a_cache_to_the_bit() {
    for (key, value, block_tokens) in [(CodecId::S4, CodecId::S4, 64), (CodecId::S3, CodecId::I8, 128)] {
        let engine = Engine::new(layout(key, value), block_tokens);
        let mut cache = GpuCache::new(&engine.device, spec(1).codecs(key, value)).unwrap();
        let tables = [[5, 2, 0, 7], [-1, 1 << 30, 9, -7], [3, 6, -1, -1]];
        let lengths = [130, 0, 67];
        for (sequence, &tokens) in lengths.iter().enumerate().filter(|(_, tokens)| **tokens > 0) {
            let rows = fill(&mut cache, sequence, tokens, sequence as u64);
            engine.store(&rows, &places(&tables[sequence], block_tokens, tokens));
        }
        let queries = noise(9, 3 * QUERY);
        let mut want = vec![0.0; queries.len()];
        cache.attend(0, &queries, &mut want).unwrap();
        let got = engine.attend(&queries, tables.as_flattened(), 4, &lengths.map(|n| n as i32));
        assert!(got == want, "{key:?} {value:?}");

        // A gather is what the cache decodes. Rows between the sequences stay as they are.
        let gathered = engine.gather(tables.as_flattened(), 4, &[0, 135, 140, 210], &[130, 0, 67], 210);
        let mut decoded = engine.device.stream().alloc_zeros::<f32>(130 * ROW).unwrap();
        for (sequence, first) in [(0, 0), (2, 140)] {
            let tokens = lengths[sequence];
            cache.decode(0, sequence, Side::Keys, &mut decoded).unwrap();
            let want = engine.device.stream().clone_dtoh(&decoded).unwrap();
            assert!(gathered[first * ROW..(first + tokens) * ROW] == want[..tokens * ROW]);
        }
        let is_nan = |rows: std::ops::Range<usize>| {
            gathered[rows.start * ROW..rows.end * ROW].iter().all(|v| v.is_nan())
        };
        assert!(is_nan(130..140) && is_nan(207..210));

        // A copy of a block reads as the block.
        engine.paged.copy(&engine.device, engine.pages(), &[(5, 4), (2, 1)]).unwrap();
        let copied = [[4, 1, 0, 7], tables[1], tables[2]];
        assert!(engine.attend(&queries, copied.as_flattened(), 4, &lengths.map(|n| n as i32)) == want);
        let refused = engine.paged.copy(&engine.device, engine.pages(), &[(0, BLOCKS)]).unwrap_err();
        assert_eq!(refused.to_string(), "a copy of block 0 to 8 is not valid: the pool has 8 blocks");
    }
}

/// The fake driver stops at any access outside of a buffer.
#[test]
fn numbers_that_lie_neither_read_nor_write_outside_of_the_pool() {
    let engine = Engine::new(layout(CodecId::S4, CodecId::S4), 64);
    let rows = noise(1, 64 * ROW);
    engine.store(&rows, &places(&[1], 64, 64));
    let queries = noise(2, 4 * QUERY);
    let honest = engine.attend(&queries, &[1; 8], 2, &[0, 0, 0, 64]);
    let pool = engine.bytes();
    for entry in [0, 1, -1, i32::MIN, i32::MAX, 8] {
        let mut table = [entry; 8];
        table[6] = 1;
        let got = engine.attend(&queries, &table, 2, &[i32::MAX, 129, -3, 64]);
        assert!(got[3 * QUERY..] == honest[3 * QUERY..], "the sequence whose numbers are right");
        assert!(got[2 * QUERY..3 * QUERY].iter().all(|&v| v == 0.0), "a length below 0 counts as 0");
        engine.gather(&table, 2, &[7, -1, i32::MAX, 3, 0], &[i32::MAX, -1, 500, 64], 20);
        engine.gather(&table, 2, &[0, 5, 10, 15, 20], &[i32::MAX, i32::MIN, 500, 64], 20);
    }
    assert!(engine.bytes() == pool);
}

#[test]
fn attention_from_a_token_on_and_attention_up_to_it_make_the_attention_over_all() {
    let engine = Engine::new(layout(CodecId::S4, CodecId::T4), 64);
    let (tables, tokens) = ([0, 1, 2, 3, 4, 5], [150, 192]);
    for (sequence, tokens) in tokens.into_iter().enumerate() {
        engine.store(&noise(sequence as u64, tokens * ROW), &places(&tables[3 * sequence..], 64, tokens));
    }
    let queries = noise(7, 2 * QUERY);
    let all = engine.attend(&queries, &tables, 3, &[150, 192]);
    for starts in [[-1, i32::MIN], [0, 0]] {
        assert!(engine.attend_from(Some(&starts), &queries, &tables, 3, &[150, 192]) == all, "{starts:?}");
    }
    // The last token alone is its value.
    let last = engine.attend_from(Some(&[149, 191]), &queries, &tables, 3, &[150, 192]);
    let codec = AnyCodec::new(CodecId::T4, DIM, engine.paged.layout().options).unwrap();
    let rows = [noise(0, 150 * ROW), noise(1, 192 * ROW)];
    for (row, out) in last.chunks_exact(DIM).enumerate() {
        let (sequence, kv_head) = (row / HEADS, row % HEADS / (HEADS / KV_HEADS));
        let of = &rows[sequence][rows[sequence].len() - ROW..][kv_head * DIM..][..DIM];
        let (mut block, mut want) = (vec![0; codec.block_bytes()], [0.0; DIM]);
        codec.encode(of, &mut block).unwrap();
        codec.decode(&block, &mut want).unwrap();
        let apart = out.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-3, "{row}: {apart}");
    }
    let none = engine.attend_from(Some(&[150, i32::MAX]), &queries, &tables, 3, &[150, 192]);
    assert!(none.iter().all(|&value| value == 0.0));
}

#[test]
fn a_graph_of_a_plan_and_attention_follows_lengths_on_the_device() {
    let engine = Engine::new(layout(CodecId::S4, CodecId::S4), 64);
    let (device, stream) = (&engine.device, engine.device.stream().clone());
    let tables = [0, 1, 2, 3, 4, 5];
    for (sequence, tokens) in [(0, 150), (1, 192)] {
        engine.store(&noise(sequence as u64, tokens * ROW), &places(&tables[3 * sequence..], 64, tokens));
    }
    let queries = noise(9, 2 * QUERY);
    let there = upload(device, &queries);
    let out = upload(device, &vec![f32::NAN; 2 * QUERY]);
    let (table, mut lengths) = (upload(device, &tables), upload(device, &[1_i32, 1]));
    let plan = upload(device, &vec![-1_i32; engine.paged.plan_words(2)]);
    let room = upload(device, &vec![0_u8; engine.paged.attend_room(2)]);
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    let before = counts();
    let numbers = |numbers| engine.integers(numbers);
    engine.paged.plan(device, numbers(&lengths), None, 1, 192, numbers(&plan)).unwrap();
    let table = BlockTable { numbers: numbers(&table), max_blocks: 3 };
    // SAFETY: the buffers have these lengths, and live until the graph has run.
    unsafe {
        let [from, to] = [&there, &out].map(|x| Raw::new(address(x), x.len(), Element::F32));
        let room = Room::new(address(&room), room.len());
        let options = AttendOptions::default();
        engine.paged.attend(device, from, engine.pages(), table, numbers(&plan), room, to, options).unwrap();
    }
    let captured = since(before);
    assert_eq!((captured.allocations, captured.copies_in, captured.waits), (0, 0, 0), "launches only");
    let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().expect("a graph");
    for now in [[1, 64], [65, 192], [150, 0]] {
        stream.memcpy_htod(&now, &mut lengths).unwrap();
        graph.launch().unwrap();
        let got = stream.clone_dtoh(&out).unwrap();
        assert!(got == engine.attend(&queries, &tables, 3, &now), "{now:?}");
    }
}

#[test]
fn what_an_engine_cannot_have_is_refused() {
    let layout = layout(CodecId::S4, CodecId::S4);
    // SAFETY: nothing reads or writes the memory.
    let pages = |address, blocks, stride, tokens| unsafe {
        Pages::together(&layout, address, blocks, stride, tokens)
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    let bytes = layout.block_bytes(64).unwrap();
    assert_eq!(bytes, 64 * KV_HEADS * 2 * 34);
    assert_eq!(pages(256, 1, bytes, 64), Ok(()));
    for (refused, reason) in [
        (pages(256, 1, bytes, 32), "blocks of 32 tokens are not valid: expected 64, 128, 256 or another"),
        (pages(256, 1, bytes, 192), "blocks of 192 tokens are not valid"),
        (
            pages(256, 1, bytes, 128),
            "blocks that are 8704 bytes apart are not valid: expected at least 17408",
        ),
        (pages(256, 1, bytes + 8, 64), "and a multiple of 16"),
        (pages(256, 0, bytes, 64), "0 blocks are not valid: expected 1 to 67108864"),
        (pages(8, 1, bytes, 64), "blocks at the address 0x8 are not valid: expected a multiple of 16"),
    ] {
        let message = refused.unwrap_err();
        assert!(message.contains(reason), "{message}");
    }
    let engine = Engine::new(layout, 64);
    let few = upload(&engine.device, &[0_i32; 3]);
    let message = |result: Result<(), GpuError>| result.unwrap_err().to_string();
    let numbers = engine.integers(&few);
    assert!(
        message(engine.paged.plan(&engine.device, numbers, None, 1, 64, numbers))
            .starts_with("the plan has 3 values")
    );
    assert!(
        message(engine.paged.plan(&engine.device, numbers, None, 1 << 20, 64, numbers))
            .contains("at most 65535")
    );
    let two = upload(&engine.device, &[0_i32; 2]);
    let starts = Some(engine.integers(&two));
    assert_eq!(
        message(engine.paged.plan(&engine.device, numbers, starts, 1, 64, numbers)),
        "starts has 2 values, expected 3"
    );
    // SAFETY: the call is refused before anything is read.
    let wide = unsafe { Integers::i64(address(&few), 1) };
    assert_eq!(
        message(engine.paged.plan(&engine.device, wide, None, 1, 64, numbers)),
        "lengths of i64 is not valid: expected i32"
    );
}

/// Exact tokens of an engine, next to its pages, and what it says of the rows of a call.
struct Kept {
    /// `[KV heads, PLACES, DIM]` of keys and of values.
    sides: [CudaSlice<f32>; 2],
}

/// Places of a head, and the first ones, which may hold a token.
const PLACES: usize = 50;
const MOST_HELD: usize = 48;

impl Kept {
    fn new(device: &Device) -> Self {
        Self { sides: [(); 2].map(|()| upload(device, &vec![f32::NAN; KV_HEADS * PLACES * DIM])) }
    }

    fn rows(&self, places: &CudaSlice<i64>) -> ExactRows {
        // SAFETY: the buffers have these lengths, and tests keep them until the stream is done.
        unsafe {
            let sides = self.sides.each_ref().map(|side| Raw::new(address(side), side.len(), Element::F32));
            ExactRows { sides, held: MOST_HELD, places: Integers::i64(address(places), places.len()) }
        }
    }

    /// The row of a place of a head.
    fn row(&self, side: usize, head: usize, place: usize) -> Vec<f32> {
        let rows = self.sides[side].stream().clone_dtoh(&self.sides[side]).unwrap();
        rows[(head * PLACES + place) * DIM..][..DIM].to_vec()
    }
}

/// The products of a layer: queries, keys and values of a token one after the other.
const PRODUCT: usize = QUERY + 2 * ROW;

impl Engine {
    fn with_rows(layout: Layout) -> Self {
        let plain = Self::new(layout, 64);
        Self { paged: Paged::with_rows(&plain.device, layout).unwrap(), ..plain }
    }

    /// The parts of products, by the first value and the number of values of each token.
    fn part(&self, products: &CudaSlice<f32>, first: usize, values: usize) -> TokenRows {
        let tokens = products.len() / PRODUCT;
        // SAFETY: the products are that long, and tests keep them until the stream is done.
        unsafe {
            let of = Raw::new(address(products) + 4 * first as u64, tokens * values, Element::F32);
            TokenRows::apart(of, PRODUCT)
        }
    }

    /// Stores the keys and values of products, and keeps them where `kept` says.
    fn store_products(&self, products: &[f32], places: &[i64], kept: &Kept, kept_at: &[i64]) {
        let products = upload(&self.device, products);
        let [places, kept_at] = [places, kept_at].map(|places| upload(&self.device, places));
        let room = upload(&self.device, &vec![0xff_u8; self.paged.store_room(places.len())]);
        let [keys, values] = [QUERY, QUERY + ROW].map(|first| self.part(&products, first, ROW));
        // SAFETY: the buffers have these lengths, and live until the stream has done its work, below.
        unsafe {
            let at = Integers::i64(address(&places), places.len());
            let room = Room::new(address(&room), room.len());
            let exact = Some(kept.rows(&kept_at));
            self.paged.store(&self.device, keys, values, at, self.pages(), exact, room, None).unwrap();
        }
        // The one wait.
        self.device.stream().clone_dtoh(&kept_at).unwrap();
    }

    /// Attends with the queries of the last products, a sequence each, to codes from `starts` up to `ends` and to
    /// `seen` places.
    fn attend_products(
        &self,
        products: &[f32],
        table: &[i32],
        [starts, ends]: [&[i32]; 2],
        kept: &Kept,
        seen: &[i64],
        (scale, sinks): (f32, Option<&[f32]>),
    ) -> Vec<f32> {
        let rows = ends.len();
        let products = upload(&self.device, products);
        let out = upload(&self.device, &vec![f32::NAN; rows * QUERY]);
        let [table, starts, ends] = [table, starts, ends].map(|numbers| upload(&self.device, numbers));
        let seen = (!seen.is_empty()).then(|| upload(&self.device, seen));
        let sinks = sinks.map(|sinks| upload(&self.device, sinks));
        let plan = upload(&self.device, &vec![-1_i32; self.paged.plan_words(rows)]);
        let room = upload(&self.device, &vec![0xff_u8; self.paged.attend_room(rows)]);
        let numbers = |numbers| self.integers(numbers);
        let max_blocks = table.len() / rows;
        let most = max_blocks * self.block_tokens;
        self.paged
            .plan(&self.device, numbers(&ends), Some(numbers(&starts)), 1, most, numbers(&plan))
            .unwrap();
        let table = BlockTable { numbers: numbers(&table), max_blocks };
        let before = counts();
        // SAFETY: the buffers have these lengths, and live until the result is read below.
        unsafe {
            let floats = |x: &CudaSlice<f32>| Raw::new(address(x), x.len(), Element::F32);
            let exact = seen.as_ref().map(|seen| kept.rows(seen));
            let options =
                AttendOptions { scale: Some(scale), exact, sinks: sinks.as_ref().map(floats), lse: None };
            let room = Room::new(address(&room), room.len());
            let queries = self.part(&products, 0, QUERY);
            let to = floats(&out);
            self.paged
                .attend(&self.device, queries, self.pages(), table, numbers(&plan), room, to, options)
                .unwrap();
        }
        assert!(!on_paper() || since(before).launches == 3);
        self.device.stream().clone_dtoh(&out).unwrap()
    }
}

/// Attention in f64 to keys and values of a KV head, with a learned sink.
fn with_sink(query: &[f32], rows: &[[Vec<f32>; 2]], scale: f32, sink: Option<f32>) -> Vec<f64> {
    let dot = |key: &[f32]| query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
    let logits: Vec<f64> = rows.iter().map(|[key, _]| f64::from(scale) * dot(key)).collect();
    let max = logits.iter().copied().chain(sink.map(f64::from)).fold(f64::MIN, f64::max);
    let sum: f64 = logits.iter().copied().chain(sink.map(f64::from)).map(|logit| (logit - max).exp()).sum();
    let mut out = vec![0.0; query.len()];
    for (logit, [_, value]) in logits.iter().zip(rows) {
        let weight = (logit - max).exp() / sum;
        out.iter_mut().zip(value).for_each(|(out, v)| *out += weight * f64::from(*v));
    }
    out
}

/// Tokens of a test: those that are kept, and the places of them; others have places that are none.
fn kept_at(tokens: usize, is_kept: impl Fn(usize) -> bool) -> Vec<i64> {
    let none = [-1, MOST_HELD as i64, 1 << 40, i64::MIN];
    let mut next = (0..MOST_HELD as i64).rev();
    (0..tokens).map(|i| if is_kept(i) { next.next().unwrap() } else { none[i % 4] }).collect()
}

#[test]
fn a_store_keeps_rows_and_attention_takes_them_in_the_launches_of_codes() {
    let engine = Engine::with_rows(layout(CodecId::S4, CodecId::T3));
    let kept = Kept::new(&engine.device);
    let (tokens, codes) = (70, 16..48);
    let products = noise(1, tokens * PRODUCT);
    let at = kept_at(tokens, |i| !codes.contains(&i) && i < 60);
    engine.store_products(&products, &places(&[3, 6], 64, tokens), &kept, &at);
    let part = |token: usize, first: usize| &products[token * PRODUCT + first..][..DIM];
    let mut is_written = [false; PLACES];
    for (token, &place) in at.iter().enumerate().filter(|(_, at)| (0..MOST_HELD as i64).contains(*at)) {
        is_written[place as usize] = true;
        for head in 0..KV_HEADS {
            assert!(kept.row(0, head, place as usize) == part(token, QUERY + head * DIM));
            assert!(kept.row(1, head, place as usize) == part(token, QUERY + ROW + head * DIM));
        }
    }
    for place in (0..PLACES).filter(|place| !is_written[*place]) {
        assert!((0..KV_HEADS).all(|head| kept.row(0, head, place).iter().all(|v| v.is_nan())), "{place}");
    }

    let codecs =
        [CodecId::S4, CodecId::T3].map(|id| AnyCodec::new(id, DIM, Options::DEFAULT.seed(5)).unwrap());
    let decoded = |token: usize, head: usize| {
        [0, 1].map(|side| {
            let mut out = vec![0.0; DIM];
            codecs[side]
                .decode(&blocks(&codecs[side], part(token, QUERY + side * ROW + head * DIM)), &mut out)
                .unwrap();
            out
        })
    };
    // A row that sees codes and exact tokens, one that sees exact tokens alone, and one that sees nothing.
    let queries = noise(2, 3 * PRODUCT);
    let none = vec![-1; tokens];
    let seen = [at.clone(), at.clone(), none.clone()].concat();
    for (scale, sinks) in [(0.125, None), (0.3, Some(&[-1.0, 0.5, 2.0, 6.0][..]))] {
        let (starts, ends) = ([16, 48, 0], [48, 48, 0]);
        let got = engine.attend_products(
            &queries,
            &[3, 6, 3, 6, -1, 9],
            [&starts, &ends],
            &kept,
            &seen,
            (scale, sinks),
        );
        for (row, got) in got.chunks_exact(QUERY).enumerate() {
            for (head, got) in got.chunks_exact(DIM).enumerate() {
                let kv_head = head * KV_HEADS / HEADS;
                let is_seen = |token: &usize| row < 2 && (0..MOST_HELD as i64).contains(&at[*token]);
                let exact = (0..tokens)
                    .filter(is_seen)
                    .map(|token| [0, 1].map(|side| part(token, QUERY + side * ROW + kv_head * DIM).to_vec()));
                let coded = (starts[row]..ends[row]).map(|token| decoded(token as usize, kv_head));
                let rows: Vec<_> = exact.chain(coded).collect();
                let query = &queries[row * PRODUCT + head * DIM..][..DIM];
                let want = with_sink(query, &rows, scale, sinks.map(|sinks| sinks[head]));
                for (got, want) in got.iter().zip(want) {
                    assert!((f64::from(*got) - want).abs() < 2e-4, "{row} {head}: {got} {want}");
                }
            }
        }
        // Sinks need no exact tokens, and neither do codes.
        let (starts, ends) = ([16, 0, 0], [48, 0, 0]);
        let alone = engine.attend_products(
            &queries,
            &[3, 6, 3, 6, -1, 9],
            [&starts, &ends],
            &kept,
            &[],
            (scale, sinks),
        );
        let want = engine.attend_products(
            &queries,
            &[3, 6, 3, 6, -1, 9],
            [&starts, &ends],
            &kept,
            &none.repeat(3),
            (scale, sinks),
        );
        assert!(alone == want && alone[QUERY..].iter().all(|&v| v == 0.0));
    }
}

/// The fake driver stops at any access outside of a buffer.
#[test]
fn places_that_lie_reach_no_row_outside_of_those_that_are_held() {
    let engine = Engine::with_rows(layout(CodecId::S4, CodecId::S4));
    let kept = Kept::new(&engine.device);
    let lies = [-1, i64::MIN, i64::MAX, MOST_HELD as i64, PLACES as i64, 1 << 32, -(1 << 32), i64::MAX - 5];
    let products = noise(1, lies.len() * PRODUCT);
    engine.store_products(&products, &places(&[1], 64, lies.len()), &kept, &lies);
    let is_nan = |side: &CudaSlice<f32>| side.stream().clone_dtoh(side).unwrap().iter().all(|v| v.is_nan());
    assert!(kept.sides.iter().all(is_nan));
    let got = engine.attend_products(&products[..PRODUCT], &[1], [&[0], &[8]], &kept, &lies, (0.125, None));
    let want = engine.attend_products(&products[..PRODUCT], &[1], [&[0], &[8]], &kept, &[], (0.125, None));
    let apart = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 1e-6, "{apart}");
    // Places are right, but what lies there is no number.
    let got = engine.attend_products(&products[..PRODUCT], &[1], [&[0], &[8]], &kept, &[5], (0.125, None));
    assert!(got.iter().all(|v| v.is_nan()));
}

#[test]
fn rows_need_kernels_that_were_made_for_them() {
    let (with, without) = (
        Engine::with_rows(layout(CodecId::S4, CodecId::S4)),
        Engine::new(layout(CodecId::S4, CodecId::S4), 64),
    );
    let (kept, none) = (Kept::new(&with.device), upload(&with.device, &[0_i64]));
    let (floats, room) = (upload(&with.device, &noise(1, QUERY)), upload(&with.device, &vec![0_u8; 1 << 20]));
    let numbers = upload(&with.device, &vec![0_i32; 1 << 12]);
    let message = |engine: &Engine, exact: Option<ExactRows>| {
        // SAFETY: the call is refused before anything is launched.
        let (raw, at, room) = unsafe {
            let room = Room::new(address(&room), room.len());
            (Raw::new(address(&floats), ROW, Element::F32), Integers::i64(address(&none), 1), room)
        };
        engine
            .paged
            .store(&engine.device, raw, raw, at, engine.pages(), exact, room, None)
            .unwrap_err()
            .to_string()
    };
    let rows = kept.rows(&none);
    for refused in [message(&with, None), message(&without, Some(rows))] {
        assert!(refused.contains("expected kernels of Paged::with_rows"), "{refused}");
    }
    let odd = ExactRows { held: PLACES + 1, ..rows };
    assert_eq!(message(&with, Some(odd)), "51 of 50 places of exact rows are not valid");
    // SAFETY: as above.
    let halves = rows.sides.map(|_| unsafe { Raw::new(address(&floats), ROW, Element::F16) });
    assert!(message(&with, Some(ExactRows { sides: halves, held: 1, ..rows })).contains("another type"));
    // SAFETY: as above.
    let refused = unsafe {
        let floats = Raw::new(address(&floats), QUERY, Element::F32);
        let table = BlockTable { numbers: with.integers(&numbers), max_blocks: 1 };
        let room = Room::new(address(&room), room.len());
        let options = AttendOptions { exact: Some(rows), lse: Some(floats), ..AttendOptions::default() };
        with.paged.attend(
            &with.device,
            floats,
            with.pages(),
            table,
            with.integers(&numbers),
            room,
            floats,
            options,
        )
    };
    assert!(refused.unwrap_err().to_string().contains("expected that of codes alone"));
}
