//! The weights of a model, for programs that inspect them.

use crate::attention::AttentionWeights;
use crate::linear::Linear;
use crate::mlp::Mlp;
use crate::{Model, ModelError};

impl Model {
    /// Calls `show` for the projections of each layer in order. The arguments are the layer, a name, and the
    /// weights as f32, `[outputs, inputs]`. Names are `q`, `k`, `v`, `o`, `gate`, `up` and `down`. Latent
    /// attention shows only `o`, and experts show none. One projection is in memory at a time.
    ///
    /// # Errors
    /// A streamed layer that cannot be read.
    pub fn projections(&self, show: &mut dyn FnMut(usize, &'static str, &[f32])) -> Result<(), ModelError> {
        let mut weights = Vec::new();
        self.weights.layers.each(&mut |index, layer| {
            let mut each = |name, linear: &Linear| {
                weights.clear();
                (0..linear.outputs()).for_each(|row| linear.push_row(row, &mut weights));
                show(index, name, &weights);
            };
            if let AttentionWeights::Heads(heads) = &layer.attention {
                each("q", &heads.q);
                each("k", &heads.k);
                each("v", &heads.v);
            }
            each("o", &layer.o);
            if let Mlp::Gated(gated) = &layer.mlp {
                each("gate", &gated.gate);
                each("up", &gated.up);
                each("down", &gated.down);
            }
            Ok(())
        })
    }
}
