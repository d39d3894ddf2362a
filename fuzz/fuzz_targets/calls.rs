//! Takes bytes as calls of the C interface, many of them with lengths, types, layers and slots that are wrong. Right
//! calls are accepted, wrong ones refused, and the caches live on.
#![no_main]

#[path = "../../host/capi/tests/it/misuse.rs"]
mod misuse;

use libfuzzer_sys::fuzz_target;
use misuse::Choose;

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
    misuse::live(&mut Choices(data));
});
