//! Encoding ahead: the tokens that leave the hot window next are encoded on a spare thread.
//!
//! A search through a trellis costs microseconds a vector, forty times a scalar code, and would be felt in
//! every fourth [`super::KvCache::append`]. But the blocks of a token depend on nothing that comes after it, so
//! they can be made while the token is still hot. When it leaves, its blocks are there; where no thread had
//! time, the append makes them itself. Results are the same to the bit either way.

use super::format::PageFormat;
use super::tier::encode;
use std::sync::{Arc, Mutex, PoisonError};

/// Some tokens' vectors, or their blocks.
#[derive(Debug)]
enum Work {
    Vectors(Vec<f32>),
    Blocks(Vec<u8>),
    /// The append encodes them and reports the error.
    Failed,
}

impl Work {
    fn finish(&mut self, format: &PageFormat) {
        if let Self::Vectors(x) = self {
            let codec = format.codec();
            let mut blocks = vec![0; x.len() / codec.dim() * codec.block_bytes()];
            let done = encode(format, x, &mut blocks);
            *self = if done.is_ok() { Self::Blocks(blocks) } else { Self::Failed };
        }
    }
}

/// Tokens that are encoded ahead. A copy shares the work.
#[derive(Clone, Debug)]
pub(super) struct Ahead {
    /// Position of the first.
    first: usize,
    bytes: usize,
    begun: bool,
    work: Arc<Mutex<Work>>,
}

impl Ahead {
    /// Vectors (`[n, dim]`, as they will be encoded) from position `first` on.
    pub(super) fn new(first: usize, x: Vec<f32>) -> Self {
        let bytes = size_of_val(x.as_slice());
        Self { first, bytes, begun: false, work: Arc::new(Mutex::new(Work::Vectors(x))) }
    }

    /// Hands the work to a spare thread. Not from inside a parallel append: that would do it first.
    pub(super) fn begin(&mut self, format: &PageFormat) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        // Who no longer wants the result has dropped the work.
        let (wanted, format) = (Arc::downgrade(&self.work), *format);
        rayon::spawn(move || {
            if let Some(work) = wanted.upgrade() {
                work.lock().unwrap_or_else(PoisonError::into_inner).finish(&format);
            }
        });
    }

    /// Position of the first token.
    pub(super) fn first(&self) -> usize {
        self.first
    }

    /// The blocks, made here where no thread has begun; `None` where they could not be made.
    pub(super) fn blocks(self, format: &PageFormat) -> Option<Vec<u8>> {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        work.finish(format);
        match &*work {
            Work::Blocks(blocks) => Some(blocks.clone()),
            Work::Vectors(_) | Work::Failed => None,
        }
    }

    /// Memory that it holds at most.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.bytes
    }
}
