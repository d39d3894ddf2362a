//! Windows of a text. Each begins like the model's texts: with BOS, if the tokeniser puts one before a
//! prompt.

use crate::eval::EvalSpec;
use crate::{Model, ModelError, SpecialTokens};

impl Model {
    /// This model without BOS at the start of texts, to compare with figures that were measured without BOS.
    #[must_use]
    pub fn without_bos(mut self) -> Self {
        self.special = SpecialTokens::Omit;
        self
    }

    /// Tokens at the start of every text: the model's BOS, or none.
    pub(crate) fn beginning(&self) -> Result<Vec<u32>, ModelError> {
        if self.special == SpecialTokens::Omit {
            return Ok(Vec::new());
        }
        self.tokenizer.beginning()
    }

    /// The first `most` tokens of a text as the model reads it, BOS included.
    ///
    /// # Errors
    /// Texts that the tokeniser refuses.
    pub fn first_tokens(&self, text: &[u8], most: usize) -> Result<Vec<u32>, ModelError> {
        let mut tokens = self.beginning()?;
        tokens.extend(self.tokenizer.encode(text, SpecialTokens::Omit)?);
        tokens.truncate(most);
        Ok(tokens)
    }

    /// Number of windows of `context` tokens in a text, BOS included.
    ///
    /// # Errors
    /// Texts that the tokeniser refuses, and a `context` that the model does not accept.
    pub fn count_windows(&self, text: &[u8], context: usize) -> Result<usize, ModelError> {
        let fresh = self.fresh_tokens(context, self.beginning()?.len())?;
        Ok(self.tokenizer.encode(text, SpecialTokens::Omit)?.len() / fresh)
    }

    /// The windows of `spec`, one after the other, each `spec.context` tokens long.
    pub(crate) fn windows(&self, text: &[u8], spec: &EvalSpec) -> Result<Vec<Vec<u32>>, ModelError> {
        let beginning = self.beginning()?;
        let fresh = self.fresh_tokens(spec.context, beginning.len())?;
        let tokens = self.tokenizer.encode(text, SpecialTokens::Omit)?;
        let available = tokens.len() / fresh;
        let windows = spec.windows.unwrap_or(available);
        if windows == 0 || windows > available {
            let (context, tokens) = (spec.context, tokens.len());
            return Err(ModelError::Evaluation(if available == 0 {
                format!("the text has {tokens} tokens, too few for a window of {context}")
            } else {
                format!(
                    "{windows} windows of {context} tokens: expected 1 to {available}, because the text has {tokens} tokens"
                )
            }));
        }
        let window = |text: &[u32]| [beginning.as_slice(), text].concat();
        Ok(tokens.chunks_exact(fresh).take(windows).map(window).collect())
    }

    /// Number of tokens in a window that come from the text.
    pub(crate) fn fresh_tokens(&self, context: usize, beginning: usize) -> Result<usize, ModelError> {
        let most = self.config.context;
        if context < beginning + 2 {
            return Err(ModelError::Evaluation(format!(
                "a window of {context} tokens scores nothing; accepted: {} to {most}",
                beginning + 2
            )));
        }
        if context > most {
            return Err(ModelError::Evaluation(format!(
                "windows of {context} tokens do not fit: the model's context is {most}"
            )));
        }
        Ok(context - beginning)
    }
}
