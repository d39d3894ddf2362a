//! The tokens that attention is limited to: all that the newest position sees, or a list.

use super::head::Head;
use crate::error::CacheError;
use std::ops::Range;
use tqkv_simd::page::SLOT_STEP;

/// Tokens of which a part of a page is read or skipped: a line of values holds at most as many.
pub(super) const RUN: usize = SLOT_STEP;

/// The tokens that queries attend to, among those that they see.
#[derive(Clone, Copy, Debug)]
pub(super) enum Chosen<'a> {
    All,
    /// Ascending, each once.
    List(&'a [u32]),
}

impl<'a> Chosen<'a> {
    /// Those of positions `from..to`.
    pub(super) fn within(self, (from, to): (usize, usize)) -> Self {
        let Self::List(list) = self else { return self };
        let place = |position: usize| list.partition_point(|&token| (token as usize) < position);
        Self::List(&list[place(from)..place(to.max(from))])
    }

    /// The first one from position `from` on.
    pub(super) fn next(self, from: usize) -> Option<usize> {
        match self {
            Self::All => Some(from),
            Self::List(list) => {
                let place = list.partition_point(|&token| (token as usize) < from);
                list.get(place).map(|&token| token as usize)
            }
        }
    }

    /// True if there is one in `from..to`.
    pub(super) fn any(self, from: usize, to: usize) -> bool {
        self.next(from).is_some_and(|token| token < to)
    }

    /// At most this many, of `all`.
    pub(super) fn count(self, all: usize) -> usize {
        match self {
            Self::All => all,
            Self::List(list) => list.len(),
        }
    }

    /// Runs of consecutive ones in `from..to`.
    pub(super) fn runs(self, from: usize, to: usize) -> impl Iterator<Item = Range<usize>> + 'a {
        let mut at = from;
        std::iter::from_fn(move || {
            let start = self.next(at).filter(|&token| token < to)?;
            at = match self {
                Self::All => to,
                Self::List(list) => {
                    let place = list.partition_point(|&token| (token as usize) < start);
                    let run = (start..to).zip(&list[place..]);
                    start + run.take_while(|&(position, &token)| token as usize == position).count()
                }
            };
            Some(start..at)
        })
    }

    /// Hides the logits (`[heads, n]`) of the tokens from `from` on that are not chosen.
    pub(super) fn mask(self, from: usize, n: usize, logits: &mut [f32]) {
        if matches!(self, Self::All) {
            return;
        }
        let mut at = from;
        for run in self.runs(from, from + n).chain(std::iter::once(from + n..from + n)) {
            for logits in logits.chunks_exact_mut(n) {
                logits[at - from..run.start - from].fill(f32::NEG_INFINITY);
            }
            at = run.end;
        }
    }
}

/// Refuses a list of a KV head that is not ascending, or has a token that the newest position does not see.
pub(super) fn check(head: &Head, list: &[u32]) -> Result<(), String> {
    let [(_, sinks), (start, end)] = head.seen(head.len() - 1);
    for (place, &token) in list.iter().enumerate() {
        if place > 0 && list[place - 1] >= token {
            return Err(format!(
                "token {token} after {} is not valid: expected ascending tokens, each once",
                list[place - 1]
            ));
        }
        let token = token as usize;
        if token >= sinks && !(start..end).contains(&token) {
            let seen = if start > sinks && sinks > 0 {
                format!("0 to {}, or {start} to {}", sinks - 1, end - 1)
            } else {
                format!("{} to {}", if start > sinks { start } else { 0 }, end - 1)
            };
            return Err(format!(
                "token {token} is not valid: expected those that the newest position sees, {seen}"
            ));
        }
    }
    Ok(())
}

/// Refuses lists that do not fit the KV heads of a layer.
pub(super) fn check_lists(layer: usize, heads: &[Head], lists: &[&[u32]]) -> Result<(), CacheError> {
    if lists.len() != heads.len() {
        return Err(CacheError::Selection(format!(
            "{} lists for layer {layer} are not valid: expected {}, one per KV head",
            lists.len(),
            heads.len()
        )));
    }
    for (kv_head, (head, list)) in heads.iter().zip(lists).enumerate() {
        check(head, list)
            .map_err(|why| CacheError::Selection(format!("layer {layer}, KV head {kv_head}: {why}")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Chosen;

    #[test]
    fn lists_are_cut_run_through_and_masked() {
        let list = [2, 3, 4, 7, 40];
        let chosen = Chosen::List(&list);
        assert_eq!(chosen.runs(0, 50).collect::<Vec<_>>(), [2..5, 7..8, 40..41]);
        assert_eq!(chosen.runs(3, 7).collect::<Vec<_>>(), [3..5]);
        assert_eq!((chosen.next(5), chosen.next(41)), (Some(7), None));
        assert!(chosen.any(7, 8) && !chosen.any(8, 40));
        let Chosen::List(part) = chosen.within((3, 40)) else { panic!("a list") };
        assert_eq!(part, [3, 4, 7]);
        let mut logits = [1.0; 12];
        chosen.mask(2, 6, &mut logits);
        let hidden: Vec<_> = (0..12).filter(|&i| logits[i] == f32::NEG_INFINITY).collect();
        assert_eq!(hidden, [3, 4, 9, 10]);
    }
}
