//! Keys and values in the pages of an engine: encodes, attends and decodes without a cache that owns them.
//!
//! | function | what it does | launches |
//! | --- | --- | --- |
//! | [`Paged::store`] | encodes tokens to places of pages, and keeps exact ones; skips negative places | 1 |
//! | [`Paged::plan`] | divides the work of a step among warps, from lengths on the device | 1 |
//! | [`Paged::attend`] | attends over pages by a block table, and to exact tokens | 3 |
//! | [`Paged::gather`] | decodes tokens of sequences to f32, f16 or bf16 | 1 a side |
//! | [`Paged::copy`] | copies blocks | copies |
//!
//! Nothing here waits or reads from the device, and every buffer is the caller's. So a CUDA graph may hold all
//! calls, and lengths need not be known on the host. [`GpuCache`](crate::GpuCache) uses the same launches over
//! pages of its own.
//!
//! A place is 64 times the number of a page, plus the slot in it. If blocks have more tokens than 64, they are
//! pages one after the other, so the place of a token is the number of its block times the tokens of a block,
//! plus its place there. That is what engines call a slot mapping.
//!
//! An engine may hold some tokens exactly too, as [`ExactRows`] in memory next to the pages. It says where they are, and
//! attends to codes from and up to a token, so that it sees each token once. [`Units`] knows this for the first and the
//! newest tokens of each sequence, in three launches of a step.
//!
//! No number on the device can make a kernel read or write outside of the pool: places beyond it are not
//! written, and lengths and block numbers are cut to the table and the pool. What a wrong number gives is the
//! attention over wrong tokens.

pub(crate) mod attention;
mod calls;
pub(crate) mod coder;
mod launches;
mod layout;
pub(crate) mod merge;
mod rows;
mod units;

pub use layout::{BlockTable, Integers, Layout, Pages};
pub(crate) use layout::{MOST_ENTRIES, MOST_PAGES};
pub use rows::{ExactRows, TokenRows};
pub use units::{Seen, UnitRows, Units};

use crate::GpuError;
use crate::current::{Current, Restore};
use crate::device::Device;
use crate::launch::{Memory, TokenVectors};
use crate::rows::{Out, Raw, Rows, Side, check_len};
use crate::spec::{MAX_CHUNK, TRELLIS_VECTORS};
use attention::{Also, Attention, Plan, Scratch, Source, Words};
pub(crate) use calls::{Gather, Kept, StoreCall, Target};
use coder::Coder;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaFunction, result};
use merge::SeenRows;
use std::sync::Arc;
use tqkv_core::CodecId;
use tqkv_gpu_kernels::viterbi::workspace_bytes;

/// The kernels of a [`Layout`] on a device. It holds no tokens. Drop it after all streams on which it worked have
/// done their work; a drop waits for the stream of the device that it was made with.
#[derive(Debug)]
pub struct Paged {
    layout: Layout,
    /// Coders of keys and values. Both are the same object if the codec is the same.
    pub(crate) coders: [Arc<Coder>; 2],
    /// Encodes keys and values in one kernel.
    encode: CudaFunction,
    pub(crate) attention: Attention,
    /// True if the encoder copies rows too.
    keeps_rows: bool,
    /// Decodes f16 rows, if the kernels were made for them.
    pub(crate) decode_exact: Option<CudaFunction>,
    /// The device on which the kernels were loaded.
    device: Device,
    restore: Restore,
}

impl Drop for Paged {
    fn drop(&mut self) {
        self.restore.settle(self.device.stream());
    }
}

/// What holds exact tokens next to the codes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Exact {
    /// Nothing.
    None,
    /// Pages of f16 rows, of which attention takes so many entries for each row in the list of parts.
    Pages(usize),
    /// [`ExactRows`].
    Rows,
}

/// What a call of attention does apart from attention to codes. The default is nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttendOptions {
    /// The factor of logits, a finite number, if it is not 1/sqrt(head_dim).
    pub scale: Option<f32>,
    /// Exact tokens that the query tokens see too, `[rows, columns]`.
    pub exact: Option<ExactRows>,
    /// Learned sinks, `[num_heads]`: logits without a value.
    pub sinks: Option<Raw>,
    /// `[rows, num_heads]` in f32; written: the natural logarithm of the sum of the exponentials of the logits, by which
    /// attention over other tokens can be merged with this one. It is minus infinity for a row that sees no token.
    /// Not with exact tokens or sinks.
    pub lse: Option<Raw>,
}

/// Memory that a call uses until the device has done its work.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    address: CUdeviceptr,
    bytes: usize,
}

impl Room {
    /// `bytes` bytes at `address`, which is a multiple of 256.
    ///
    /// # Safety
    /// The memory is of the device's context, and nothing else uses it until the device has finished the work
    /// of the call.
    pub unsafe fn new(address: CUdeviceptr, bytes: usize) -> Self {
        Self { address, bytes }
    }

    fn check(self, expected: usize) -> Result<(), GpuError> {
        match self.bytes >= expected {
            true => Ok(()),
            false => Err(GpuError::WrongLength { what: "room", got: self.bytes, expected }),
        }
    }

    fn at(self, bytes: usize) -> CUdeviceptr {
        self.address + bytes as CUdeviceptr
    }
}

/// Rounded up, so that what follows begins at a multiple of 256.
fn whole(bytes: usize) -> usize {
    bytes.next_multiple_of(256)
}

impl Paged {
    /// Compiles and loads the kernels of a layout, which takes about a second on a GPU.
    ///
    /// # Errors
    /// [`GpuError::BadSpec`], or the driver's errors.
    pub fn new(device: &Device, layout: Layout) -> Result<Self, GpuError> {
        Self::with_exact(device, layout, Exact::None)
    }

    /// The kernels of pages whose engine has [`ExactRows`] too: a store keeps rows, and attention takes them, and
    /// learned sinks.
    ///
    /// # Errors
    /// The errors of [`Paged::new`].
    pub fn with_rows(device: &Device, layout: Layout) -> Result<Self, GpuError> {
        Self::with_exact(device, layout, Exact::Rows)
    }

    pub(crate) fn with_exact(device: &Device, layout: Layout, exact: Exact) -> Result<Self, GpuError> {
        let _current = Current::keep();
        layout.check()?;
        let key = Arc::new(Coder::new(device, &layout, layout.key)?);
        let value = if layout.value == layout.key {
            key.clone()
        } else {
            Arc::new(Coder::new(device, &layout, layout.value)?)
        };
        let mut names =
            [layout.key, layout.value].map(|id| coder::name("encode_append", id, &layout)).to_vec();
        let (heads, group, dim) = (layout.num_kv_heads, layout.group(), layout.head_dim);
        let mut attention = Attention::new(device, heads, group, dim, layout.formats())?;
        let mut decode_exact = None;
        match exact {
            Exact::None => {}
            Exact::Pages(entries) => {
                names.extend([(); 2].map(|()| coder::name("encode_append", CodecId::F16, &layout)));
                attention = attention.with_exact(device, entries)?;
                let [decode] =
                    device.kernels([coder::name("decode_pages", CodecId::F16, &layout).as_str()])?;
                decode_exact = Some(decode);
            }
            Exact::Rows => {
                names.extend([(); 2].map(|()| format!("keep_rows_d{dim}")));
                attention = attention.with_rows(device)?;
            }
        }
        let encode = device.side_by_side(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
        Ok(Self {
            layout,
            coders: [key, value],
            encode,
            attention,
            keeps_rows: matches!(exact, Exact::Rows),
            decode_exact,
            device: device.clone(),
            restore: Restore::default(),
        })
    }

    /// The layout of the pages.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Most tokens whose keys and values one launch encodes.
    fn tokens_a_launch(&self) -> usize {
        let sides = [self.layout.key, self.layout.value];
        let sides = sides.iter().filter(|id| id.trellis().is_some()).count();
        TRELLIS_VECTORS.checked_div(sides * self.layout.num_kv_heads).unwrap_or(MAX_CHUNK).max(1)
    }

    /// Bytes of the workspace of each side for `tokens` tokens.
    fn workspaces(&self, tokens: usize) -> [usize; 2] {
        let vectors = tokens.min(self.tokens_a_launch()) * self.layout.num_kv_heads;
        let each = workspace_bytes(self.layout.head_dim as u32) as usize;
        [self.layout.key, self.layout.value]
            .map(|id| if id.trellis().is_some() { whole(vectors * each) } else { 0 })
    }

    /// Bytes of the [`Room`] of [`Paged::store`].
    pub fn store_room(&self, tokens: usize) -> usize {
        let [key, value] = self.workspaces(tokens);
        key + value + whole(4 * (1 + 2 * tokens * self.layout.num_kv_heads))
    }

    /// Encodes keys and values, `[tokens, num_kv_heads, head_dim]` with keys after RoPE, to `places` (i64, one of
    /// each token). A token of a negative place is skipped. A vector that cannot be encoded, because it is not
    /// finite or its scale does not fit f16, becomes zeros. Then, and for a place beyond the pool, `refused`
    /// (i32) becomes 1; else it stays as it is.
    ///
    /// With `exact` the rows are also copied as they are, to places of it. These are kernels of [`Paged::with_rows`],
    /// which always do.
    ///
    /// # Errors
    /// Wrong shapes, more tokens than [`MAX_CHUNK`], memory of another device, or the driver's errors.
    #[expect(clippy::too_many_arguments, reason = "each is a tensor of the engine")]
    pub fn store(
        &self,
        device: &Device,
        keys: impl Into<TokenRows>,
        values: impl Into<TokenRows>,
        places: Integers,
        pages: Pages,
        exact: Option<ExactRows>,
        room: Room,
        refused: Option<Integers>,
    ) -> Result<(), GpuError> {
        let _current = Current::keep();
        let (tokens, heads) = (places.len, self.layout.num_kv_heads);
        places.check("places", 8, 0)?;
        check_chunk(tokens)?;
        let row = heads * self.layout.head_dim;
        let (keys, values) = (keys.into(), values.into());
        Rows::Raw(keys.values).check(device, "keys", tokens * row)?;
        Rows::Raw(values.values).check(device, "values", tokens * row)?;
        let rows = [keys.vectors(row)?, values.vectors(row)?];
        let kept = self.kept(exact, &rows, tokens)?;
        room.check(self.store_room(tokens))?;
        if let Some(refused) = refused {
            refused.check("refused", 4, 1)?;
        }
        let [key, value] = self.workspaces(tokens);
        let outcomes = key + value;
        let vectors = 4 * tokens * heads;
        let store = StoreCall {
            rows,
            codes: Target {
                places: Memory::Raw(places.address),
                pools: pages.memory(),
                strides: pages.strides,
                pages: pages.count,
                workspaces: [room.at(0), room.at(key)].map(|room| Some(Memory::Raw(room))),
                outcomes: [room.at(outcomes), room.at(outcomes + vectors)].map(Memory::Raw),
            },
            exact: None,
            kept,
            refused: Memory::Raw(refused.map_or(room.at(outcomes + 2 * vectors), |refused| refused.address)),
            tokens,
            together: self.tokens_a_launch(),
        };
        // SAFETY: lengths were checked above, and who made the addresses vouches for their memory.
        unsafe { self.launch_store(device, store) }
    }

    /// Where a call keeps its rows.
    fn kept<'a>(
        &self,
        exact: Option<ExactRows>,
        rows: &[TokenVectors<'_>; 2],
        tokens: usize,
    ) -> Result<Option<Kept<'a>>, GpuError> {
        if exact.is_some() != self.keeps_rows {
            return Err(merge::without_rows());
        }
        let Some(exact) = exact else { return Ok(None) };
        let [head_places, held] = exact.check(&self.layout)?;
        exact.places.check("places of exact rows", 8, tokens)?;
        if rows.iter().any(|rows| rows.kind != exact.kind()) {
            return Err(GpuError::BadSpec(
                "exact rows of another type than keys and values are not valid: expected the same".to_owned(),
            ));
        }
        let places = Memory::Raw(exact.places.address);
        Ok(Some(Kept { places, sides: exact.memory(), head_places, held }))
    }

    /// Most entries of the list of parts of `rows` query tokens. It depends on them alone.
    fn entries(&self, rows: usize) -> usize {
        self.attention.most_parts(rows)
    }

    /// Words (i32) of the plan of `rows` query tokens.
    pub fn plan_words(&self, rows: usize) -> usize {
        Plan::len(rows, self.entries(rows))
    }

    /// Makes the plan of a step: which warp attends over which pages. All layers of the step share it.
    ///
    /// `lengths` (i32) has the tokens of each sequence in the table, those of this step included. The last
    /// `queries` tokens of each sequence are query tokens, and each sees the tokens up to itself. A length below
    /// 0 counts as 0, one above `max_tokens`, the tokens of a row of the block table, as so long. `plan` (i32)
    /// has [`Paged::plan_words`] words.
    ///
    /// `starts` (i32) has the first token that each sequence's query tokens see, for a sliding window, or where the
    /// tokens before it are attended elsewhere. One below 0 counts as 0. Tokens before it are not read, apart from
    /// those of its page.
    ///
    /// # Errors
    /// Wrong shapes, more query tokens than [`MAX_CHUNK`], or the driver's errors.
    pub fn plan(
        &self,
        device: &Device,
        lengths: Integers,
        starts: Option<Integers>,
        queries: usize,
        max_tokens: usize,
        plan: Integers,
    ) -> Result<(), GpuError> {
        let _current = Current::keep();
        lengths.check("lengths", 4, 0)?;
        if let Some(starts) = starts {
            starts.check("starts", 4, lengths.len)?;
        }
        let rows = lengths.len.saturating_mul(queries);
        check_chunk(rows)?;
        plan.check("the plan", 4, self.plan_words(rows))?;
        if rows == 0 {
            return Ok(());
        }
        // SAFETY: lengths were checked above, and who made the addresses vouches for their memory.
        unsafe {
            self.launch_plan(
                device,
                Memory::Raw(lengths.address),
                (Memory::Raw(starts.unwrap_or(lengths).address), starts.is_some()),
                (rows, queries),
                max_tokens,
                Memory::Raw(plan.address),
            )
        }
    }

    /// Bytes of the [`Room`] of [`Paged::attend`].
    pub fn attend_room(&self, rows: usize) -> usize {
        let queries = rows * self.layout.num_heads * self.layout.head_dim;
        whole(4 * queries) + whole(4 * self.attention.partials(self.entries(rows)))
    }

    /// Attends with the query tokens of a plan, in its order. `queries` and `out` are
    /// `[rows, num_heads, head_dim]`. Logits are scaled by 1/sqrt(head_dim). A row that sees no token gets
    /// zeros, and a query that is not finite gives NaN.
    ///
    /// # Errors
    /// Wrong shapes, a scale that is not finite, exact tokens or sinks without the kernels of [`Paged::with_rows`], or the
    /// driver's errors.
    #[expect(clippy::too_many_arguments, reason = "each is a tensor of the engine")]
    pub fn attend(
        &self,
        device: &Device,
        queries: impl Into<TokenRows>,
        pages: Pages,
        table: BlockTable,
        plan: Integers,
        room: Room,
        out: Raw,
        options: AttendOptions,
    ) -> Result<(), GpuError> {
        let _current = Current::keep();
        let (row, queries) = (self.layout.num_heads * self.layout.head_dim, queries.into());
        let rows = Rows::Raw(queries.values).len() / row;
        check_chunk(rows)?;
        check_len("queries", Rows::Raw(queries.values).len(), rows * row)?;
        let out = Out::Raw(out).memory(device, rows * row)?;
        let also = self.also(options, rows)?;
        table.check()?;
        plan.check("the plan", 4, self.plan_words(rows))?;
        room.check(self.attend_room(rows))?;
        if rows == 0 {
            return Ok(());
        }
        let plan = Plan { words: Words::Raw(plan.address), rows, entries: self.entries(rows) };
        let scratch = Scratch {
            rotated: Memory::Raw(room.at(0)),
            partials: Memory::Raw(room.at(whole(4 * rows * row))),
        };
        let (queries, table) = (queries.vectors(row)?, pages.table(&table));
        // SAFETY: lengths were checked above, and who made the addresses vouches for their memory.
        unsafe {
            let source = Source { pools: self.pools(pages.memory(), pages.strides), table, plan };
            self.attention.run(device, scratch, queries, source, also, out)
        }
    }

    /// The options of attention of `rows` query tokens, as launches take them.
    fn also<'a>(&self, options: AttendOptions, rows: usize) -> Result<Also<'a>, GpuError> {
        let AttendOptions { scale, exact, sinks, lse } = options;
        let heads = self.layout.num_heads;
        if lse.is_some() && (exact.is_some() || sinks.is_some()) {
            return Err(GpuError::BadSpec(
                "the sum of logits with exact tokens or sinks is not valid: expected that of codes alone"
                    .to_owned(),
            ));
        }
        if let Some(scale) = scale.filter(|scale| !scale.is_finite()) {
            return Err(GpuError::BadSpec(format!("scale {scale} is not valid: expected a finite number")));
        }
        if let Some(sinks) = sinks {
            check_len("sinks", Rows::Raw(sinks).len(), heads)?;
        }
        let lse = lse.map(|lse| lse.floats("lse", rows * heads)).transpose()?;
        Ok(Also {
            pages: None,
            rows: exact.map(|exact| self.seen(exact, rows)).transpose()?,
            sinks: sinks.map(|sinks| (Memory::Raw(sinks.place(0)), Rows::Raw(sinks).kind())),
            lse: lse.map(Memory::Raw),
            scale,
        })
    }

    /// The exact tokens that `rows` query tokens see.
    fn seen<'a>(&self, exact: ExactRows, rows: usize) -> Result<SeenRows<'a>, GpuError> {
        let [head_places, held] = exact.check(&self.layout)?;
        let columns = exact.places.len.checked_div(rows).unwrap_or(0);
        check_len("places of exact rows", exact.places.len, rows * columns)?;
        let columns = u32::try_from(columns).ok().filter(|columns| *columns <= u32::MAX >> 3);
        Ok(SeenRows {
            sides: exact.memory(),
            kind: exact.kind(),
            head_places,
            held,
            places: Memory::Raw(exact.places.address),
            columns: columns.ok_or_else(|| GpuError::BadSpec("too many places of exact rows".to_owned()))?,
        })
    }

    /// Decodes the first tokens of sequences to `out`, `[rows, num_kv_heads, head_dim]`. Token t of sequence s
    /// becomes row `offsets[s] + t`; `lengths` (i32) has the number of tokens of each sequence, and `offsets`
    /// (i32, one more) the first row of each, ascending, then the number of rows. Rows without a token stay as
    /// they are.
    ///
    /// # Errors
    /// Wrong shapes, or the driver's errors.
    #[expect(clippy::too_many_arguments, reason = "each is a tensor of the engine")]
    pub fn gather(
        &self,
        device: &Device,
        side: Side,
        pages: Pages,
        table: BlockTable,
        offsets: Integers,
        lengths: Integers,
        out: Raw,
    ) -> Result<(), GpuError> {
        let _current = Current::keep();
        let row = self.layout.num_kv_heads * self.layout.head_dim;
        let tokens = Rows::Raw(out).len() / row;
        check_len("out", Rows::Raw(out).len(), tokens * row)?;
        table.check()?;
        lengths.check("lengths", 4, 0)?;
        offsets.check("offsets", 4, lengths.len + 1)?;
        if tokens == 0 || lengths.len == 0 {
            return Ok(());
        }
        let side = side as usize;
        let [keys, values] = pages.memory();
        let gather = Gather {
            pool: if side == 0 { keys } else { values },
            stride: pages.strides[side],
            table: pages.table(&table),
            offsets: Memory::Raw(offsets.address),
            lengths: Memory::Raw(lengths.address),
            sequences: lengths.len,
            tokens,
            out: Out::Raw(out).memory(device, tokens * row)?,
            is_exact: false,
        };
        // SAFETY: lengths were checked above, and who made the addresses vouches for their memory.
        unsafe { self.launch_gather(device, side, gather) }
    }

    /// Copies blocks, keys and values, in the order of the list: block `from` to block `to` of each pair.
    ///
    /// # Errors
    /// [`GpuError::BadSpec`] if a block is not in the pool; then nothing is copied. The driver's errors.
    pub fn copy(&self, device: &Device, pages: Pages, blocks: &[(usize, usize)]) -> Result<(), GpuError> {
        let _current = Current::keep();
        let all = pages.count >> pages.shift;
        if let Some((from, to)) = blocks.iter().find(|(from, to)| *from.max(to) >= all) {
            return Err(GpuError::BadSpec(format!(
                "a copy of block {from} to {to} is not valid: the pool has {all} blocks"
            )));
        }
        device.context().bind_to_thread()?;
        let of_block = |block: usize| (block << pages.shift)..(block + 1) << pages.shift;
        for &(from, to) in blocks.iter().filter(|(from, to)| from != to) {
            for (from, to) in of_block(from).zip(of_block(to)) {
                for side in 0..2 {
                    let place = |page: usize| {
                        pages.addresses[side] + page as CUdeviceptr * CUdeviceptr::from(pages.strides[side])
                    };
                    let (bytes, stream) = (self.layout.page_bytes()[side], device.stream().cu_stream());
                    // SAFETY: both pages are in the pool, as checked above, and who made `pages` vouches for it.
                    unsafe { result::memcpy_dtod_async(place(to), place(from), bytes, stream) }?;
                }
            }
        }
        Ok(())
    }
}

/// Checks the number of tokens of a call.
fn check_chunk(tokens: usize) -> Result<(), GpuError> {
    match tokens <= MAX_CHUNK {
        true => Ok(()),
        false => Err(GpuError::BadSpec(format!("{tokens} tokens in one call; at most {MAX_CHUNK}"))),
    }
}
