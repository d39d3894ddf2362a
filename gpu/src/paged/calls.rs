//! What the launches of pages take, from memory of any owner.

use super::attention::Table;
use crate::launch::{Memory, TokenVectors, Vectors};

/// A call that encodes keys and values.
pub(crate) struct StoreCall<'a> {
    /// `[tokens, num_kv_heads, head_dim]` of keys and of values.
    pub(crate) rows: [TokenVectors<'a>; 2],
    /// Where the codes go.
    pub(crate) codes: Target<'a>,
    /// Where f16 rows go, if the encoders were made for them.
    pub(crate) exact: Option<Target<'a>>,
    /// Where rows go as they are, if the encoders were made for that.
    pub(crate) kept: Option<Kept<'a>>,
    pub(crate) refused: Memory<'a>,
    pub(crate) tokens: usize,
    /// Most tokens of a launch.
    pub(crate) together: usize,
}

/// Pages that a call writes.
pub(crate) struct Target<'a> {
    /// `[tokens]` in i64.
    pub(crate) places: Memory<'a>,
    pub(crate) pools: [Memory<'a>; 2],
    pub(crate) strides: [u32; 2],
    /// Pages of the pools.
    pub(crate) pages: usize,
    /// For trellis codes the workspace of the vectors of `together` tokens, or of all if there are fewer. f16 rows
    /// need none.
    pub(crate) workspaces: [Option<Memory<'a>>; 2],
    /// `[tokens, num_kv_heads]` of keys and of values.
    pub(crate) outcomes: [Memory<'a>; 2],
}

/// Rows of exact tokens that a call writes as they are.
pub(crate) struct Kept<'a> {
    /// `[tokens]` in i64.
    pub(crate) places: Memory<'a>,
    /// `[num_kv_heads, head_places, head_dim]` of keys and of values, in the type of the call's rows.
    pub(crate) sides: [Memory<'a>; 2],
    pub(crate) head_places: u32,
    /// Places of a head that may be written, the first ones.
    pub(crate) held: u32,
}

/// A call that decodes one side.
pub(crate) struct Gather<'a> {
    pub(crate) pool: Memory<'a>,
    pub(crate) stride: u32,
    pub(crate) table: Table<'a>,
    pub(crate) offsets: Memory<'a>,
    pub(crate) lengths: Memory<'a>,
    pub(crate) sequences: usize,
    /// Rows of `out`.
    pub(crate) tokens: usize,
    pub(crate) out: Vectors<'a>,
    /// True if the pages hold f16 rows.
    pub(crate) is_exact: bool,
}
