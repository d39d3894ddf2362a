//! A model that converses.

use crate::{Model, ModelError, SpecialTokens};

/// Tokens that end a turn, as the families call them; those of a vocabulary end a text.
const ENDS: [&str; 8] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "</s>",
];

impl Model {
    /// A model that converses: its prompts are those of [`Model::chat_prompt`], which say all special tokens themselves, and the
    /// end of a turn ends a text.
    ///
    /// # Errors
    /// [`ModelError::NoChatTemplate`].
    pub fn into_chat(mut self) -> Result<Self, ModelError> {
        if self.chat.template.is_none() {
            return Err(ModelError::NoChatTemplate);
        }
        self.special = SpecialTokens::Omit;
        for token in ENDS.into_iter().chain(self.chat.eos.as_deref()).filter_map(|end| self.tokenizer.id(end))
        {
            if !self.config.eos_tokens.contains(&token) {
                self.config.eos_tokens.push(token);
            }
        }
        Ok(self)
    }

    /// A question, with what the model is told beforehand where there is something, as its chat template has it.
    ///
    /// # Errors
    /// [`ModelError::NoChatTemplate`], or [`ModelError::Chat`] where the template fails.
    pub fn chat_prompt(&self, system: Option<&str>, user: &str) -> Result<String, ModelError> {
        self.chat.render(system, user)
    }
}
