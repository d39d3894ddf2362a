//! Pieces with scores, as in SentencePiece, from GGUF files.
//!
//! The two neighbours whose union is the piece with the best score are joined, again and again. If several
//! are equal, the leftmost goes first. A character that is no piece becomes the tokens of its bytes. The
//! library needs a list of merges for this, of a kilobyte and more per token, so the code is here.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// The character that replaces a space within pieces.
pub(crate) const SPACE: &str = "\u{2581}";

/// Kinds of tokens, by their numbers in GGUF files.
pub(crate) mod kind {
    pub(crate) const NORMAL: u8 = 1;
    pub(crate) const UNKNOWN: u8 = 2;
    pub(crate) const CONTROL: u8 = 3;
    pub(crate) const USER_DEFINED: u8 = 4;
    pub(crate) const BYTE: u8 = 6;
}

/// A vocabulary of pieces.
#[derive(Debug)]
pub struct Pieces {
    /// Texts of all tokens, one after the other, and the end of each.
    text: String,
    ends: Vec<u32>,
    scores: Vec<f32>,
    kinds: Vec<u8>,
    /// Tokens in the order of their texts. The last of equal tokens counts.
    sorted: Vec<u32>,
    /// The token of each byte.
    bytes: Vec<u32>,
    /// Tokens that are found in a text before it is split: a list per first byte, the longest token first.
    specials: Vec<Vec<u32>>,
    /// The token at the start of texts.
    pub(crate) first: Option<u32>,
    /// True if a space is put before a text.
    pub(crate) spaced: bool,
}

impl Pieces {
    /// The three lists have one entry per token. There must be a token of kind [`kind::BYTE`] for every byte.
    /// The error is the first byte without one.
    pub(crate) fn new(
        tokens: &[&str],
        scores: Vec<f32>,
        kinds: Vec<u8>,
        first: Option<u32>,
        spaced: bool,
    ) -> Result<Self, u8> {
        let text = tokens.concat();
        let ends = tokens.iter().scan(0, |end, token| {
            *end += token.len() as u32;
            Some(*end)
        });
        let mut sorted: Vec<u32> = (0..tokens.len() as u32).collect();
        sorted.sort_unstable_by_key(|&id| (tokens[id as usize], id));
        let mut specials = vec![Vec::new(); 256];
        for (id, (token, kind)) in tokens.iter().zip(&kinds).enumerate() {
            let is_special = [kind::UNKNOWN, kind::CONTROL, kind::USER_DEFINED].contains(kind);
            if let Some(first) = token.bytes().next().filter(|_| is_special) {
                specials[usize::from(first)].push(id as u32);
            }
        }
        specials
            .iter_mut()
            .for_each(|ids| ids.sort_by_key(|&id| std::cmp::Reverse(tokens[id as usize].len())));
        let ends = ends.collect();
        let mut pieces =
            Self { text, ends, scores, kinds, sorted, bytes: Vec::new(), specials, first, spaced };
        for byte in 0..=u8::MAX {
            let id = pieces.id(&format!("<0x{byte:02X}>"));
            pieces.bytes.push(id.filter(|&id| pieces.kinds[id as usize] == kind::BYTE).ok_or(byte)?);
        }
        Ok(pieces)
    }

    /// The number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The text of a token.
    pub(crate) fn token(&self, id: u32) -> &str {
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.text[start as usize..self.ends[id] as usize]
    }

    pub(crate) fn scores(&self) -> &[f32] {
        &self.scores
    }

    pub(crate) fn kinds(&self) -> &[u8] {
        &self.kinds
    }

    /// The token with this text.
    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        let behind = self.sorted.partition_point(|&id| self.token(id) <= text);
        let id = *self.sorted.get(behind.checked_sub(1)?)?;
        (self.token(id) == text).then_some(id)
    }

    /// Tokens of a text. If `begins`, the first token of texts comes before them.
    pub(crate) fn encode(&self, text: &str, begins: bool) -> Vec<u32> {
        let mut ids: Vec<u32> = self.first.filter(|_| begins).into_iter().collect();
        let (mut from, mut at) = (0, 0);
        while at < text.len() {
            let special = self.specials[usize::from(text.as_bytes()[at])]
                .iter()
                .find(|&&id| text.as_bytes()[at..].starts_with(self.token(id).as_bytes()));
            match special {
                None => at += 1,
                Some(&id) => {
                    self.split(&text[from..at], &mut ids);
                    ids.push(id);
                    at += self.token(id).len();
                    from = at;
                }
            }
        }
        self.split(&text[from..], &mut ids);
        ids
    }

    /// Text of tokens, without unknown and control tokens.
    pub(crate) fn decode(&self, ids: &[u32]) -> String {
        let (mut text, mut bytes) = (String::new(), Vec::new());
        for &id in ids.iter().filter(|&&id| (id as usize) < self.len()) {
            match self.kinds[id as usize] {
                kind::UNKNOWN | kind::CONTROL => {}
                kind::BYTE => {
                    bytes.extend(self.bytes.iter().position(|&byte| byte == id).map(|byte| byte as u8))
                }
                _ => {
                    push_bytes(&mut text, &mut bytes);
                    text += &self.token(id).replace(SPACE, " ");
                }
            }
        }
        push_bytes(&mut text, &mut bytes);
        if self.spaced && text.starts_with(' ') {
            text.remove(0);
        }
        text
    }

    /// Appends the tokens of a text that has no special tokens.
    fn split(&self, text: &str, ids: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let space = if self.spaced { SPACE } else { "" };
        let text = format!("{space}{}", text.replace(' ', SPACE));
        for piece in self.join(&text) {
            match self.id(piece) {
                Some(id) => ids.push(id),
                None => ids.extend(piece.bytes().map(|byte| self.bytes[usize::from(byte)])),
            }
        }
    }

    /// The pieces of a text. Characters that are no piece stand alone.
    fn join<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        // Per character that begins a part: the end of the part, and the start of the part before it.
        let mut ends: Vec<usize> = (1..=starts.len()).collect();
        let mut before: Vec<Option<usize>> = (0..starts.len()).map(|at| at.checked_sub(1)).collect();
        let start = |at: usize| starts.get(at).copied().unwrap_or(text.len());
        let mut pairs = BinaryHeap::new();
        let pair = |left: usize, ends: &[usize]| {
            let end = *ends.get(*ends.get(left)?)?;
            let id = self.id(&text[start(left)..start(end)])?;
            Some(PiecePair { score: self.scores[id as usize], left, end })
        };
        pairs.extend((0..starts.len()).filter_map(|left| pair(left, &ends)));
        while let Some(PiecePair { left, end, .. }) = pairs.pop() {
            let right = ends[left];
            // One of the two has been joined with another part in the meantime.
            if right == GONE || right >= ends.len() || ends[right] != end {
                continue;
            }
            (ends[left], ends[right]) = (end, GONE);
            if let Some(next) = before.get_mut(end) {
                *next = Some(left);
            }
            pairs.extend(pair(left, &ends));
            pairs.extend(before[left].and_then(|left| pair(left, &ends)));
        }
        let parts = ends.iter().enumerate().filter(|(_, end)| **end != GONE);
        parts.map(|(at, &end)| &text[start(at)..start(end)]).collect()
    }
}

/// Marks a part that was joined with the one before it.
const GONE: usize = usize::MAX;

/// Neighbours whose union is a piece.
struct PiecePair {
    score: f32,
    left: usize,
    end: usize,
}

impl Ord for PiecePair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left)).then(other.end.cmp(&self.end))
    }
}

impl PartialOrd for PiecePair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PiecePair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PiecePair {}

/// Appends bytes as text. If they are not UTF-8, each byte becomes U+FFFD.
fn push_bytes(text: &mut String, bytes: &mut Vec<u8>) {
    match std::str::from_utf8(bytes) {
        Ok(whole) => text.push_str(whole),
        Err(_) => text.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, bytes.len())),
    }
    bytes.clear();
}
