//! The shapes of layers in a spec, where they differ, and the spec of one layer alone.

use super::layer::{LayerPolicy, LayerShape};
use super::spec::{CacheSpec, MOST_HEADS};
use crate::error::CacheError;
use tqkv_core::KvShape;

impl CacheSpec {
    /// Sets the KV heads and dims of each layer. Latent vectors are refused then.
    ///
    /// ```
    /// use tqkv::cache::{CacheSpec, KvCache, LayerShape};
    ///
    /// // Five layers with a window and narrow heads, then one that sees all tokens.
    /// let sliding = LayerShape { num_kv_heads: 8, head_dim: 256, value_dim: 256 };
    /// let full = LayerShape { num_kv_heads: 1, head_dim: 512, value_dim: 512 };
    /// let mut shapes = vec![sliding; 5];
    /// shapes.push(full);
    /// let spec = CacheSpec::new(6, 16, 8, 256).layer_shapes(shapes);
    /// let mut cache = KvCache::new(spec)?;
    /// cache.append(5, &[0.5; 512], &[0.5; 512])?;
    /// # Ok::<(), tqkv::error::CacheError>(())
    /// ```
    #[must_use]
    pub fn layer_shapes(mut self, shapes: Vec<LayerShape>) -> Self {
        self.layer_shapes = shapes;
        self
    }

    /// The shape of a layer, with the number of all layers.
    pub fn shape_at(&self, layer: usize) -> KvShape {
        match self.layer_shapes.get(layer) {
            None => self.shape,
            Some(&LayerShape { num_kv_heads, head_dim, value_dim }) => {
                KvShape { num_kv_heads, head_dim, value_dim, ..self.shape }
            }
        }
    }

    /// The spec of a cache that has one layer of this spec alone. All that a spec says by layer is cut down to it:
    /// shape, codecs, the tokens that queries see, RoPE, sink logits and moments. Settings of the cache, such as
    /// [`CacheSpec::narrow_at`], stay as they are.
    ///
    /// ```
    /// use tqkv::cache::{CacheSpec, KvCache, LayerKind};
    ///
    /// let spec = CacheSpec::new(2, 8, 2, 64).kinds(vec![LayerKind::Sliding(512), LayerKind::Full]);
    /// let cache = KvCache::new(spec.one_layer(1)?)?;
    /// assert_eq!((cache.spec().shape.num_layers, cache.spec().kind(0)), (1, LayerKind::Full));
    /// # Ok::<(), tqkv::error::CacheError>(())
    /// ```
    ///
    /// # Errors
    /// A layer that is not there, or a spec that [`CacheSpec::check`] refuses for its lists by layer. A layer that
    /// keeps no keys and values ([`super::LayerKind::None`]) has a spec that no cache takes.
    pub fn one_layer(&self, layer: usize) -> Result<Self, CacheError> {
        self.shape.check_layer(layer)?;
        self.layers.check(self.shape.num_layers)?;
        self.check_attention()?;
        let (key, value) = self.named_codecs(layer);
        Ok(Self {
            shape: KvShape { num_layers: 1, ..self.shape_at(layer) },
            layer_shapes: Vec::new(),
            key,
            value,
            layers: LayerPolicy::Uniform,
            kinds: self.kinds.get(layer).copied().into_iter().collect(),
            sink_logits: self.sink_logits_at(layer).to_vec(),
            ..self.clone()
        })
    }

    /// Refuses shapes of layers that no cache can have.
    pub(super) fn check_layer_shapes(&self) -> Result<(), CacheError> {
        let bad = |why: String| Err(CacheError::BadSpec(why));
        let (layers, shapes) = (self.shape.num_layers, self.layer_shapes.len());
        if shapes == 0 {
            return Ok(());
        }
        if shapes != layers {
            return bad(format!("{shapes} shapes for {layers} layers: expected one per layer"));
        }
        for layer in 0..layers {
            let checked = self.shape_at(layer).check();
            checked.map_err(|error| CacheError::BadSpec(format!("layer {layer}: {error}")))?;
        }
        let heads =
            self.layer_shapes.iter().fold(0, |all: usize, shape| all.saturating_add(shape.num_kv_heads));
        if heads > MOST_HEADS {
            return bad(format!("{heads} KV heads in all layers: expected at most {MOST_HEADS}"));
        }
        Ok(())
    }
}
