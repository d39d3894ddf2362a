//! Converts text to tokens and back. It uses `tokenizer.json` with the `tokenizers` crate, pieces with
//! scores, or raw bytes.

mod check;
mod library;
pub(crate) mod pieces;

use crate::error::ModelError;
pub use library::Library;
pub use pieces::Pieces;

/// Vocabulary size of a model that reads raw bytes.
const BYTE_VOCAB: usize = 256;

/// A model's tokeniser.
#[derive(Debug)]
pub enum Tokenizer {
    /// Every byte is a token.
    Bytes,
    /// A Hugging Face `tokenizer.json`.
    HuggingFace(Library),
    /// Pieces with scores from a GGUF file.
    Pieces(Pieces),
}

/// The choice to add the tokens around a prompt, such as BOS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Add the tokens of `tokenizer.json`: for prompts.
    Add,
    /// Add no tokens: for text that follows other tokens.
    Omit,
}

impl Tokenizer {
    /// Makes a tokeniser from the bytes of `tokenizer.json`. Without the file it reads raw bytes, and the
    /// vocabulary must have 256 entries.
    ///
    /// Truncation, padding and dropout of merges in the file are switched off, because they would change
    /// prompts.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] or [`ModelError::MissingTokenizer`].
    pub fn new(json: Option<&[u8]>, vocab_size: usize) -> Result<Self, ModelError> {
        match json {
            Some(json) => Library::new(json, vocab_size).map(Self::HuggingFace).map_err(|e| bad(&e)),
            None if vocab_size == BYTE_VOCAB => Ok(Self::Bytes),
            None => Err(ModelError::MissingTokenizer { vocab_size }),
        }
    }

    /// Tokens of a text. Raw-byte models accept any bytes.
    ///
    /// # Errors
    /// [`ModelError::NotUtf8`], or [`ModelError::Tokenizer`], also for tokens beyond the model's vocabulary.
    /// Raw-byte models give no error.
    pub fn encode(&self, text: &[u8], special: SpecialTokens) -> Result<Vec<u32>, ModelError> {
        match self {
            Self::Bytes => Ok(text.iter().map(|b| u32::from(*b)).collect()),
            Self::HuggingFace(tokenizer) => {
                let text = std::str::from_utf8(text)
                    .map_err(|e| ModelError::NotUtf8 { valid_up_to: e.valid_up_to() })?;
                tokenizer.encode(text, special == SpecialTokens::Add).map_err(|e| bad(&e))
            }
            Self::Pieces(pieces) => {
                let text = std::str::from_utf8(text)
                    .map_err(|e| ModelError::NotUtf8 { valid_up_to: e.valid_up_to() })?;
                Ok(pieces.encode(text, special == SpecialTokens::Add))
            }
        }
    }

    /// Tokens that [`SpecialTokens::Add`] puts before a text.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`].
    pub(crate) fn beginning(&self) -> Result<Vec<u32>, ModelError> {
        const TEXT: &[u8] = b"a";
        let mut with = self.encode(TEXT, SpecialTokens::Add)?;
        let without = self.encode(TEXT, SpecialTokens::Omit)?;
        let at = with.windows(without.len().max(1)).position(|tokens| tokens == without);
        with.truncate(at.unwrap_or(0));
        Ok(with)
    }

    /// The id of a token by its name. Raw bytes have no names.
    pub(crate) fn id(&self, token: &str) -> Option<u32> {
        match self {
            Self::Bytes => None,
            Self::HuggingFace(tokenizer) => tokenizer.id(token),
            Self::Pieces(pieces) => pieces.id(token),
        }
    }

    /// Text of tokens, without special tokens. Bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`].
    pub fn decode(&self, tokens: &[u32]) -> Result<String, ModelError> {
        match self {
            Self::Bytes => {
                let bytes: Vec<u8> = tokens.iter().map(|t| *t as u8).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            Self::HuggingFace(tokenizer) => tokenizer.decode(tokens).map_err(|e| bad(&e)),
            Self::Pieces(pieces) => Ok(pieces.decode(tokens)),
        }
    }
}

fn bad(error: &dyn std::fmt::Display) -> ModelError {
    ModelError::Tokenizer(error.to_string().replace('\n', " "))
}

/// Text as it grows, token by token.
///
/// A token may hold part of a character, and a decoder may place spaces depending on earlier tokens. A piece
/// is therefore the difference between the decoded text with and without the newest tokens. It is held back
/// while it ends in an incomplete character.
pub(crate) struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    tokens: Vec<u32>,
    /// Tokens before this one are only context.
    context_from: usize,
    /// Tokens before this one have been emitted.
    emitted: usize,
}

impl<'a> TextStream<'a> {
    /// The text after `prompt`. The prompt is not emitted: it only determines whether the first piece begins
    /// with a space.
    pub(crate) fn after(tokenizer: &'a Tokenizer, prompt: &[u32]) -> Self {
        Self { tokenizer, tokens: prompt.to_vec(), context_from: 0, emitted: prompt.len() }
    }

    /// The text that this token completes. Empty while a character is incomplete.
    pub(crate) fn push(&mut self, token: u32) -> Result<String, ModelError> {
        self.tokens.push(token);
        // In a byte-level vocabulary, four tokens always hold a complete UTF-8 character. More tokens than
        // that are not UTF-8.
        let open = self.tokens.len() - self.emitted < 4;
        self.take(open)
    }

    /// The text that is still held back.
    pub(crate) fn finish(&mut self) -> Result<String, ModelError> {
        self.take(false)
    }

    fn take(&mut self, hold_incomplete: bool) -> Result<String, ModelError> {
        let before = self.tokenizer.decode(&self.tokens[self.context_from..self.emitted])?;
        let all = self.tokenizer.decode(&self.tokens[self.context_from..])?;
        if hold_incomplete && all.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        self.context_from = self.emitted;
        self.emitted = self.tokens.len();
        Ok(all.strip_prefix(before.as_str()).unwrap_or(&all).to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip_and_characters_stream_whole() {
        let t = Tokenizer::new(None, 256).unwrap();
        let text = "h\u{e9}\u{1f980}!";
        let tokens = t.encode(text.as_bytes(), SpecialTokens::Add).unwrap();
        assert_eq!(tokens.len(), text.len());
        assert_eq!(t.decode(&tokens).unwrap(), text);
        let mut stream = TextStream::after(&t, &[]);
        let mut pieces: Vec<String> = tokens.iter().map(|&i| stream.push(i).unwrap()).collect();
        pieces.push(stream.finish().unwrap());
        pieces.retain(|p| !p.is_empty());
        assert_eq!(pieces, ["h", "\u{e9}", "\u{1f980}", "!"]);
    }

    #[test]
    fn bytes_that_are_no_text_still_come_out() {
        let t = Tokenizer::new(None, 256).unwrap();
        let mut stream = TextStream::after(&t, &[]);
        let mut text = String::new();
        for token in [0x41, 0xff, 0xff, 0xff, 0xff, 0x42, 0xe2] {
            text += &stream.push(token).unwrap();
        }
        text += &stream.finish().unwrap();
        assert_eq!(text, "A\u{fffd}\u{fffd}\u{fffd}\u{fffd}B\u{fffd}");
    }

    #[test]
    fn a_missing_or_broken_tokeniser_is_named() {
        let missing = Tokenizer::new(None, 257).unwrap_err().to_string();
        assert!(missing.contains("vocab_size 256") && missing.contains("257"), "{missing}");
        let broken = Tokenizer::new(Some(b"{\n"), 256).unwrap_err().to_string();
        assert!(broken.starts_with("tokenizer.json: ") && !broken.contains('\n'), "{broken}");
    }
}
