//! Runs the integer model on this machine, for the known head dims and pairs of cache codecs.

use tqkv_core::code::{Code, I8, S2, S3, S4, T2S8};
use tqkv_core::fixed::{ExactTokens, FixedCodec, RingCache};
use tqkv_core::{CodecId, Portable};
use tqkv_lm::{Head, Lm, LmError, Logits, Model};

/// First tokens and newest tokens that are exact in 8 bits, as in the firmware.
const SINKS: usize = 4;
const NEWEST: usize = 16;

/// A running model: takes tokens and gives logits.
trait Works {
    fn push(&mut self, token: u32) -> Result<(), LmError>;
    fn logits(&mut self) -> Logits<'_>;
    fn clear(&mut self);
}

impl<const D: usize, K: Code, V: Code> Works for Lm<'_, '_, D, K, V, Portable, i8, SINKS, NEWEST> {
    fn push(&mut self, token: u32) -> Result<(), LmError> {
        Self::push(self, token)
    }

    fn logits(&mut self) -> Logits<'_> {
        Self::logits(self)
    }

    fn clear(&mut self) {
        Self::clear(self);
    }
}

/// A flat file that is ready to run.
#[derive(Debug)]
pub(crate) struct FlatRunner<'a> {
    model: Model<'a>,
    caches: (CodecId, CodecId),
    tokens: usize,
}

/// Quality of a flat file on text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FlatFigures {
    /// Number of predicted tokens.
    pub(crate) tokens: usize,
    /// exp(mean negative log likelihood).
    pub(crate) perplexity: f64,
}

impl<'a> FlatRunner<'a> {
    /// Checks the file. Each ring holds `tokens` tokens, 20 at least: the first 4 and the newest 16 exactly, in
    /// 8 bits.
    pub(crate) fn new(file: &'a [u8], caches: (CodecId, CodecId), tokens: usize) -> Result<Self, LmError> {
        let runner = Self { model: Model::load(file)?, caches, tokens };
        runner.with(&mut |_| Ok(()))?;
        Ok(runner)
    }

    /// Feeds `prompt`, then continues with the most likely tokens and returns them.
    pub(crate) fn greedy(&self, prompt: &[u32], tokens: usize) -> Result<Vec<u32>, LmError> {
        let mut written = Vec::with_capacity(tokens);
        self.with(&mut |lm| {
            prompt.iter().try_for_each(|token| lm.push(*token))?;
            for _ in 0..tokens {
                let token = lm.logits().greedy();
                written.push(token);
                lm.push(token)?;
            }
            Ok(())
        })?;
        Ok(written)
    }

    /// Perplexity over windows of tokens, each with an empty cache, as in `tqkv_model::eval`.
    pub(crate) fn perplexity(
        &self,
        tokens: &[u32],
        context: usize,
        windows: usize,
    ) -> Result<FlatFigures, LmError> {
        let (mut sum, mut count) = (0.0, 0);
        self.with(&mut |lm| {
            for window in tokens.chunks_exact(context).take(windows) {
                lm.clear();
                for pair in window.windows(2) {
                    lm.push(pair[0])?;
                    sum += nll(&lm.logits(), pair[1] as usize);
                    count += 1;
                }
            }
            Ok(())
        })?;
        Ok(FlatFigures { tokens: count, perplexity: (sum / count.max(1) as f64).exp() })
    }

    /// Calls `run` with a model whose rings are empty.
    fn with(&self, run: &mut dyn FnMut(&mut dyn Works) -> Result<(), LmError>) -> Result<(), LmError> {
        match self.model.shape().head_dim {
            64 => self.of_dim::<64>(run),
            128 => self.of_dim::<128>(run),
            got => panic!("no loops for head dim {got}"),
        }
    }

    fn of_dim<const D: usize>(
        &self,
        run: &mut dyn FnMut(&mut dyn Works) -> Result<(), LmError>,
    ) -> Result<(), LmError> {
        match self.caches {
            (CodecId::I8, CodecId::I8) => self.of::<D, I8, I8>(run),
            (CodecId::S4, CodecId::S4) => self.of::<D, S4, S4>(run),
            (CodecId::S4, CodecId::S3) => self.of::<D, S4, S3>(run),
            (CodecId::S3, CodecId::S3) => self.of::<D, S3, S3>(run),
            (CodecId::T2S8, CodecId::T2S8) => self.of::<D, T2S8, T2S8>(run),
            (CodecId::S2, CodecId::S2) => self.of::<D, S2, S2>(run),
            (k, v) => panic!("no loops for a cache of {},{}", k.name(), v.name()),
        }
    }

    fn of<const D: usize, K: Code, V: Code>(
        &self,
        run: &mut dyn FnMut(&mut dyn Works) -> Result<(), LmError>,
    ) -> Result<(), LmError> {
        let (keys, values) = (FixedCodec::<D, K>::DEFAULT, FixedCodec::<D, V>::DEFAULT);
        let shape = self.model.shape();
        let room = RingCache::<D, K, V>::bytes_for(self.tokens.saturating_sub(SINKS + NEWEST));
        let mut memory = vec![vec![0; room]; shape.rings()];
        let exact = || ExactTokens::<D, i8, SINKS, NEWEST>::new();
        let mut exact: Vec<_> = std::iter::repeat_with(exact).take(shape.rings()).collect();
        let rings = memory.iter_mut().zip(&mut exact).map(|(memory, exact)| {
            Head::new(RingCache::new(&keys, &values, memory, SINKS).with_exact(exact))
        });
        let mut heads: Vec<_> = rings.collect();
        let mut work = vec![0; shape.work_words()];
        run(&mut Lm::new(self.model, &mut heads, &mut work, Portable)?)
    }
}

/// Negative log likelihood of a token in nats.
fn nll(logits: &Logits<'_>, target: usize) -> f64 {
    let unit = 2f64.powi(logits.exponent);
    let most = logits.values.iter().copied().max().unwrap_or(0);
    let relative = |value: i32| (f64::from(value) - f64::from(most)) * unit;
    let total: f64 = logits.values.iter().map(|value| relative(*value).exp()).sum();
    total.ln() - logits.values.get(target).map_or(f64::NEG_INFINITY, |value| relative(*value))
}
