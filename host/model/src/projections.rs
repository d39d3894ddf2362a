//! The weights of a model, for programs that look at them.

use crate::attention::Attention;
use crate::linear::Linear;
use crate::mlp::Mlp;
use crate::{Model, ModelError};

impl Model {
    /// Shows the projections of each layer in order: its index, a name (`q`, `k`, `v`, `o`, `gate`, `up`,
    /// `down`; of latent attention and of experts only `o`), and the weights as f32, `[outputs, inputs]`. One
    /// is in memory at a time.
    ///
    /// # Errors
    /// A layer that is streamed and cannot be read.
    pub fn projections(&self, show: &mut dyn FnMut(usize, &'static str, &[f32])) -> Result<(), ModelError> {
        let mut weights = Vec::new();
        self.weights.layers.each(&mut |index, layer| {
            let mut each = |name, linear: &Linear| {
                weights.clear();
                (0..linear.outputs()).for_each(|row| linear.push_row(row, &mut weights));
                show(index, name, &weights);
            };
            if let Attention::Heads(heads) = &layer.attention {
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
