//! Reads pieces with scores from a file, and converts them to a `tokenizer.json` of BPE for folders.
//!
//! llama.cpp repeatedly joins the two neighbours whose union is the piece with the best score. If several are
//! equal, it takes the leftmost. BPE joins the neighbours whose merge is listed first. The list therefore
//! holds every way to split a piece in two, and the best piece comes first. A character that is no piece
//! becomes the tokens of its bytes.

use std::collections::HashMap;

use serde_json::json;

use super::tokens::{added, bad, beginning, kinds, list, switch, texts, vocabulary};
use super::{File, Value};
use crate::Pieces;
use crate::error::ModelError;
use crate::tokenizer::pieces::{SPACE, kind};

/// The longest piece in bytes, which bounds the time for its splits. Pieces of real vocabularies have under
/// 100.
const LONGEST: usize = 512;

/// The token at the start of texts, if the file has none.
const FIRST: usize = 1;

/// Reads the pieces of a file.
pub(super) fn read(file: &File<'_>) -> Result<Pieces, ModelError> {
    let tokens = texts(file, "tokenizer.ggml.tokens")?;
    let scores = list(file, "tokenizer.ggml.scores", "numbers", |value| match value {
        Value::Float(score) if !score.is_nan() => Some(score as f32),
        _ => None,
    })?;
    let kinds = kinds(file)?;
    for (name, len) in [("scores", scores.len()), ("token_type", kinds.len())] {
        if len != tokens.len() {
            return Err(bad(format!("tokenizer.ggml.{name} has {len} entries for {} tokens", tokens.len())));
        }
    }
    let id = super::config::number(file, "tokenizer.ggml.bos_token_id")?.unwrap_or(FIRST);
    let first = switch(file, "add_bos_token", true)?.then_some(id).filter(|id| *id < tokens.len());
    let spaced = switch(file, "add_space_prefix", true)?;
    pieces(&tokens, scores, kinds, first, spaced)
}

fn pieces(
    tokens: &[&str],
    scores: Vec<f32>,
    kinds: Vec<u8>,
    first: Option<usize>,
    spaced: bool,
) -> Result<Pieces, ModelError> {
    check(tokens, &kinds)?;
    let first = first.and_then(|id| u32::try_from(id).ok());
    Pieces::new(tokens, scores, kinds, first, spaced)
        .map_err(|byte| bad(format!("no token of kind {} for the byte 0x{byte:02X}", kind::BYTE)))
}

/// The contents of an equivalent `tokenizer.json`.
pub(super) fn json(pieces: &Pieces) -> serde_json::Value {
    let tokens: Vec<_> = (0..pieces.len() as u32).map(|id| pieces.token(id)).collect();
    let replace = |pattern: &str, content: &str| json!({ "type": "Replace", "pattern": { "String": pattern }, "content": content });
    let mut normalizers = vec![replace(" ", SPACE)];
    let mut decoders =
        vec![replace(SPACE, " "), json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })];
    if pieces.spaced {
        normalizers.insert(0, json!({ "type": "Prepend", "prepend": SPACE }));
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    let special = [kind::UNKNOWN, kind::CONTROL, kind::USER_DEFINED];
    json!({
        "version": "1.0",
        "added_tokens": added(&tokens, pieces.kinds(), &special),
        "normalizer": { "type": "Sequence", "normalizers": normalizers },
        "post_processor": beginning(&tokens, pieces.first.map(|id| id as usize)),
        "decoder": { "type": "Sequence", "decoders": decoders },
        "model": {
            "type": "BPE", "vocab": vocabulary(&tokens), "merges": merges(&tokens, pieces.scores()),
            "byte_fallback": true, "fuse_unk": true,
        },
    })
}

/// Refuses vocabularies that merges cannot express.
fn check(tokens: &[&str], kinds: &[u8]) -> Result<(), ModelError> {
    if let Some(token) = tokens.iter().find(|token| token.len() > LONGEST) {
        let start: String = token.chars().take(20).collect();
        return Err(bad(format!(
            "the token {start:?}.. has {} bytes; expected up to {LONGEST}",
            token.len()
        )));
    }
    let known: std::collections::HashSet<_> = tokens.iter().copied().collect();
    let mut letter = [0; 4];
    let mut is_known = |letter_of: char| known.contains(&*letter_of.encode_utf8(&mut letter));
    let mut normal = tokens.iter().zip(kinds).filter(|(_, kind)| **kind == kind::NORMAL);
    match normal.find(|(token, _)| !token.chars().all(&mut is_known)) {
        Some((token, _)) => Err(bad(format!("the piece {token:?} has a character that is no piece itself"))),
        None => Ok(()),
    }
}

/// Every way to split a piece in two, the best piece first.
fn merges<'a>(tokens: &[&'a str], scores: &[f32]) -> Vec<[&'a str; 2]> {
    let ids: HashMap<&str, usize> = tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
    let mut found = Vec::new();
    for (&piece, &id) in &ids {
        let splits = piece.char_indices().skip(1).map(|(at, _)| piece.split_at(at));
        let known = splits.filter(|(left, right)| ids.contains_key(left) && ids.contains_key(right));
        found.extend(known.map(|(left, right)| (scores[id], id, left, right)));
    }
    // Splits of the same piece with a longer left part come first, so that the order is always the same.
    found.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(b.2.len().cmp(&a.2.len())));
    found.into_iter().map(|(_, _, left, right)| [left, right]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SpecialTokens, Tokenizer};

    const TEXT: &str = "fn main() {\n    let gr\u{f6}\u{df}e = \"\u{1f980} 12345\";\n\n\n\treturn   x;}  \r\n\
        The cat sat on the mat, that cat! aaaaaaa ----- ==== \u{4f60}\u{597d} <b>na\u{ef}ve</b> <unk> caf\u{e9}s";

    struct PieceVocabulary {
        tokens: Vec<String>,
        scores: Vec<f32>,
        kinds: Vec<u8>,
    }

    impl PieceVocabulary {
        fn push(&mut self, token: &str, score: f32, kind: u8) {
            self.tokens.push(token.to_owned());
            self.scores.push(score);
            self.kinds.push(kind);
        }

        /// A vocabulary of bytes, some special tokens, most characters of the text, and pieces grown from it
        /// at random.
        fn new(seed: u64) -> Self {
            let mut pieces = Self { tokens: Vec::new(), scores: Vec::new(), kinds: Vec::new() };
            pieces.push("<unk>", 0.0, kind::UNKNOWN);
            pieces.push("<s>", 0.0, kind::CONTROL);
            pieces.push("<b>", -1000.0, kind::USER_DEFINED);
            pieces.push("\n\n", -1000.0, kind::USER_DEFINED);
            (0..=u8::MAX).for_each(|byte| pieces.push(&format!("<0x{byte:02X}>"), 0.0, kind::BYTE));
            let escaped = TEXT.replace(' ', SPACE);
            let mut symbols: Vec<String> = escaped.chars().map(String::from).collect();
            let letters: std::collections::BTreeSet<_> = symbols
                .iter()
                .filter(|letter| !"\u{4f60}\u{1f980}\u{ef}".contains(letter.as_str()))
                .cloned()
                .collect();
            let mut random = fastrand::Rng::with_seed(seed);
            let mut score = 0.0;
            for letter in &letters {
                score -= 1.0;
                pieces.push(letter, score - 1e4, kind::NORMAL);
            }
            for _ in 0..120 {
                let at = random.usize(..symbols.len() - 1);
                let joined = format!("{}{}", symbols[at], symbols[at + 1]);
                let known = joined.chars().all(|letter| letters.contains(&letter.to_string()));
                if known && joined.len() < 24 && !pieces.tokens.contains(&joined) {
                    score -= random.f32();
                    pieces.push(&joined, score, kind::NORMAL);
                    symbols.splice(at..at + 2, [joined]);
                }
            }
            pieces
        }

        fn id(&self, token: &str) -> Option<usize> {
            self.tokens.iter().position(|other| other == token)
        }

        fn tokenizer(&self, spaced: bool) -> Result<Tokenizer, ModelError> {
            let tokens: Vec<_> = self.tokens.iter().map(String::as_str).collect();
            pieces(&tokens, self.scores.clone(), self.kinds.clone(), Some(1), spaced).map(Tokenizer::Pieces)
        }

        /// The library's tokeniser, made from the `tokenizer.json`.
        fn library(&self, spaced: bool) -> Tokenizer {
            let Ok(Tokenizer::Pieces(pieces)) = self.tokenizer(spaced) else { panic!("pieces") };
            Tokenizer::new(Some(json(&pieces).to_string().as_bytes()), self.tokens.len()).unwrap()
        }

        /// Encodes a text by the rule itself, slowly.
        fn slow_encode(&self, text: &str, spaced: bool) -> Vec<u32> {
            let is_special =
                |i: &usize| [kind::UNKNOWN, kind::CONTROL, kind::USER_DEFINED].contains(&self.kinds[*i]);
            let specials: Vec<_> = (0..self.tokens.len()).filter(is_special).collect();
            let (mut ids, mut rest) = (Vec::new(), text);
            while !rest.is_empty() {
                let found = specials.iter().filter_map(|&i| Some((rest.find(&self.tokens[i])?, i))).min();
                let (at, special) = found.map_or((rest.len(), None), |(at, i)| (at, Some(i)));
                self.slow_join(&rest[..at], spaced, &mut ids);
                rest = &rest[at..];
                if let Some(i) = special {
                    ids.push(i as u32);
                    rest = &rest[self.tokens[i].len()..];
                }
            }
            ids
        }

        fn slow_join(&self, text: &str, spaced: bool, ids: &mut Vec<u32>) {
            let prefix = if spaced && !text.is_empty() { SPACE } else { "" };
            let text = format!("{prefix}{}", text.replace(' ', SPACE));
            let mut symbols: Vec<String> = text.chars().map(String::from).collect();
            loop {
                let mut best: Option<(usize, f32)> = None;
                for (at, pair) in symbols.windows(2).enumerate() {
                    let score = self.id(&pair.concat()).map(|id| self.scores[id]);
                    if let Some(score) = score.filter(|score| best.is_none_or(|(_, most)| *score > most)) {
                        best = Some((at, score));
                    }
                }
                let Some((at, _)) = best else { break };
                let joined = symbols[at..at + 2].concat();
                symbols.splice(at..at + 2, [joined]);
            }
            for symbol in symbols {
                match self.id(&symbol) {
                    Some(id) => ids.push(id as u32),
                    None => ids.extend(
                        symbol.bytes().map(|byte| self.id(&format!("<0x{byte:02X}>")).unwrap() as u32),
                    ),
                }
            }
        }
    }

    #[test]
    fn merges_join_as_scores_do() {
        for seed in 0..20 {
            let pieces = PieceVocabulary::new(seed);
            for spaced in [false, true] {
                let (tokenizer, library) = (pieces.tokenizer(spaced).unwrap(), pieces.library(spaced));
                let mut random = fastrand::Rng::with_seed(seed);
                for _ in 0..40 {
                    let mut letters: Vec<char> = TEXT.chars().collect();
                    let from = random.usize(..letters.len());
                    letters.rotate_left(from);
                    letters.truncate(random.usize(1..letters.len()));
                    let text: String = letters.into_iter().collect();
                    let ids = tokenizer.encode(text.as_bytes(), SpecialTokens::Omit).unwrap();
                    assert_eq!(ids, pieces.slow_encode(&text, spaced), "seed {seed}, {text:?}");
                    assert_eq!(
                        ids,
                        library.encode(text.as_bytes(), SpecialTokens::Omit).unwrap(),
                        "{text:?}"
                    );
                    for from in 0..ids.len().min(5) {
                        let [ours, theirs] = [&tokenizer, &library].map(|t| t.decode(&ids[from..]).unwrap());
                        assert_eq!(ours, theirs, "seed {seed}, {text:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn texts_begin_with_their_token_and_come_back() {
        for spaced in [false, true] {
            let tokenizer = PieceVocabulary::new(1).tokenizer(spaced).unwrap();
            let text = TEXT.replace("<unk>", "").replace("<b>", "");
            let ids = tokenizer.encode(text.as_bytes(), SpecialTokens::Add).unwrap();
            assert_eq!(ids[0], 1);
            let back = tokenizer.decode(&ids).unwrap();
            // The library also puts a space before the text after a special token, and decoding keeps that
            // space.
            assert_eq!(if spaced { back.replace("\n\n ", "\n\n") } else { back }, text);
        }
    }

    #[test]
    fn a_text_goes_on_with_its_space() {
        let tokenizer = PieceVocabulary::new(1).tokenizer(true).unwrap();
        let ids = tokenizer.encode(b"The cat sat on the mat", SpecialTokens::Add).unwrap();
        for prompt in 0..ids.len() {
            let mut stream = crate::tokenizer::TextStream::after(&tokenizer, &ids[..prompt]);
            let mut text = tokenizer.decode(&ids[..prompt]).unwrap();
            ids[prompt..].iter().for_each(|id| text += &stream.push(*id).unwrap());
            assert_eq!(text + &stream.finish().unwrap(), "The cat sat on the mat");
        }
    }

    #[test]
    fn what_merges_cannot_say_is_refused_by_name() {
        let refused = |change: fn(&mut PieceVocabulary)| {
            let mut pieces = PieceVocabulary::new(1);
            change(&mut pieces);
            pieces.tokenizer(true).unwrap_err().to_string()
        };
        assert!(refused(|pieces| pieces.tokens[14] = "x\u{1f980}".into()).contains("for the byte 0x0A"));
        assert!(refused(|pieces| pieces.push("x\u{1f980}", 0.0, kind::NORMAL)).contains("no piece itself"));
        assert!(refused(|pieces| pieces.push(&"x".repeat(600), 0.0, kind::NORMAL)).contains("has 600 bytes"));
    }
}
