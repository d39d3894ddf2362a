//! The coders of a cache.

use crate::choice::{Choice, ChoiceError, Coders};
use crate::rotation::RotationKind;
use crate::source::Source;
use rayon::prelude::*;
use tqkv::cache::CacheSpec;
use tqkv::error::CacheError;
use tqkv_core::{KvShape, Options};

/// Coders of keys and of values, one per KV head of each layer. A cache of latent vectors has none of values.
#[derive(Debug)]
pub(crate) struct SideCoders {
    shape: KvShape,
    coders: [Vec<Coders>; 2],
}

impl SideCoders {
    pub(crate) fn both(
        spec: &CacheSpec,
        choices: [Choice; 2],
        options: Options,
        rotation: Option<RotationKind>,
    ) -> Result<Self, CacheError> {
        let refused = |error: ChoiceError| CacheError::BadSpec(error.to_string());
        let KvShape { num_layers, num_kv_heads, head_dim, value_dim, .. } = spec.shape;
        let coders = |choice: Choice, dim| -> Result<Vec<Coders>, CacheError> {
            let layers = (0..num_layers).into_par_iter();
            let layers = layers.map(|layer| Coders::new(choice, dim, options, layer, rotation));
            let layers = layers.collect::<Result<Vec<_>, _>>().map_err(refused)?;
            Ok(layers.iter().flat_map(|coder| vec![coder.clone(); num_kv_heads]).collect())
        };
        let values = if spec.position_dim > 0 { Vec::new() } else { coders(choices[1], value_dim)? };
        Ok(Self { shape: spec.shape, coders: [coders(choices[0], head_dim)?, values] })
    }

    /// The coders of a side of a layer.
    pub(crate) fn of(&self, side: usize, layer: usize) -> &[Coders] {
        self.coders[side].get(layer * self.shape.num_kv_heads..).unwrap_or_default()
    }

    /// Learns from the first tokens of a side of a layer, `[n, num_kv_heads, dim]`.
    pub(crate) fn learn_side(&mut self, side: usize, layer: usize, first: &[f32]) {
        let KvShape { num_kv_heads, head_dim, value_dim, .. } = self.shape;
        for (head, coder) in self.coders[side][layer * num_kv_heads..][..num_kv_heads].iter_mut().enumerate()
        {
            let rows = first.chunks_exact([head_dim, value_dim][side]).skip(head).step_by(num_kv_heads);
            *coder = coder.learn(&rows.flatten().copied().collect::<Vec<_>>());
        }
    }
}

impl Source for SideCoders {
    fn learn(&mut self, layer: usize, first: [&[f32]; 2]) {
        first.into_iter().enumerate().for_each(|(side, rows)| self.learn_side(side, layer, rows));
    }

    fn pass(
        &mut self,
        side: usize,
        (layer, head): (usize, usize),
        rows: &mut [f32],
        dim: usize,
    ) -> Result<usize, CacheError> {
        let coder = &self.of(side, layer)[head];
        let mut bytes = 0;
        for row in rows.chunks_exact_mut(dim) {
            bytes += coder.block_bytes();
            coder.pass(row).map_err(|why| {
                CacheError::Encode(format!("layer {layer}, {} of KV head {head}: {why}", SIDES[side]))
            })?;
        }
        Ok(bytes)
    }
}

/// Names of the two sides in errors.
pub(crate) const SIDES: [&str; 2] = ["key", "value"];
