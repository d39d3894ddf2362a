//! The shape of a KV cache, and a chunk of tokens that fits it.
//!
//! Every cache (exact, compressed, on a GPU) and every plan of a cache takes a [`KvShape`] and refuses a bad
//! one with the same error. [`Chunk::new`] checks the lengths of a chunk once, for all caches. Nothing here
//! holds a token: the caches are in the crates `tqkv` and `tqkv-gpu`.

use core::fmt;

/// The number and size of the heads in a decoder's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvShape {
    /// Decoder layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// KV heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Coordinates of a query and of a key.
    pub head_dim: usize,
    /// Coordinates of a value and of a result; equal to `head_dim` in most models.
    pub value_dim: usize,
}

/// Why a shape is not valid for any cache, or an argument not valid for a cache of its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KvError {
    /// A count is zero.
    Zero(KvShape),
    /// The number of query heads is not a multiple of the number of KV heads.
    Heads(KvShape),
    /// One value per head and layer is more than memory can address.
    TooLarge(KvShape),
    /// The layer index is not below the number of layers.
    Layer {
        /// The index that was passed.
        layer: usize,
        /// Layers of the cache.
        num_layers: usize,
    },
    /// The query head index is not below the number of query heads.
    Head {
        /// The index that was passed.
        head: usize,
        /// Query heads of the cache.
        num_heads: usize,
    },
    /// The keys are not a whole number of tokens.
    NotWholeTokens {
        /// Values passed.
        got: usize,
        /// Values of one token: num_kv_heads * head_dim.
        per_token: usize,
    },
    /// The query holds NaN or infinity, so every result would be meaningless.
    Query {
        /// Layer.
        layer: usize,
        /// Token within the chunk.
        token: usize,
        /// Query head.
        head: usize,
    },
    /// The length of a slice does not match the number of tokens.
    Length {
        /// Which argument.
        what: &'static str,
        /// Values passed.
        got: usize,
        /// Values expected.
        expected: usize,
    },
}

impl fmt::Display for KvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero(shape) => write!(f, "{shape}: all must be above 0"),
            Self::Heads(KvShape { num_heads, num_kv_heads, .. }) => {
                write!(f, "{num_heads} query heads do not divide among {num_kv_heads} KV heads")
            }
            Self::TooLarge(shape) => write!(f, "{shape}: more values than memory can address"),
            Self::Layer { layer, num_layers } => {
                write!(f, "layer {layer} is out of range: the cache has {num_layers} layers")
            }
            Self::Head { head, num_heads } => {
                write!(f, "query head {head} is out of range: the cache has {num_heads}")
            }
            Self::NotWholeTokens { got, per_token } => {
                write!(f, "k has {got} values, which is not a whole number of tokens of {per_token} values")
            }
            Self::Query { layer, token, head } => {
                write!(f, "query of layer {layer}, token {token}, head {head}: values must be finite")
            }
            Self::Length { what, got, expected } => write!(f, "{what} has {got} values, expected {expected}"),
        }
    }
}

impl core::error::Error for KvError {}

impl fmt::Display for KvShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { num_layers, num_heads, num_kv_heads, head_dim, value_dim } = self;
        write!(f, "{num_layers} layers, {num_heads} heads, {num_kv_heads} KV heads, head_dim {head_dim}")?;
        if value_dim == head_dim { Ok(()) } else { write!(f, ", value_dim {value_dim}") }
    }
}

impl KvShape {
    /// A shape with values as wide as keys. It is not checked; see [`KvShape::check`].
    pub const fn new(num_layers: usize, num_heads: usize, num_kv_heads: usize, head_dim: usize) -> Self {
        Self { num_layers, num_heads, num_kv_heads, head_dim, value_dim: head_dim }
    }

    /// The same shape with another value width.
    #[must_use]
    pub const fn with_value_dim(self, value_dim: usize) -> Self {
        Self { value_dim, ..self }
    }

    /// Checks that a cache can have this shape.
    ///
    /// # Errors
    /// [`KvError::Zero`], [`KvError::Heads`] or [`KvError::TooLarge`].
    pub const fn check(self) -> Result<(), KvError> {
        let Self { num_layers, num_heads, num_kv_heads, head_dim, value_dim } = self;
        if num_layers == 0 || num_heads == 0 || num_kv_heads == 0 || head_dim == 0 || value_dim == 0 {
            return Err(KvError::Zero(self));
        }
        if !num_heads.is_multiple_of(num_kv_heads) {
            return Err(KvError::Heads(self));
        }
        let (heads, overflows) = num_layers.overflowing_mul(num_heads);
        // Four bytes per value, and at most half of the address space.
        let widest = if value_dim > head_dim { value_dim } else { head_dim };
        if overflows || heads > isize::MAX as usize / 4 / widest {
            return Err(KvError::TooLarge(self));
        }
        Ok(())
    }

    /// Query heads that share a KV head.
    pub const fn group(self) -> usize {
        self.num_heads / self.num_kv_heads
    }

    /// Query values of one token in one layer.
    pub const fn query_values(self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Values of the result for one token in one layer.
    pub const fn out_values(self) -> usize {
        self.num_heads * self.value_dim
    }

    /// Checks that the layer exists.
    ///
    /// # Errors
    /// [`KvError::Layer`].
    pub const fn check_layer(self, layer: usize) -> Result<(), KvError> {
        let num_layers = self.num_layers;
        if layer < num_layers { Ok(()) } else { Err(KvError::Layer { layer, num_layers }) }
    }

    /// The number of tokens of a layer in `k` values of keys (`[n, num_kv_heads, head_dim]`) and `v` values
    /// of values (`[n, num_kv_heads, value_dim]`).
    ///
    /// # Errors
    /// [`KvError::Layer`], [`KvError::NotWholeTokens`] or [`KvError::Length`].
    pub const fn check_tokens(self, layer: usize, k: usize, v: usize) -> Result<usize, KvError> {
        if let Err(error) = self.check_layer(layer) {
            return Err(error);
        }
        let per_token = self.num_kv_heads * self.head_dim;
        if !k.is_multiple_of(per_token) {
            return Err(KvError::NotWholeTokens { got: k, per_token });
        }
        let tokens = k / per_token;
        match check_len("v", v, tokens * self.num_kv_heads * self.value_dim) {
            Ok(()) => Ok(tokens),
            Err(error) => Err(error),
        }
    }

    /// Checks that the query head exists, and that `q` values are one query of it.
    ///
    /// # Errors
    /// [`KvError::Layer`], [`KvError::Head`] or [`KvError::Length`].
    pub const fn check_query(self, layer: usize, head: usize, q: usize) -> Result<(), KvError> {
        if let Err(error) = self.check_layer(layer) {
            return Err(error);
        }
        let num_heads = self.num_heads;
        if head >= num_heads {
            return Err(KvError::Head { head, num_heads });
        }
        check_len("q", q, self.head_dim)
    }

    /// Checks that `q` values are `[n, num_heads, head_dim]`, and that `out` values are `[n, num_heads, value_dim]`.
    /// Numbers alone are asked for, so that queries of any type are checked before they are converted.
    ///
    /// # Errors
    /// [`KvError::Layer`] or [`KvError::Length`].
    pub const fn check_queries(self, layer: usize, n: usize, q: usize, out: usize) -> Result<(), KvError> {
        if let Err(error) = self.check_layer(layer) {
            return Err(error);
        }
        if let Err(error) = check_len("q", q, n * self.query_values()) {
            return Err(error);
        }
        check_len("out", out, n * self.out_values())
    }

    /// Checks that queries, `[n, num_heads, head_dim]`, are finite. The first one is of query head `first`.
    ///
    /// # Errors
    /// [`KvError::Query`] for the first query that is not.
    pub fn check_finite(self, layer: usize, first: usize, q: &[f32]) -> Result<(), KvError> {
        match q.chunks_exact(self.head_dim).position(|q| !is_finite(q)) {
            None => Ok(()),
            Some(i) => {
                let (token, head) = ((first + i) / self.num_heads, (first + i) % self.num_heads);
                Err(KvError::Query { layer, token, head })
            }
        }
    }
}

/// Returns true if no value is NaN or infinite.
fn is_finite(q: &[f32]) -> bool {
    // It does not stop early, so that the loop compiles to a few wide instructions.
    q.iter().fold(true, |finite, x| finite & x.is_finite())
}

/// Checks the length of the argument `what`.
const fn check_len(what: &'static str, got: usize, expected: usize) -> Result<(), KvError> {
    if got == expected { Ok(()) } else { Err(KvError::Length { what, got, expected }) }
}

/// Tokens of one layer and their queries, with lengths that match each other and the shape of a cache.
#[derive(Debug)]
pub struct Chunk<'a> {
    layer: usize,
    tokens: usize,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    out: &'a mut [f32],
}

impl<'a> Chunk<'a> {
    /// Checks a chunk against `shape`, which the caller has checked.
    ///
    /// # Errors
    /// The layer is out of range, a slice has the wrong length, or a query is not finite.
    pub fn new(
        shape: KvShape,
        layer: usize,
        q: &'a [f32],
        k: &'a [f32],
        v: &'a [f32],
        out: &'a mut [f32],
    ) -> Result<Self, KvError> {
        let tokens = shape.check_tokens(layer, k.len(), v.len())?;
        shape.check_queries(layer, tokens, q.len(), out.len())?;
        shape.check_finite(layer, 0, q)?;
        Ok(Self { layer, tokens, q, k, v, out })
    }

    /// The layer.
    pub const fn layer(&self) -> usize {
        self.layer
    }

    /// Number of tokens; may be 0.
    pub const fn tokens(&self) -> usize {
        self.tokens
    }

    /// Queries: `[tokens, num_heads, head_dim]`.
    pub const fn q(&self) -> &'a [f32] {
        self.q
    }

    /// Keys: `[tokens, num_kv_heads, head_dim]`.
    pub const fn k(&self) -> &'a [f32] {
        self.k
    }

    /// Values: `[tokens, num_kv_heads, value_dim]`.
    pub const fn v(&self) -> &'a [f32] {
        self.v
    }

    /// The result: `[tokens, num_heads, value_dim]`.
    pub const fn out(&mut self) -> &mut [f32] {
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn bad_shapes_are_refused_by_what_is_wrong() {
        assert_eq!(KvShape::new(2, 8, 2, 64).check(), Ok(()));
        let message = |shape: KvShape| shape.check().unwrap_err().to_string();
        assert_eq!(
            message(KvShape::new(0, 1, 1, 4)),
            "0 layers, 1 heads, 1 KV heads, head_dim 4: all must be above 0"
        );
        for zero in [KvShape::new(1, 0, 1, 4), KvShape::new(1, 1, 0, 4), KvShape::new(1, 1, 1, 0)] {
            assert_eq!(zero.check(), Err(KvError::Zero(zero)));
        }
        assert_eq!(message(KvShape::new(1, 3, 2, 4)), "3 query heads do not divide among 2 KV heads");
        assert_eq!(KvShape::new(2, 8, 2, 192).with_value_dim(128).check(), Ok(()));
        let narrow = KvShape::new(1, 1, 1, 4).with_value_dim(0);
        assert_eq!(
            message(narrow),
            "1 layers, 1 heads, 1 KV heads, head_dim 4, value_dim 0: all must be above 0"
        );
        for huge in [KvShape::new(usize::MAX, 2, 1, 4), KvShape::new(1 << 20, 1 << 20, 1, usize::MAX >> 30)] {
            assert_eq!(huge.check(), Err(KvError::TooLarge(huge)));
        }
    }

    #[test]
    fn a_chunk_is_refused_by_the_first_thing_that_does_not_fit() {
        let shape = KvShape::new(1, 2, 1, 4);
        let (q, k, mut out) = ([0.0; 8], [0.0; 4], [0.0; 8]);
        let mut error = |layer, q: &[f32], k: &[f32], v: &[f32], out_len: usize| {
            Chunk::new(shape, layer, q, k, v, &mut out[..out_len]).unwrap_err().to_string()
        };
        assert_eq!(error(1, &q, &k, &k, 8), "layer 1 is out of range: the cache has 1 layers");
        assert_eq!(
            error(0, &q, &k[..3], &k, 8),
            "k has 3 values, which is not a whole number of tokens of 4 values"
        );
        assert_eq!(error(0, &q, &k, &k[..3], 8), "v has 3 values, expected 4");
        assert_eq!(error(0, &q[..4], &k, &k, 8), "q has 4 values, expected 8");
        assert_eq!(error(0, &q, &k, &k, 4), "out has 4 values, expected 8");
        let mut bad = q;
        bad[5] = f32::NEG_INFINITY;
        assert_eq!(error(0, &bad, &k, &k, 8), "query of layer 0, token 0, head 1: values must be finite");
        assert_eq!(Chunk::new(shape, 0, &q, &k, &k, &mut out).unwrap().tokens(), 1);
        let narrow = shape.with_value_dim(3);
        assert_eq!(Chunk::new(narrow, 0, &q, &k, &k[..3], &mut out[..6]).unwrap().tokens(), 1);
        assert_eq!(Chunk::new(shape, 0, &[], &[], &[], &mut []).unwrap().tokens(), 0);
    }
}
