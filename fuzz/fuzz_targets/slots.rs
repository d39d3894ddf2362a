//! Takes bytes as the choices of a life of a cache of slots. Four sequences share one stream or have
//! one each, and some write values that are not finite. Rows come back, and every query that sees finite
//! rows alone gets the attention of f64 over them.
#![no_main]

#[path = "../../host/tests/it/slots/lives.rs"]
mod lives;

use libfuzzer_sys::fuzz_target;
use lives::Choose;

/// The choices that bytes stand for: two bytes each, or one for few alternatives.
struct Choices<'a>(&'a [u8]);

impl Choose for Choices<'_> {
    fn below(&mut self, n: usize) -> usize {
        let count = if n > 256 { 2 } else { 1 };
        let (now, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        now.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)) % n
    }

    fn is_done(&self) -> bool {
        self.0.is_empty()
    }
}

fuzz_target!(|data: &[u8]| {
    lives::live(&mut Choices(data));
});
