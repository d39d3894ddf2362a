//! Learns the moments of keys and queries from text, for maps of keys.

use crate::eval::EvalSpec;
use crate::forward::MAX_CHUNK;
use crate::{Config, Model, ModelError};
use sha2::{Digest, Sha256};
use tqkv::KvShape;
use tqkv::attention::AttentionCache;
use tqkv::cache::{Calibration, Calibrator};
use tqkv::dense::DenseCache;
use tqkv::error::CacheError;

impl Model {
    /// Learns from the first windows of `context` tokens of texts, each with its number of windows.
    /// `progress` receives the tokens of each window.
    ///
    /// # Errors
    /// A model whose caches have no maps, windows that are too short, and errors of tokeniser and model.
    pub fn calibrate(
        &self,
        texts: &[(usize, Vec<u8>)],
        context: usize,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Calibration, ModelError> {
        let mut calibrator = Calibrator::new(&self.config().cache_spec())?;
        // A window is one chunk, so its queries and keys arrive together.
        let least = calibrator.least_tokens();
        if !(least..=MAX_CHUNK).contains(&context) {
            return Err(ModelError::Evaluation(format!(
                "windows of {context} tokens: expected {least} to {MAX_CHUNK}"
            )));
        }
        for (windows, text) in texts {
            for window in self.windows(text, &EvalSpec::new(context, Some(*windows)))? {
                let mut cache = Watched { cache: self.config().dense_cache()?, calibrator: &mut calibrator };
                self.hidden(&window, 0, &mut cache, &mut |_, _, _| {})?;
                progress(context);
            }
        }
        Ok(calibrator.finish(self.config().identity()))
    }
}

impl Config {
    /// SHA-256 of what identifies the model to a file of moments. These are the architecture, the widths, the
    /// numbers of layers and heads, the vocabulary, and the kinds of layers, factor and soft cap of
    /// attention. Weights do not count, so a model that was tuned further has the same hash.
    pub fn identity(&self) -> [u8; 32] {
        let numbers = [self.hidden_size, self.num_layers, self.num_heads, self.num_kv_heads, self.head_dim];
        let text = format!(
            "{:?} {numbers:?} {} {:?} {:?} {:?}",
            self.architecture, self.vocab_size, self.kinds, self.scale, self.soft_cap
        );
        Sha256::digest(text).into()
    }
}

/// An exact cache whose queries and keys teach.
struct Watched<'a> {
    cache: DenseCache,
    calibrator: &'a mut Calibrator,
}

impl AttentionCache for Watched<'_> {
    fn shape(&self) -> KvShape {
        self.cache.shape()
    }

    fn attend_chunk(
        &mut self,
        layer: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        self.calibrator.learn(layer, q, k)?;
        self.cache.attend_chunk(layer, q, k, v, out)
    }

    fn len(&self) -> usize {
        self.cache.len()
    }

    fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        self.cache.truncate(len)
    }

    fn reset(&mut self) {
        self.cache.reset();
    }

    fn allocated_bytes(&self) -> usize {
        self.cache.allocated_bytes()
    }
}
