//! [`TokenRows`] and [`ExactRows`]: vectors of an engine that are no codes.

use super::layout::{Integers, Layout};
use crate::GpuError;
use crate::launch::{Memory, TokenVectors};
use crate::rows::{Raw, Rows, check_len};

/// Head vectors of an engine's tokens, `[tokens, heads, head_dim]`. Those of a token are in order and without gaps, but
/// tokens may be apart, as the keys among the results of a product that gives queries, keys and values.
#[derive(Clone, Copy, Debug)]
pub struct TokenRows {
    pub(super) values: Raw,
    /// Values from a token to the next. None if they have no gaps either.
    stride: Option<usize>,
}

impl TokenRows {
    /// `values` has the first vector, and counts those of all tokens without the gaps. From a token to the next there
    /// are `stride` values.
    ///
    /// # Safety
    /// What [`Raw::new`] promises of memory without gaps holds for the vectors of each token.
    pub unsafe fn apart(values: Raw, stride: usize) -> Self {
        Self { values, stride: Some(stride) }
    }

    /// The vectors of tokens of `row` values, as kernels take them.
    pub(super) fn vectors<'a>(self, row: usize) -> Result<TokenVectors<'a>, GpuError> {
        let stride = self.stride.unwrap_or(row);
        let stride = u32::try_from(stride).map_err(|_| {
            GpuError::BadSpec(format!(
                "tokens that are {stride} values apart are not valid: expected 32 bits"
            ))
        })?;
        let memory = Memory::Raw(self.values.place(0));
        Ok(TokenVectors { memory, stride, kind: Rows::Raw(self.values).kind() })
    }
}

impl From<Raw> for TokenRows {
    fn from(values: Raw) -> Self {
        Self { values, stride: None }
    }
}

/// Exact tokens of one layer, next to its pages: keys and values as the model computed them.
#[derive(Clone, Copy, Debug)]
pub struct ExactRows {
    /// `[num_kv_heads, places, head_dim]` of keys and of values, in one type, from a multiple of 16 bytes on.
    pub sides: [Raw; 2],
    /// Places of a head that may hold a token, the first ones.
    pub held: usize,
    /// Places (i64) of a head: those to which the tokens of a call go, or `[rows, columns]`, those that each query
    /// token sees. Any other number is no token.
    pub places: Integers,
}

impl ExactRows {
    /// Checks them, and returns the places of a head and those that may hold a token.
    pub(super) fn check(&self, layout: &Layout) -> Result<[u32; 2], GpuError> {
        let refuse = |message: String| Err(GpuError::BadSpec(message));
        self.places.check("places of exact rows", 8, 0)?;
        let [keys, values] = self.sides.map(Rows::Raw);
        check_len("exact values", values.len(), keys.len())?;
        if keys.kind() != values.kind() {
            return refuse("exact keys and values of two types are not valid: expected one".to_owned());
        }
        if let Some(side) = self.sides.iter().find(|side| !side.place(0).is_multiple_of(16)) {
            let address = side.place(0);
            return refuse(format!(
                "exact rows at the address {address:#x} are not valid: expected a multiple of 16"
            ));
        }
        let head_places = keys.len() / (layout.num_kv_heads * layout.head_dim);
        check_len("exact keys", keys.len(), head_places * layout.num_kv_heads * layout.head_dim)?;
        match [head_places, self.held].map(u32::try_from) {
            [Ok(head_places), Ok(held)] if held <= head_places => Ok([head_places, held]),
            _ => refuse(format!("{} of {head_places} places of exact rows are not valid", self.held)),
        }
    }

    pub(super) fn memory<'a>(&self) -> [Memory<'a>; 2] {
        self.sides.map(|side| Memory::Raw(side.place(0)))
    }

    /// The kernels' number for the type.
    pub(super) fn kind(&self) -> u32 {
        Rows::Raw(self.sides[0]).kind()
    }
}
