//! Encodes the tokens that leave the hot window next, on a spare thread.
//!
//! A trellis search takes microseconds per vector, forty times as long as a scalar code, and would delay
//! every fourth [`super::KvCache::append`]. The blocks of a token do not depend on later tokens, so they can
//! be made while the token is hot. If no thread had time, the append makes the blocks itself. The results
//! have the same bits either way.

use super::format::PageFormat;
use super::tier::encode_to;
#[cfg(all(loom, test))]
use loom::sync::Mutex;
#[cfg(not(all(loom, test)))]
use std::sync::Mutex;
use std::sync::{Arc, PoisonError};

/// The vectors of some tokens, or their blocks.
#[derive(Debug)]
enum AheadWork {
    Vectors(Vec<f32>),
    Blocks(Vec<u8>),
    /// Encoding failed. The append encodes again and reports the error.
    Failed,
}

impl AheadWork {
    fn finish(&mut self, format: &PageFormat) {
        if let Self::Vectors(x) = self {
            let mut blocks = Vec::new();
            let done = encode_to(format, x, &mut blocks);
            *self = if done.is_ok() { Self::Blocks(blocks) } else { Self::Failed };
        }
    }
}

/// Tokens that are encoded ahead. Copies share the work.
#[derive(Clone, Debug)]
pub(super) struct Ahead {
    /// Position of the first token.
    first: usize,
    bytes: usize,
    begun: bool,
    work: Arc<Mutex<AheadWork>>,
}

impl Ahead {
    /// Takes vectors (`[n, dim]`, less their mean) from position `first` on.
    pub(super) fn new(first: usize, x: Vec<f32>) -> Self {
        let bytes = size_of_val(x.as_slice());
        Self { first, bytes, begun: false, work: Arc::new(Mutex::new(AheadWork::Vectors(x))) }
    }

    /// Hands the work to a spare thread. A call from inside a parallel append would run it there first.
    pub(super) fn begin(&mut self, format: &PageFormat) {
        if !std::mem::replace(&mut self.begun, true) {
            rayon::spawn(self.later(format));
        }
    }

    /// Makes the job for another thread.
    fn later(&self, format: &PageFormat) -> impl FnOnce() + Send + 'static {
        // If the result is not wanted any more, the work has been dropped.
        let (wanted, format) = (Arc::downgrade(&self.work), *format);
        move || {
            if let Some(work) = wanted.upgrade() {
                work.lock().unwrap_or_else(PoisonError::into_inner).finish(&format);
            }
        }
    }

    /// Position of the first token.
    pub(super) fn first(&self) -> usize {
        self.first
    }

    /// Returns the blocks, and makes them here if no thread has begun. `None` if encoding failed.
    pub(super) fn blocks(self, format: &PageFormat) -> Option<Vec<u8>> {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        work.finish(format);
        match &*work {
            AheadWork::Blocks(blocks) => Some(blocks.clone()),
            AheadWork::Vectors(_) | AheadWork::Failed => None,
        }
    }

    /// Upper bound of the allocated bytes.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(all(loom, test))]
mod loom_tests {
    use super::super::format::PageRole;
    use super::super::spec::Arithmetic;
    use super::*;
    use loom::thread;
    use tqkv_core::{AnyCodec, CodecId, Options};
    use tqkv_simd::Level;

    /// Two caches share the work with the spare thread, and one cache may be dropped. Each gets the same
    /// blocks.
    #[test]
    fn loom_blocks_are_made_once_whoever_comes_first() {
        // The codec does not matter; a search would need more stack than loom provides.
        let codec = AnyCodec::new(CodecId::F16, 16, Options::DEFAULT).unwrap();
        let format = PageFormat::new(codec, PageRole::Keys, Arithmetic::F32, Level::Portable);
        let x: Vec<f32> = (0..32).map(|i| (i as f32 * 0.7).sin()).collect();
        let mut want = Vec::new();
        encode_to(&format, &x, &mut want).unwrap();
        loom::model(move || {
            let ahead = Ahead::new(0, x.clone());
            let spare = thread::spawn(ahead.later(&format));
            let (fork, expected) = (ahead.clone(), want.clone());
            let other = thread::spawn(move || assert_eq!(fork.blocks(&format), Some(expected)));
            assert_eq!(ahead.blocks(&format), Some(want.clone()));
            spare.join().unwrap();
            other.join().unwrap();
        });
    }
}
