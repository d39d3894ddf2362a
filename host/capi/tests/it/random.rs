//! Random lives of a cache, of slots and of masks, with mistakes.

use crate::misuse::{Choose, live};

/// Some choices, always the same.
struct Choices {
    state: u64,
    left: usize,
}

impl Choose for Choices {
    fn below(&mut self, n: usize) -> usize {
        self.left = self.left.saturating_sub(1);
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as usize % n
    }

    fn is_done(&self) -> bool {
        self.left == 0
    }
}

#[test]
fn lives_with_mistakes_end_with_a_status() {
    let mut all = [0; 2];
    for seed in 0..60 {
        let counts = live(&mut Choices { state: seed, left: 1500 });
        all.iter_mut().zip(counts).for_each(|(all, count)| *all += count);
    }
    let [accepted, calls] = all;
    println!("{accepted} of {calls} calls were accepted");
    assert!(accepted > calls / 4 && accepted < calls * 9 / 10, "{accepted} of {calls} calls");
}
