//! The `tokenizers` library behind a guard: a malformed `tokenizer.json` gives an error, never a panic.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;
use std::thread::Builder;

use serde_json::Value;
use tokenizers::Tokenizer;

use super::check;

/// Stack of the thread that parses. The library's recursion is as deep as the nesting of the file.
const STACK: usize = 16 << 20;

/// A text with parts that tokenisers treat in different ways.
const TRIAL: &str =
    "Two  words, 1234 'tis\n\n\tna\u{ef}ve \u{1f980} \u{4f60}\u{597d} e\u{301} <s> x = [0];\r\n ";

/// Tokens at each end of the vocabulary that are tried.
const TRIED: u32 = 64;

/// A tokeniser that has passed its trial.
#[derive(Debug)]
pub struct Library {
    tokenizer: Box<Tokenizer>,
    /// Vocabulary size of the model.
    vocab_size: usize,
}

impl Library {
    /// Parses `tokenizer.json` and tries the tokeniser.
    pub(super) fn new(json: &[u8], vocab_size: usize) -> Result<Self, String> {
        let value = check::checked(json)?;
        let parse = || {
            let tokenizer = guarded(|| parse(value).map_err(|error| error.to_string()))??;
            let made = Self { tokenizer: Box::new(tokenizer), vocab_size };
            made.try_out()?;
            Ok(made)
        };
        std::thread::scope(|scope| {
            let thread = Builder::new().name("tokenizer".into()).stack_size(STACK).spawn_scoped(scope, parse);
            let thread = thread.map_err(|error| format!("no thread to read it: {error}"))?;
            thread.join().unwrap_or_else(|panic| Err(said(&*panic)))
        })
    }

    fn try_out(&self) -> Result<(), String> {
        for special in [false, true] {
            let ids = self.ids(TRIAL, special)?;
            self.decode(&ids)?;
        }
        let end = u32::try_from(self.tokenizer.get_vocab_size(true)).unwrap_or(u32::MAX);
        (0..end.min(TRIED))
            .chain(end.saturating_sub(TRIED)..end)
            .try_for_each(|id| self.decode(&[id]).map(drop))
    }

    fn ids(&self, text: &str, special: bool) -> Result<Vec<u32>, String> {
        let encoding = guarded(|| self.tokenizer.encode_fast(text, special))?;
        encoding.map(|encoding| encoding.get_ids().to_vec()).map_err(|error| error.to_string())
    }

    /// Tokens of a text. All must be in the model's vocabulary.
    pub(super) fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, String> {
        let ids = self.ids(text, special)?;
        match ids.iter().find(|&&id| id as usize >= self.vocab_size) {
            Some(&id) => {
                let token = self.tokenizer.id_to_token(id).unwrap_or_default();
                Err(format!("the token {token:?} is {id}, and the model's vocab_size is {}", self.vocab_size))
            }
            None => Ok(ids),
        }
    }

    /// The id of a token, if the model has it.
    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token).filter(|id| (*id as usize) < self.vocab_size)
    }

    pub(super) fn decode(&self, ids: &[u32]) -> Result<String, String> {
        guarded(|| self.tokenizer.decode(ids, true))?.map_err(|error| error.to_string())
    }
}

/// The library's tokeniser. Its ids must be those of the file.
fn parse(value: Value) -> tokenizers::Result<Tokenizer> {
    let said = |token: &Value| Some((token["content"].as_str()?.to_owned(), token["id"].as_u64()?));
    let added: Vec<_> = value["added_tokens"].as_array().into_iter().flatten().filter_map(said).collect();
    let tokenizer: Tokenizer = serde_json::from_value(value)?;
    // The library numbers added tokens by itself and ignores the ids of the file.
    for (token, id) in added.iter().filter(|(token, _)| !token.is_empty()) {
        let got = tokenizer.token_to_id(token);
        if got.is_none_or(|got| u64::from(got) != *id) {
            let got = got.map_or("none".to_owned(), |got| got.to_string());
            return Err(
                format!("the added token {token:?} has the id {id}, and {got} in the vocabulary").into()
            );
        }
    }
    Ok(tokenizer)
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`. A panic in it becomes an error, and nothing is printed.
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !GUARDED.get() {
                before(panic);
            }
        }));
    });
    let before = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(before);
    result.map_err(|panic| said(&*panic))
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref().copied());
    format!("the library that reads it fails: {}", text.unwrap_or("it does not say why"))
}
