//! How many of the newest tokens of a layer stay exact.
//!
//! This is the number of [`CacheSpec::hot`]. With [`CacheSpec::narrow_at`] it is as many as leave the cache within a
//! number of bytes, and a function of the number of tokens alone. So codes do not depend on how tokens were appended,
//! cut or restored. It is the longest window whose bytes, by an upper bound of what all layers of that length hold, are
//! within the limit. The bound grows with the window and with the tokens, so what has left the window stays outside.

use super::bytes::{CacheSize, spare_rows};
use super::layer::LayerKind;
use super::life::{BATCH, leaving};
use super::spec::CacheSpec;
use crate::error::CacheError;
use std::sync::Arc;

/// The newest tokens of a layer that stay exact.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// [`CacheSpec::hot`].
    least: usize,
    /// Tokens that queries see.
    most: usize,
    /// What the cache takes, if that decides the window.
    size: Option<Arc<CacheSize>>,
}

impl Window {
    pub(super) fn of(spec: &CacheSpec, layer: usize, size: Option<&Arc<CacheSize>>) -> Self {
        let most = match spec.kind(layer) {
            LayerKind::Sliding(window) => window,
            LayerKind::Full | LayerKind::None => usize::MAX,
        };
        Self { least: spec.hot, most, size: size.cloned() }
    }

    /// Fewest tokens of a full window. Those that wait for a mean or a map are counted from it.
    pub(super) fn least(&self) -> usize {
        self.least
    }

    /// Number of newest tokens that stay exact at a length of `len` tokens.
    pub(super) fn at(&self, len: usize) -> usize {
        let window = self.size.as_ref().map_or(0, |size| size.window(len));
        window.min(self.most).max(self.least)
    }

    /// Number of the oldest of `held` exact tokens that leave at a length of `len` tokens, if none leaves before
    /// `wait` are beyond the least window.
    pub(super) fn leaving(&self, held: usize, len: usize, wait: usize) -> usize {
        if held.saturating_sub(self.least) < wait {
            return 0;
        }
        leaving(self.least, held.saturating_sub(self.at(len)))
    }

    /// Spare rows that this many rows may have.
    pub(super) fn spare(&self, rows: usize) -> usize {
        self.size.as_ref().map_or(0, |_| spare_rows(rows))
    }

    /// Number of newest tokens whose pages are in no colder tier at a length of `len` tokens. A page that is older
    /// was full before its newest token came, so that a chunk of queries can be parted there.
    pub(super) fn warm_tokens(&self, len: usize) -> usize {
        self.at(len.saturating_sub(1)) + BATCH - 1
    }

    /// First length from `from` on at which the first `tokens` tokens may go cold.
    pub(super) fn cools_at(&self, from: usize, tokens: usize) -> usize {
        let is_old = |len: usize| len >= tokens.saturating_add(self.warm_tokens(len));
        let (mut young, mut old) = (from, tokens.saturating_add(self.warm_tokens(from)).max(from));
        if is_old(from) {
            return from;
        }
        // The window only shrinks.
        while old - young > 1 {
            let middle = young + (old - young) / 2;
            if is_old(middle) { old = middle } else { young = middle }
        }
        old
    }
}

/// What a cache takes, if that decides how many of its tokens stay exact.
///
/// # Errors
/// A head dim that a codec does not support.
pub(super) fn narrowing(spec: &CacheSpec) -> Result<Option<Arc<CacheSize>>, CacheError> {
    spec.narrow_at.map(|_| CacheSize::of(spec).map(Arc::new)).transpose()
}

impl CacheSpec {
    /// Keeps all tokens f16 until keys and values of all layers take `bytes` bytes. From then on the oldest are encoded,
    /// as many as keep the cache within the limit, until [`CacheSpec::hot`] tokens are left in f16. From then on it
    /// grows by its codes, and holds what it holds without this setting.
    ///
    /// The limit holds after each step, when all layers have the same number of tokens. Keys wait for their mean (64
    /// beyond [`CacheSpec::hot`]) or for a map (128) whatever the limit, so one that is smaller than these is exceeded
    /// until they leave, by no more than the cache holds without this setting. How many tokens are encoded
    /// depends on their number alone. A fork copies the f16 tokens of a layer when it first appends to it.
    #[must_use]
    pub fn narrow_at(mut self, bytes: usize) -> Self {
        self.narrow_at = Some(bytes);
        self
    }

    /// Number of newest tokens of a layer that stay f16 when it has `tokens` tokens. This is [`CacheSpec::hot`], or with
    /// [`CacheSpec::narrow_at`] all of them until the limit is reached.
    ///
    /// # Errors
    /// A head dim that a codec does not support.
    pub fn hot_at(&self, layer: usize, tokens: usize) -> Result<usize, CacheError> {
        Ok(Window::of(self, layer, narrowing(self)?.as_ref()).at(tokens).min(tokens.max(self.hot)))
    }
}
