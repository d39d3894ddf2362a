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
    pub fn is_done(&self) -> bool {
        self.0.is_empty()
    }
}
