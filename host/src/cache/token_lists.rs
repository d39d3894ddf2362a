//! The tokens that attention is limited to: all that the newest position sees, or a list.

use std::ops::Range;
use tqkv_simd::page::SLOT_STEP;

/// Tokens of which a part of a page is read or skipped: a line of values holds at most as many.
pub(super) const RUN: usize = SLOT_STEP;

/// The most tokens between two runs of a list that are read with these, because another part would cost more.
pub(super) const BRIDGED: usize = RUN;

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

    /// End of those from `from` on that no more than [`BRIDGED`] others part, before `end`. `from` is one of them.
    pub(super) fn stretch_end(self, from: usize, end: usize) -> usize {
        let Self::List(list) = self else { return end };
        let rest = &list[list.partition_point(|&token| (token as usize) < from)..];
        let near = rest.windows(2).take_while(|pair| ((pair[1] - pair[0]) as usize) <= BRIDGED + 1);
        let last = near.map(|pair| pair[1] as usize).take_while(|&token| token < end).last();
        last.unwrap_or(from) + 1
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
        if let Self::List(list) = self.within((from, from + n)) {
            hide(list, from, n, logits);
        }
    }
}

/// Index of the first token of a list from `position` on. It is sought from index `at` on, near which it lies.
pub(super) fn seek(list: &[u32], mut at: usize, position: usize) -> usize {
    let is_before = |at: usize| list.get(at).is_some_and(|&token| (token as usize) < position);
    while is_before(at + RUN) {
        at += RUN;
    }
    while is_before(at) {
        at += 1;
    }
    at
}

/// Tokens whose logits are hidden at once.
const HIDDEN: usize = 128;

/// Hides the logits (`[heads, n]`) of the tokens from `from` on that are not in `list`, which has no others.
pub(super) fn hide(list: &[u32], from: usize, n: usize, logits: &mut [f32]) {
    if list.len() == n {
        return;
    }
    let mut at = 0;
    for start in (0..n).step_by(HIDDEN) {
        let count = HIDDEN.min(n - start);
        // As wide as logits, so that both go through the same registers.
        let mut is_chosen = [0u32; HIDDEN];
        let end = seek(list, at, from + start + count);
        list[at..end].iter().for_each(|&token| is_chosen[token as usize - from - start] = 1);
        at = end;
        for logits in logits.chunks_exact_mut(n) {
            for (logit, is_chosen) in logits[start..start + count].iter_mut().zip(is_chosen) {
                *logit = if is_chosen == 1 { *logit } else { f32::NEG_INFINITY };
            }
        }
    }
}

/// Refuses a list that is not ascending, or has a token that the newest position does not see. It sees the tokens
/// below `sinks` and those of `start..end`.
pub(super) fn check(list: &[u32], sinks: usize, (start, end): (usize, usize)) -> Result<(), String> {
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

#[cfg(test)]
mod tests {
    use super::Chosen;

    #[test]
    fn lists_are_cut_run_through_and_masked() {
        let list = [2, 3, 4, 7, 40];
        let chosen = Chosen::List(&list);
        assert_eq!(chosen.runs(0, 50).collect::<Vec<_>>(), [2..5, 7..8, 40..41]);
        assert!(chosen.runs(3, 7).eq(std::iter::once(3..5)));
        assert_eq!((chosen.next(5), chosen.next(41)), (Some(7), None));
        assert!(chosen.any(7, 8) && !chosen.any(8, 40));
        assert_eq!(
            [(2, 50), (2, 7), (7, 50), (40, 50)].map(|(from, end)| chosen.stretch_end(from, end)),
            [41, 5, 41, 41]
        );
        assert_eq!(Chosen::List(&[1, 34, 68]).stretch_end(1, 90), 35);
        assert_eq!(Chosen::All.stretch_end(3, 90), 90);
        let Chosen::List(part) = chosen.within((3, 40)) else { panic!("a list") };
        assert_eq!(part, [3, 4, 7]);
        let mut logits = [1.0; 12];
        chosen.mask(2, 6, &mut logits);
        let hidden: Vec<_> = (0..12).filter(|&i| logits[i] == f32::NEG_INFINITY).collect();
        assert_eq!(hidden, [3, 4, 9, 10]);
        let mut logits = [1.0; 600];
        Chosen::List(&[5, 140, 304]).mask(5, 300, &mut logits);
        let seen: Vec<_> = (0..600).filter(|&i| logits[i] == 1.0).collect();
        assert_eq!(seen, [0, 135, 299, 300, 435, 599]);
    }
}
