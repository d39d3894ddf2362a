//! The outlier variant: large key channels in a model that has none. The function of the model stays the
//! same.
//!
//! Large models have a few key channels many times stronger than the rest, and block formats handle them
//! badly. Here some K channels are scaled by 8 and the same Q channels by 1/8. Every dot product stays the
//! same, and so does the f32 model. The channels come in RoPE pairs (c, c + 64), so the scaling commutes with
//! the rotation.

use crate::Model;
use crate::attention::AttentionWeights;
use crate::error::ModelError;

/// Scaled channels: the pairs (40, 104), (50, 114), (60, 124) of a head of 128.
pub const OUTLIER_CHANNELS: [usize; 6] = [40, 50, 60, 104, 114, 124];
/// Factor on keys. Queries get its inverse. It is a power of two, so no rounding changes.
pub const OUTLIER_FACTOR: f32 = 8.0;
const HEAD_DIM: usize = 128;

impl Model {
    /// This model with outlier key channels. In exact arithmetic it is the same function.
    ///
    /// # Errors
    /// [`ModelError::OutlierHeadDim`] if the head dim is not 128, [`ModelError::Variant`],
    /// [`ModelError::Streamed`].
    pub fn into_outlier_variant(mut self) -> Result<Self, ModelError> {
        let head_dim = self.config.head_dim;
        if head_dim != HEAD_DIM {
            return Err(ModelError::OutlierHeadDim { head_dim });
        }
        if self.config.rotary.dim != head_dim || self.config.latent.is_some() {
            let what = "RoPE on a part of each head";
            return Err(ModelError::Variant { variant: "outlier", what });
        }
        let channels = |heads: usize, factor: f32| {
            let of_head = move |head| OUTLIER_CHANNELS.map(|channel| (head * HEAD_DIM + channel, factor));
            (0..heads).flat_map(of_head)
        };
        for layer in self.weights.layers.resident_mut()? {
            let AttentionWeights::Heads(heads) = &mut layer.attention else { continue };
            match &mut heads.qk_norm {
                // A norm follows the projection and would undo the scaling, so the weight of the norm is
                // scaled.
                Some((q_norm, k_norm)) => {
                    for channel in OUTLIER_CHANNELS {
                        q_norm[channel] /= OUTLIER_FACTOR;
                        k_norm[channel] *= OUTLIER_FACTOR;
                    }
                }
                None => {
                    heads.q.scale_outputs(channels(self.config.num_heads, 1.0 / OUTLIER_FACTOR));
                    heads.k.scale_outputs(channels(self.config.num_kv_heads, OUTLIER_FACTOR));
                }
            }
        }
        Ok(self)
    }
}
