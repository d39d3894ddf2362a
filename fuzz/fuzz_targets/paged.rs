//! Takes bytes as the choices of a life of the blocks of an engine: sequences that store, share, copy and free blocks, and
//! attend in batches. Attention is that of f64, and numbers that are wrong leave no trace.
#![no_main]

mod choices;

#[path = "../../host/tests/it/paged/lives.rs"]
mod lives;

use choices::Choices;
use libfuzzer_sys::fuzz_target;
use lives::Choose;

impl Choose for Choices<'_> {
    fn below(&mut self, n: usize) -> usize {
        Choices::below(self, n)
    }

    fn is_done(&self) -> bool {
        Choices::is_done(self)
    }
}

fuzz_target!(|data: &[u8]| {
    lives::live(&mut Choices(data));
});
