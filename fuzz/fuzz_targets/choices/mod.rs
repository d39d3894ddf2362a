//! The choices of a life that bytes stand for.

/// Two bytes each, or one for few alternatives.
pub struct Choices<'a>(pub &'a [u8]);

impl Choices<'_> {
    /// A number below `n`; 0 once there are no more bytes.
    pub fn below(&mut self, n: usize) -> usize {
        let count = if n > 256 { 2 } else { 1 };
        let (now, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        now.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)) % n
    }

    /// True once there are no more bytes.
    #[allow(dead_code, reason = "a target may read to its end without asking")]
    pub fn is_done(&self) -> bool {
        self.0.is_empty()
    }
}

/// The target that lives a life of a module with a trait `Choose` and a function `live`.
#[allow(unused_macros, reason = "targets with choices of their own kind do not use it")]
macro_rules! live {
    ($module:ident) => {
        impl $module::Choose for $crate::choices::Choices<'_> {
            fn below(&mut self, n: usize) -> usize {
                Self::below(self, n)
            }

            fn is_done(&self) -> bool {
                Self::is_done(self)
            }
        }

        libfuzzer_sys::fuzz_target!(|data: &[u8]| {
            $module::live(&mut $crate::choices::Choices(data));
        });
    };
}
