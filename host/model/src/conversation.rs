//! A model that converses.

use std::ops::ControlFlow;

use tqkv::attention::AttentionCache;

use crate::chat::Message;
use crate::generate::{GenerateSpec, Generation, encode_prompt, generate_after};
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
        let mut messages = Conversation::new(system).messages;
        messages.push(Message::new("user", user));
        self.chat.render(&messages)
    }
}

/// Several turns with a model of [`Model::into_chat`], which share one cache: a question runs only its own
/// tokens, and those of the last answer where the template writes them in another way than the model did.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    messages: Vec<Message>,
    /// The tokens that the cache holds.
    held: Vec<u32>,
}

impl Conversation {
    /// A conversation without a question. `system` holds instructions that come before it.
    pub fn new(system: Option<&str>) -> Self {
        let system = system.map(|system| Message::new("system", system));
        Self { messages: system.into_iter().collect(), held: Vec::new() }
    }

    /// Asks, and generates the answer as [`generate`](crate::generate::generate) does. `cache` is the same in all turns of a
    /// conversation, and empty in the first. An answer ends where the context of the model does, and one that
    /// `on_text` cuts short is part of the conversation as far as it came.
    ///
    /// # Errors
    /// Those of [`Model::chat_prompt`] and of [`generate`](crate::generate::generate). The question is then not part of the
    /// conversation.
    pub fn ask(
        &mut self,
        model: &Model,
        question: &str,
        spec: &GenerateSpec,
        cache: &mut dyn AttentionCache,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generation, ModelError> {
        self.messages.push(Message::new("user", question));
        let answered = self.answer(model, spec, cache, on_text);
        match &answered {
            Ok(made) => self.messages.push(Message::new("assistant", &made.text)),
            Err(_) => {
                self.messages.pop();
                self.held.truncate(cache.len());
            }
        }
        answered
    }

    fn answer(
        &mut self,
        model: &Model,
        spec: &GenerateSpec,
        cache: &mut dyn AttentionCache,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generation, ModelError> {
        let least = GenerateSpec { max_new_tokens: 1, ..*spec };
        let prompt = encode_prompt(model, model.chat.render(&self.messages)?.as_bytes(), &least)?;
        let room = model.config().context - prompt.len();
        let spec = GenerateSpec { max_new_tokens: spec.max_new_tokens.min(room), ..*spec };
        let same = self.held.iter().zip(&prompt).take_while(|(held, token)| held == token).count();
        // The last token runs in any case, because the next one follows from its logits.
        self.held.truncate(same.min(prompt.len() - 1));
        if cache.truncate(self.held.len()).is_err() {
            // A window has evicted what the shorter sequence would see.
            cache.reset();
            self.held.clear();
        }
        let made = generate_after(model, &prompt, self.held.len(), &spec, cache, on_text)?;
        self.held = prompt;
        self.held.extend(&made.tokens);
        self.held.truncate(cache.len());
        Ok(made)
    }
}
