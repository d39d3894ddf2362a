//! A model that converses.

use crate::{Model, ModelError, SpecialTokens};

/// Tokens that end a turn, by their names in the families. A model with one of them in its vocabulary also
/// ends its text there.
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
    /// Turns the model into one for conversations. Its prompts come from [`Model::chat_prompt`], which writes
    /// all special tokens itself. The end of a turn ends a text.
    ///
    /// # Errors
    /// [`ModelError::NoChatTemplate`] if the model has none.
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

    /// Renders a question with the model's chat template. `system` holds instructions that come before it, if
    /// there are any.
    ///
    /// # Errors
    /// [`ModelError::NoChatTemplate`], or [`ModelError::Chat`] if the template fails.
    pub fn chat_prompt(&self, system: Option<&str>, user: &str) -> Result<String, ModelError> {
        self.chat.render(system, user)
    }
}
