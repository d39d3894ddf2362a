//! Takes bytes as the choices that make a coded matrix. It is refused with a reason, or it gives its blocks back,
//! its rows are those of the portable decoder, and its products are those of f64 over these rows.
#![no_main]

mod choices;
mod seeds;

#[path = "../../host/model/tests/it/coded_blocks.rs"]
mod coded_blocks;

use choices::Choices;
use coded_blocks::Choose;
use libfuzzer_sys::fuzz_target;

impl Choose for Choices<'_> {
    fn below(&mut self, n: usize) -> usize {
        Choices::below(self, n)
    }
}

fuzz_target!(|data: &[u8]| {
    if let Err(why) = coded_blocks::live(&mut Choices(data)) {
        seeds::refused(why);
    }
});
