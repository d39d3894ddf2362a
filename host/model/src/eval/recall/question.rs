//! Texts with one question, whose answer is generated.

use super::super::window::Window;
use super::material::Material;

/// What a text tells and asks, in tokens.
pub(super) struct Question {
    /// Comes first: a worked example, or tools.
    pub(super) opening: Vec<u32>,
    /// What must be found, in this order.
    pub(super) told: Vec<Vec<u32>>,
    /// What is told stands at random places of the running text. Otherwise it stands together after it.
    pub(super) is_scattered: bool,
    /// Ends where the answer begins.
    pub(super) question: Vec<u32>,
    pub(super) answer: Vec<u32>,
    /// The strings that a right answer has.
    pub(super) wanted: Vec<String>,
}

impl Question {
    /// Tokens without running text, with those that an answer may have.
    pub(super) fn len(&self) -> usize {
        let told: usize = self.told.iter().map(Vec::len).sum();
        self.opening.len() + told + self.question.len() + self.most()
    }

    /// Most tokens of a generated answer.
    fn most(&self) -> usize {
        2 * self.answer.len()
    }

    /// A window that is as long as `beginning` and `running` together with the longest answer that may be generated.
    /// `None` if the question does not fit.
    pub(super) fn lay(
        self,
        (beginning, running): (&[u32], &[u32]),
        material: &mut Material<'_>,
    ) -> Option<Window> {
        let between = running.len().checked_sub(self.len())?;
        let place = |_| if self.is_scattered { material.random.usize(..=between) } else { between };
        let mut cuts: Vec<_> = self.told.iter().map(place).collect();
        cuts.sort_unstable();
        let mut tokens = [beginning, &self.opening].concat();
        let mut passed = 0;
        for (told, cut) in self.told.iter().zip(cuts) {
            tokens.extend(&running[passed..cut]);
            tokens.extend(told);
            passed = cut;
        }
        tokens.extend(&running[passed..between]);
        let mut window = Window::before_questions(tokens);
        let most = self.most();
        window.tokens.extend(self.question);
        window.answer_with(self.answer, self.wanted, most);
        Some(window)
    }
}
