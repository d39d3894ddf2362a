//! Answers that a model generates.

use super::window::{Answer, Window};
use crate::sampling::argmax;
use crate::tokenizer::TextStream;
use crate::{Model, ModelError};
use tqkv::attention::AttentionCache;

impl Answer {
    /// Share of the wanted strings that a text has, without regard to case.
    fn score(&self, text: &str) -> f64 {
        let text = text.to_lowercase();
        let found = self.wanted.iter().filter(|wanted| text.contains(&wanted.to_lowercase())).count();
        found as f64 / self.wanted.len() as f64
    }
}

/// The score of the greedy answer of a model that has read the question of a window. `cache` has read it too, and `last`
/// is the hidden state of its last token.
pub(super) fn score(
    model: &Model,
    (window, answer): (&Window, &Answer),
    cache: &mut dyn AttentionCache,
    last: &[f32],
) -> Result<f64, ModelError> {
    generated(model, (window, answer), cache, last).map(|text| answer.score(&text))
}

/// The greedy answer, up to an end token.
fn generated(
    model: &Model,
    (window, answer): (&Window, &Answer),
    cache: &mut dyn AttentionCache,
    last: &[f32],
) -> Result<String, ModelError> {
    let mut stream = TextStream::after(model.tokenizer(), &window.tokens[..answer.begin]);
    let (mut text, mut hidden) = (String::new(), last.to_vec());
    for position in answer.begin..answer.begin + answer.most {
        let wrong = ModelError::NonFiniteLogits { position: position - 1 };
        let token = argmax(&model.logits(&hidden)).ok_or(wrong)? as u32;
        if model.config().eos_tokens.contains(&token) {
            break;
        }
        text += &stream.push(token)?;
        hidden = model.hidden(&[token], position, cache, &mut |_, _, _| {})?;
    }
    Ok(text + &stream.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::{CacheFactory, EvalSpec, Setting, Tally, run};
    use crate::generate::{GenerateSpec, generate};
    use crate::shipped;
    use tqkv::KvShape;
    use tqkv::cache::KvCache;
    use tqkv::error::CacheError;

    #[test]
    fn the_score_is_the_share_of_wanted_strings() {
        let answer = |wanted: &[&str]| Answer {
            wanted: wanted.iter().map(|&word| word.to_owned()).collect(),
            begin: 0,
            most: 0,
        };
        assert_eq!(answer(&["4812", "Oslo"]).score("in OSLO, 4812."), 1.0);
        assert_eq!(answer(&["4812", "Oslo"]).score("in Bergen, 4812."), 0.5);
        assert_eq!(answer(&["4812"]).score("4 812, 481, 812"), 0.0);
    }

    /// A cache without copies.
    struct Alone(KvCache);

    impl AttentionCache for Alone {
        fn shape(&self) -> KvShape {
            self.0.spec().shape
        }

        fn attend_chunk(
            &mut self,
            layer: usize,
            q: &[f32],
            k: &[f32],
            v: &[f32],
            out: &mut [f32],
        ) -> Result<(), CacheError> {
            self.0.attend_chunk(layer, q, k, v, out)
        }

        fn len(&self) -> usize {
            self.0.len()
        }

        fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
            self.0.truncate(len)
        }

        fn reset(&mut self) {
            self.0.reset();
        }

        fn allocated_bytes(&self) -> usize {
            AttentionCache::allocated_bytes(&self.0)
        }
    }

    /// What is generated is what the model says after the question in the same cache, also where a cache has no copies.
    #[test]
    fn the_answer_is_what_the_model_generates() {
        const TOKENS: usize = 24;
        let model = Model::shipped().unwrap();
        let spec = model.config().cache_spec().with("s2 hot=16").unwrap();
        let question = &shipped::HELDOUT_TEXT[..400];
        let generated = generate(
            &model,
            question,
            &GenerateSpec { max_new_tokens: TOKENS, ..GenerateSpec::default() },
            &mut KvCache::new(spec.clone()).unwrap(),
            &mut |_| std::ops::ControlFlow::Continue(()),
        );
        let said = generated.unwrap().text;
        assert_eq!(said.len(), TOKENS, "{said}");
        let score = |wanted: &str, new_cache: Box<CacheFactory<'_>>| {
            let mut window = Window::before_questions(model.first_tokens(question, usize::MAX).unwrap());
            window.answer_with(vec![u32::from(b'!'); 8], vec![wanted.to_owned()], TOKENS);
            let setting = Setting { name: String::new(), new_cache };
            let mut tally = Tally::over(1);
            let of = EvalSpec::new(window.tokens.len(), Some(1));
            run(&model, &window, &of, (&setting, None), &mut tally, &mut |_, _, _| {}).unwrap();
            tally.answers
        };
        let copied = || Box::new(|| Ok(Box::new(KvCache::new(spec.clone())?) as _));
        let alone = || Box::new(|| Ok(Box::new(Alone(KvCache::new(spec.clone())?)) as _));
        assert_eq!(score(&said, copied()), [1.0]);
        assert_eq!(score(&said, alone()), [1.0]);
        assert_eq!(score(&format!("{said}?"), copied()), [0.0]);
    }
}
