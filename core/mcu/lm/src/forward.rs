//! The forward pass of one token.

use crate::error::LmError;
use crate::logits::Logits;
use crate::model::{Layer, Model};
use crate::rotary::{angles, rotate};
use crate::silu::gated;
use crate::vector::{RESIDUAL_BITS, add, mantissas, narrow};
use tqkv_core::code::Code;
use tqkv_core::fixed::{Kernels, RingCache, Sample};

/// Bits of the mantissas that RoPE rotates; a rotation may grow them by the square root of two.
const TURNED: u32 = 14;

/// The cache of one KV head of one layer. Its parameters are those of the ring.
#[derive(Debug)]
pub struct Head<
    'a,
    const D: usize,
    K: Code,
    V: Code,
    M,
    X: Sample = i8,
    const S: usize = 0,
    const N: usize = 0,
> {
    ring: RingCache<'a, D, K, V, M, X, S, N>,
    /// Largest exponent of a value so far.
    exponent: i32,
}

/// The exponent before the first value.
const NO_VALUE: i32 = -500;

impl<'a, const D: usize, K: Code, V: Code, M: Kernels, X: Sample, const S: usize, const N: usize>
    Head<'a, D, K, V, M, X, S, N>
{
    /// A head that stores its tokens in `ring`.
    pub const fn new(ring: RingCache<'a, D, K, V, M, X, S, N>) -> Self {
        Self { ring, exponent: NO_VALUE }
    }

    /// The keys and values of this head.
    pub const fn ring(&self) -> &RingCache<'a, D, K, V, M, X, S, N> {
        &self.ring
    }
}

/// A running model: weights in flash, rings for its tokens, and a workspace.
#[derive(Debug)]
pub struct Lm<
    'a,
    'r,
    const D: usize,
    K: Code,
    V: Code,
    M,
    X: Sample = i8,
    const S: usize = 0,
    const N: usize = 0,
> {
    model: Model<'a>,
    /// The KV heads of the first layer, then of the next.
    heads: &'a mut [Head<'r, D, K, V, M, X, S, N>],
    residual: &'a mut [i32],
    mantissas: &'a mut [i16],
    sums: &'a mut [i32],
    /// Cosines and sines of the position.
    angles: &'a mut [i32],
    position: u32,
    kernels: M,
}

impl<'a, 'r, const D: usize, K: Code, V: Code, M: Kernels, X: Sample, const S: usize, const N: usize>
    Lm<'a, 'r, D, K, V, M, X, S, N>
{
    /// `heads` are the KV heads of the first layer, then of the next. Each has its own ring, usually empty;
    /// all rings have the same size. `work` has [`crate::Shape::work_words`] words with any content.
    ///
    /// # Errors
    /// The head dim is not the model's, the number of rings is wrong, rings have no room, or the workspace is
    /// too small.
    pub fn new(
        model: Model<'a>,
        heads: &'a mut [Head<'r, D, K, V, M, X, S, N>],
        work: &'a mut [i32],
        kernels: M,
    ) -> Result<Self, LmError> {
        let shape = *model.shape();
        if usize::from(shape.head_dim) != D {
            return Err(LmError::HeadDim { expected: u32::from(shape.head_dim), got: D as u32 });
        }
        if heads.len() != shape.rings() {
            return Err(LmError::Rings { expected: shape.rings() as u32, got: heads.len() as u32 });
        }
        let room = heads.first().map_or(0, |head| head.ring.capacity());
        if room == 0 || heads.iter().any(|head| head.ring.capacity() != room) {
            return Err(LmError::RingSize);
        }
        let short = LmError::Work { expected: shape.work_words() as u32, got: work.len() as u32 };
        let (residual, rest) = work.split_at_mut_checked(usize::from(shape.hidden)).ok_or(short)?;
        let (halves, rest) = rest.split_at_mut_checked(shape.mantissa_words()).ok_or(short)?;
        let (sums, rest) = rest.split_at_mut_checked(shape.sum_words()).ok_or(short)?;
        let (angles, _) = rest.split_at_mut_checked(D).ok_or(short)?;
        let mantissas = bytemuck::try_cast_slice_mut(halves).unwrap_or_default();
        Ok(Self { model, heads, residual, mantissas, sums, angles, position: 0, kernels })
    }

    /// The model.
    pub const fn model(&self) -> &Model<'a> {
        &self.model
    }

    /// Tokens taken since the start.
    pub const fn position(&self) -> u32 {
        self.position
    }

    /// Removes all tokens.
    pub fn clear(&mut self) {
        self.position = 0;
        for head in self.heads.iter_mut() {
            head.ring.clear();
            head.exponent = NO_VALUE;
        }
    }

    /// Takes a token: its keys and values go to the rings, and [`Lm::logits`] then gives the logits of the
    /// next token. A full ring drops its oldest token that is not a sink; positions continue.
    ///
    /// Cost: one product per weight, except those of embedding and head, and attention over all tokens held.
    ///
    /// # Errors
    /// The token is not in the vocabulary. Other errors only follow from damage: keys or values that are too
    /// large, or a cache that something else wrote to. The rings may then hold different tokens: call
    /// [`Lm::clear`].
    #[inline(never)]
    pub fn push(&mut self, token: u32) -> Result<(), LmError> {
        let vocab = self.model.shape().vocab;
        if token >= vocab {
            return Err(LmError::Token { got: token, vocab });
        }
        self.model.tail().embedding.row(token as usize, -RESIDUAL_BITS, self.residual);
        angles(self.model.frequencies(), self.position, self.angles);
        let (model, kv_heads) = (self.model, usize::from(self.model.shape().kv_heads).max(1));
        for (index, layer) in model.layers().enumerate() {
            self.attention(&layer, index * kv_heads)?;
            self.mlp(&layer);
        }
        self.position = self.position.wrapping_add(1);
        Ok(())
    }

    /// The logits of the token after the last one taken. They are in the workspace: the next push overwrites
    /// them.
    #[inline(never)]
    pub fn logits(&mut self) -> Logits<'_> {
        let (shape, tail) = (*self.model.shape(), self.model.tail());
        let x = self.mantissas.get_mut(..usize::from(shape.hidden)).unwrap_or_default();
        let exponent = tail.norm.apply(self.residual, shape.epsilon, self.sums, x);
        let exponent = exponent + tail.head.multiply(self.kernels, x, self.sums);
        Logits { values: self.sums.get(..shape.vocab as usize).unwrap_or_default(), exponent }
    }

    /// Adds the result of attention to the residual stream; `first` is the first KV head of the layer.
    fn attention(&mut self, layer: &Layer<'_>, first: usize) -> Result<(), LmError> {
        let shape = *self.model.shape();
        let x = self.mantissas.get_mut(..usize::from(shape.hidden)).unwrap_or_default();
        let exponent = layer.attention_norm.apply(self.residual, shape.epsilon, self.sums, x);
        let (q, rest) = self.sums.split_at_mut_checked(shape.attended()).unwrap_or_default();
        let (k, v) = rest.split_at_mut_checked(shape.keyed()).unwrap_or_default();
        let q_exponent = exponent + layer.q.multiply(self.kernels, x, q);
        let k_exponent = exponent + layer.k.multiply(self.kernels, x, k);
        let v_exponent = exponent + layer.v.multiply(self.kernels, x, v);
        let kv_heads = usize::from(shape.kv_heads);
        let heads = self.heads.get_mut(first..first + kv_heads).unwrap_or_default();
        let mut most = NO_VALUE;
        for ((head, k), v) in heads.iter_mut().zip(k.as_chunks::<D>().0).zip(v.as_chunks::<D>().0) {
            let (mut key, mut value) = ([0; D], [0; D]);
            let k_exponent = k_exponent + mantissas(k, TURNED, &mut key);
            rotate(&mut key, self.angles);
            let v_exponent = v_exponent + mantissas(v, 15, &mut value);
            head.ring.push(&key, k_exponent, &value, v_exponent).map_err(|_| LmError::Encode)?;
            head.exponent = head.exponent.max(v_exponent);
            most = most.max(head.exponent);
        }
        // The mean of decoded values may be above the largest value.
        let (exponent, group) = (most + 1, usize::from(shape.heads) / kv_heads.max(1));
        let outs = self.mantissas.as_chunks_mut::<D>().0.chunks_exact_mut(group.max(1));
        let queries = q.as_chunks::<D>().0.chunks_exact(group.max(1));
        for ((head, queries), outs) in heads.iter().zip(queries).zip(outs) {
            for (q, out) in queries.iter().zip(outs) {
                let mut query = [0; D];
                let q_exponent = q_exponent + mantissas(q, TURNED, &mut query);
                rotate(&mut query, self.angles);
                head.ring.attend(&query, q_exponent, exponent, out).map_err(|_| LmError::Decode)?;
            }
        }
        let attended = self.mantissas.get(..shape.attended()).unwrap_or_default();
        let exponent = exponent + layer.o.multiply(self.kernels, attended, self.sums);
        add(self.residual, self.sums, exponent);
        Ok(())
    }

    /// Adds the result of the MLP to the residual stream.
    fn mlp(&mut self, layer: &Layer<'_>) {
        let shape = *self.model.shape();
        let x = self.mantissas.get_mut(..usize::from(shape.hidden)).unwrap_or_default();
        let exponent = layer.mlp_norm.apply(self.residual, shape.epsilon, self.sums, x);
        let inner = usize::from(shape.inner);
        let (gate, up) = self.sums.split_at_mut_checked(inner).unwrap_or_default();
        let gate_exponent = exponent + layer.gate.multiply(self.kernels, x, gate);
        let up_exponent = exponent + layer.up.multiply(self.kernels, x, up);
        let x = self.mantissas.get_mut(..inner).unwrap_or_default();
        let gate_exponent = gate_exponent + narrow(gate);
        let up_exponent = up_exponent + narrow(up.get_mut(..inner).unwrap_or_default());
        gated(gate, gate_exponent, up);
        let exponent = gate_exponent + up_exponent + mantissas(gate, 15, x);
        let exponent = exponent + layer.down.multiply(self.kernels, x, self.sums);
        add(self.residual, self.sums, exponent);
    }
}
