//! Takes bytes as the choices of a life of a cache of slots. Four sequences share one stream or have
//! one each, and some write values that are not finite. Rows come back, and every query that sees finite
//! rows alone gets the attention of f64 over them.
#![no_main]

mod choices;

#[path = "../../host/tests/it/slots/lives.rs"]
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
