//! Tokens of the storage tier: bytes with and without their basis.

use half::f16;
use tqkv_storage::{Budget, MAX_TOKENS, Rope, Shape, Span, StorageCodec};

use super::{CacheShape, LayerPlan};
use crate::error::CliError;

/// Chunks of a model's tokens.
pub(crate) struct StorageTier {
    codec: StorageCodec,
    /// Bytes of the default basis for a model of this shape, needed once for all stored tokens.
    pub(crate) basis_bytes: u64,
}

impl StorageTier {
    /// Refuses head dims that chunks do not have.
    pub(crate) fn new(shape: &CacheShape) -> Result<Self, CliError> {
        let layer = shape.uniform().ok_or_else(|| {
            CliError::bad_input("stored tokens have one shape in all layers, and this model has several")
        })?;
        // The form of RoPE has no effect on sizes.
        let value_dim = if layer.is_latent() { 0 } else { layer.value_dim };
        let (layers, heads) = (shape.num_layers(), layer.num_kv_heads);
        let shape = Shape::new(layers, heads, layer.head_dim, value_dim, Rope::none())
            .map_err(CliError::bad_input)?;
        let basis_bytes = shape.basis_bytes(shape.join());
        Ok(Self { codec: StorageCodec::new(shape, None).map_err(CliError::bad_input)?, basis_bytes })
    }

    /// Bytes of a token after the first four, in a full chunk; rounded up.
    pub(crate) fn bytes_per_token(&self, bits: Budget) -> Result<u64, CliError> {
        let span = Span::of(self.codec.shape(), MAX_TOKENS as u64, MAX_TOKENS);
        let bytes = self.codec.encoded_bytes::<f16>(bits, &span).map_err(CliError::bad_input)?;
        Ok(bytes.div_ceil(MAX_TOKENS) as u64)
    }
}
