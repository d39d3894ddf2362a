//! Options that exclude each other: one row for each pair, and the only place that refuses it.

use super::options::{self, OPTIONS};
use crate::cache::spec::CacheSpec;
use crate::error::CacheError;

/// Two options that no cache has together.
pub(super) struct Conflict {
    /// Their words: `name=` for any value but the default, or `name=value` for that value.
    pub(super) options: [&'static str; 2],
    /// Why the second excludes the first: a clause about the second that begins with `which`.
    pub(super) why: &'static str,
}

const fn conflict(first: &'static str, second: &'static str, why: &'static str) -> Conflict {
    Conflict { options: [first, second], why }
}

/// Every pair of options that exclude each other, whatever their values are.
pub(super) const CONFLICTS: &[Conflict] = &[
    conflict("map=pairs", "ring=", "which takes all memory at the start"),
    conflict("narrow-at=", "ring=", "which takes all memory at the start"),
    conflict("select=", "ring=", "which single queries read in full"),
    conflict("select=", "sliding-window=", "which single queries read in full"),
    conflict("layer-shapes=", "position-dim=", "which all layers share"),
];

impl Conflict {
    /// The message of a cache that is asked for both.
    pub(super) fn message(&self) -> String {
        let ([first, second], why) = (self.options, self.why);
        format!("{first} is not valid with {second}, {why}: expected one of them")
    }

    fn is_in(&self, spec: &CacheSpec) -> bool {
        self.options.iter().all(|word| is_set(word, spec))
    }
}

/// True if a spec has a word of [`Conflict::options`].
fn is_set(word: &str, spec: &CacheSpec) -> bool {
    OPTIONS.iter().filter(|row| word.strip_prefix(row.name).is_some_and(|rest| rest.starts_with('='))).any(
        |row| {
            let words = row.words(spec);
            if word.ends_with('=') {
                words != row.words(&options::unset())
            } else {
                words.iter().any(|own| own == word)
            }
        },
    )
}

impl CacheSpec {
    /// Refuses options that exclude each other.
    pub(in crate::cache) fn check_conflicts(&self) -> Result<(), CacheError> {
        match CONFLICTS.iter().find(|conflict| conflict.is_in(self)) {
            Some(conflict) => Err(CacheError::BadSpec(conflict.message())),
            None => Ok(()),
        }
    }
}
