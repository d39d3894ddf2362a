//! Shared by the tests of the kernels: paged caches, and kernels chosen by codec and head dim.

use crate::warp::{Buffer, Emulated};
use tqkv_core::{AnyCodec, Options};
use tqkv_gpu_kernels::args::{DecodePages, EncodeAppend, RotateQueries, Scores};
use tqkv_gpu_kernels::viterbi::workspace_bytes;
use tqkv_gpu_kernels::{decode, encode, page, score, with_codec, with_groups};

/// Sequences of a layer in pages that are scattered over a pool.
pub(crate) struct Scene {
    /// Tokens per sequence.
    pub(crate) lengths: Vec<u32>,
    /// The first token of each sequence that attention sees.
    pub(crate) starts: Vec<u32>,
    /// Number of KV heads.
    pub(crate) num_kv_heads: u32,
    /// Page table entries per sequence.
    pub(crate) max_pages: u32,
    /// Page numbers, `[sequences, max_pages]`.
    pub(crate) page_table: Vec<u32>,
    /// The sequence of each token, `[tokens]` of all sequences together.
    pub(crate) sequence_of: Vec<u32>,
    /// The position of each token in its sequence, `[tokens]`.
    pub(crate) position_of: Vec<u32>,
}

impl Scene {
    /// Makes sequences of these lengths. Pages are numbered backwards and interleaved.
    pub(crate) fn new(lengths: &[u32], num_kv_heads: u32) -> Self {
        let max_pages = lengths.iter().max().map_or(0, |n| n.div_ceil(page::SLOTS)) + 1;
        let total = lengths.len() as u32 * max_pages;
        let page_table = (0..total).map(|i| (total - 1 - i) * 5 % total).collect::<Vec<_>>();
        let (mut sequence_of, mut position_of) = (Vec::new(), Vec::new());
        for (sequence, &length) in lengths.iter().enumerate() {
            sequence_of.extend((0..length).map(|_| sequence as u32));
            position_of.extend(0..length);
        }
        // No two entries may share a page, so 5 and the number of pages must have no common factor.
        assert!(!total.is_multiple_of(5), "the page order needs a number of pages without the factor 5");
        Self {
            lengths: lengths.to_vec(),
            starts: vec![0; lengths.len()],
            num_kv_heads,
            max_pages,
            page_table,
            sequence_of,
            position_of,
        }
    }

    /// Number of tokens of all sequences.
    pub(crate) fn tokens(&self) -> u32 {
        self.sequence_of.len() as u32
    }

    /// Makes a pool of garbage.
    pub(crate) fn pool(&self, dim: usize, bits: u32) -> Buffer {
        let pages = self.page_table.len() * self.num_kv_heads as usize;
        Buffer::garbage(pages * page::head_bytes(dim as u32, bits) as usize)
    }

    /// Bytes from a page to the next.
    pub(crate) fn stride(&self, dim: usize, bits: u32) -> u32 {
        self.num_kv_heads * page::head_bytes(dim as u32, bits)
    }

    /// The number of the last page.
    pub(crate) fn last_page(&self) -> u32 {
        self.page_table.len() as u32 - 1
    }

    /// The place of each token in the pool.
    fn places(&self) -> Buffer {
        let place = |(&sequence, &position): (&u32, &u32)| {
            let page = self.page_table[(sequence * self.max_pages + position / page::SLOTS) as usize];
            [page * page::SLOTS + position % page::SLOTS, 0]
        };
        let places: Vec<_> = self.sequence_of.iter().zip(&self.position_of).flat_map(place).collect();
        Buffer::from_u32(&places)
    }

    /// Offset of the head of a token in the pool, and its slot.
    pub(crate) fn home(
        &self,
        sequence: u32,
        position: u32,
        head: u32,
        dim: usize,
        bits: u32,
    ) -> (usize, u32) {
        let id = self.page_table[(sequence * self.max_pages + position / page::SLOTS) as usize];
        let at = page::head_offset(id, self.stride(dim, bits), head, dim as u32, bits);
        (at as usize, position % page::SLOTS)
    }

    /// The block of a slot, in the layout of SPEC.md.
    pub(crate) fn block(
        &self,
        pool: &[u8],
        codec: &AnyCodec,
        sequence: u32,
        position: u32,
        head: u32,
    ) -> Vec<u8> {
        let (dim, bits) = (codec.dim(), codec.id().bits());
        let (home, slot) = self.home(sequence, position, head, dim, bits);
        let row = page::row_bytes(dim as u32, bits) as usize;
        let scale = home + page::scale_offset(dim as u32, bits, slot) as usize;
        let codes = home + slot as usize * row;
        [&pool[scale..scale + 2], &pool[codes..codes + row]].concat()
    }

    /// Makes a pool that holds the portable codec's blocks of all tokens.
    pub(crate) fn fill(&self, codec: &AnyCodec, rows: &[f32]) -> Buffer {
        let (dim, bits) = (codec.dim(), codec.id().bits());
        let mut pool = self.pool(dim, bits).bytes();
        let mut block = vec![0; codec.block_bytes()];
        for (i, x) in rows.chunks_exact(dim).enumerate() {
            let (token, head) = (i / self.num_kv_heads as usize, i as u32 % self.num_kv_heads);
            let (home, slot) = self.home(self.sequence_of[token], self.position_of[token], head, dim, bits);
            codec.encode(x, &mut block).unwrap();
            let scale = home + page::scale_offset(dim as u32, bits, slot) as usize;
            let codes = home + slot as usize * (block.len() - 2);
            pool[scale..scale + 2].copy_from_slice(&block[..2]);
            pool[codes..codes + block.len() - 2].copy_from_slice(&block[2..]);
        }
        Buffer::from_bytes(&pool)
    }

    /// Runs `encode_append` over all tokens and returns the outcomes.
    pub(crate) fn encode(&self, codec: &AnyCodec, rows: &Buffer, kind: u32, pool: &Buffer) -> Vec<u32> {
        let (tokens, heads) = (self.tokens(), self.num_kv_heads);
        let signs = signs(codec);
        let places = self.places();
        let outcome = Buffer::garbage(4 * (tokens * heads) as usize);
        let refused = Buffer::from_u32(&[0]);
        let workspace = match codec.id().trellis() {
            Some(_) => workspace_bytes(codec.dim() as u32) * tokens * heads,
            None => 0,
        };
        let workspace = Buffer::garbage(workspace as usize);
        let Options { scale_mode, effort, .. } = codec.options();
        let args = EncodeAppend {
            rows: rows.place(),
            token_stride: heads * codec.dim() as u32,
            kind,
            tokens,
            num_kv_heads: heads,
            signs: signs.place(),
            mode: u32::from(scale_mode.code()),
            effort: effort as u32,
            slots: places.place(),
            pool: pool.place(),
            stride: self.stride(codec.dim(), codec.id().bits()),
            last_page: self.last_page(),
            workspace: workspace.place(),
            outcome: outcome.place(),
            refused: refused.place(),
        };
        // Launches are rounded up to whole blocks, so some warps have no work.
        for warp in 0..tokens * heads + 3 {
            with_codec!(codec.id(), codec.dim(), C, G => {
                encode::encode_append::<Emulated<'_>, C, G>(warp, args)
            });
        }
        let outcomes = outcome.words();
        let any = outcomes.iter().any(|&outcome| outcome != encode::status::DONE);
        assert_eq!(refused.words(), [u32::from(any)], "one word says if a vector was refused");
        outcomes
    }

    /// Runs `decode_pages` over one sequence and returns the bytes of `[tokens, num_kv_heads, dim]`.
    pub(crate) fn decode(&self, codec: &AnyCodec, pool: &Buffer, sequence: u32, kind: u32) -> Buffer {
        let tokens = self.lengths[sequence as usize];
        let size = if kind == encode::element::F32 { 4 } else { 2 };
        let out = Buffer::garbage((tokens * self.num_kv_heads) as usize * codec.dim() * size);
        let table = &self.page_table[(sequence * self.max_pages) as usize..][..self.max_pages as usize];
        let (signs, page_table) = (signs(codec), Buffer::from_u32(table));
        let (offsets, lengths) = (Buffer::from_u32(&[0, tokens]), Buffer::from_u32(&[tokens]));
        let args = DecodePages {
            pool: pool.place(),
            stride: self.stride(codec.dim(), codec.id().bits()),
            last_page: self.last_page(),
            page_table: page_table.place(),
            max_pages: self.max_pages,
            last_entry: self.max_pages - 1,
            shift: 0,
            offsets: offsets.place(),
            lengths: lengths.place(),
            sequences: 1,
            tokens,
            num_kv_heads: self.num_kv_heads,
            signs: signs.place(),
            out: out.place(),
            kind,
        };
        for warp in 0..tokens * self.num_kv_heads + 1 {
            with_codec!(codec.id(), codec.dim(), C, G => {
                decode::decode_pages::<Emulated<'_>, C, G>(warp, args)
            });
        }
        out
    }

    /// Runs `scores` over one sequence and returns `[tokens, num_heads]`.
    pub(crate) fn scores(
        &self,
        codec: &AnyCodec,
        rotated: &Buffer,
        heads: u32,
        pool: &Buffer,
        sequence: u32,
    ) -> Vec<f32> {
        let tokens = self.lengths[sequence as usize];
        let (out, page_table) =
            (Buffer::garbage(4 * (tokens * heads) as usize), Buffer::from_u32(&self.page_table));
        let args = Scores {
            rotated: rotated.place(),
            num_heads: heads,
            pool: pool.place(),
            page_table: page_table.place(),
            max_pages: self.max_pages,
            sequence,
            tokens,
            num_kv_heads: self.num_kv_heads,
            out: out.place(),
        };
        for warp in 0..tokens * heads + 1 {
            with_codec!(codec.id(), codec.dim(), C, G => score::scores::<Emulated<'_>, C, G>(warp, args));
        }
        out.floats()
    }
}

/// The codec's signs, in the form that kernels take.
pub(crate) fn signs(codec: &AnyCodec) -> Buffer {
    Buffer::from_u32(&(0..codec.dim() / 32).map(|g| codec.signs().group(g)).collect::<Vec<_>>())
}

/// Runs `rotate_queries`.
pub(crate) fn rotate(dim: usize, signs: &Buffer, queries: &[f32], rotated: bool, factor: f32) -> Buffer {
    let (input, out) = (Buffer::from_f32(queries), Buffer::garbage(4 * queries.len()));
    let count = (queries.len() / dim) as u32;
    let args = RotateQueries {
        queries: input.place(),
        token_stride: 0,
        heads: count,
        kind: encode::element::F32,
        count,
        signs: signs.place(),
        rotated: u32::from(rotated),
        factor,
        out: out.place(),
    };
    for warp in 0..=count {
        with_groups!(dim, G => score::rotate_queries::<Emulated<'_>, G>(warp, args));
    }
    out
}
