//! A projection `y = W x + b` over many tokens.

use tqkv::matmul::{Mat, MatMut, Store, product};

/// `weight` is `[outputs, inputs]` as Hugging Face stores it.
#[derive(Debug)]
pub(crate) struct Linear {
    pub(crate) weight: Vec<f32>,
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
}

impl Linear {
    /// `x`: `[n, inputs]`; the result is `[n, outputs]`.
    pub(crate) fn forward(&self, x: &[f32]) -> Vec<f32> {
        let mut y = vec![0.0; x.len() / self.inputs * self.outputs];
        self.run(x, &mut y, Store::Replace);
        y
    }

    /// Adds the result to `y`: the residual connection.
    pub(crate) fn forward_add(&self, x: &[f32], y: &mut [f32]) {
        self.run(x, y, Store::Add);
    }

    /// Row `index` of the weight.
    pub(crate) fn row(&self, index: usize) -> &[f32] {
        &self.weight[index * self.inputs..][..self.inputs]
    }

    /// Multiplies one output channel, bias included.
    pub(crate) fn scale_output(&mut self, index: usize, factor: f32) {
        for w in &mut self.weight[index * self.inputs..][..self.inputs] {
            *w *= factor;
        }
        if let Some(bias) = &mut self.bias {
            bias[index] *= factor;
        }
    }

    fn run(&self, x: &[f32], y: &mut [f32], store: Store) {
        let n = x.len() / self.inputs;
        product(
            &mut MatMut::new(y, n, self.outputs, self.outputs),
            Mat::new(x, n, self.inputs, self.inputs),
            Mat::new(&self.weight, self.outputs, self.inputs, self.inputs).transposed(),
            1.0,
            store,
        );
        if let Some(bias) = &self.bias {
            for row in y.chunks_exact_mut(self.outputs) {
                for (y, b) in row.iter_mut().zip(bias) {
                    *y += b;
                }
            }
        }
    }
}
