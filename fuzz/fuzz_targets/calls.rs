//! Takes bytes as calls of the C interface, many of them with lengths, types, layers and slots that are wrong. Right
//! calls are accepted, wrong ones refused, and the caches live on.
#![no_main]

mod choices;

#[path = "../../host/capi/tests/it/misuse.rs"]
mod misuse;

use choices::Choices;
use libfuzzer_sys::fuzz_target;
use misuse::Choose;

impl Choose for Choices<'_> {
    fn below(&mut self, n: usize) -> usize {
        Choices::below(self, n)
    }

    fn is_done(&self) -> bool {
        Choices::is_done(self)
    }
}

fuzz_target!(|data: &[u8]| {
    misuse::live(&mut Choices(data));
});
