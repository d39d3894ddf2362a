//! Variables of the environment whose names begin with `TQKV_`. One that is misspelt has no effect, so the
//! command refuses it.

use std::env;

use strsim::damerau_levenshtein;

use crate::error::CliError;

/// The variables that are read, with their use. Tests of the project read others.
pub(crate) const VARIABLES: [(&str, &str); 4] = [
    ("TQKV_LEVEL", "instruction set of the kernels"),
    ("TQKV_KV", "policy of caches in llama.cpp"),
    ("TQKV_VLLM", "policy of the cache of vLLM"),
    ("TQKV_LOG", "1 prints bytes in llama.cpp"),
];

/// Refuses a variable that is one slip away from one that is read.
pub(crate) fn check() -> Result<(), CliError> {
    let meant = |name: &str| VARIABLES.iter().map(|known| known.0).find(|known| is_slip(name, known));
    match unknown().into_iter().find_map(|name| Some((meant(&name)?, name))) {
        Some((known, name)) => Err(CliError::bad_input(format_args!(
            "the variable {name} is not valid: expected {known}, or another name"
        ))),
        None => Ok(()),
    }
}

/// Names of variables that are set and that nothing reads, in order.
pub(crate) fn unknown() -> Vec<String> {
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut unread: Vec<_> = names
        .filter(|name| name.starts_with("TQKV_") && VARIABLES.iter().all(|known| known.0 != name))
        .collect();
    unread.sort();
    unread
}

/// The variables that are read, the most similar to `name` first.
pub(crate) fn nearest(name: &str) -> [(&'static str, &'static str); VARIABLES.len()] {
    let mut known = VARIABLES;
    known.sort_by_key(|known| damerau_levenshtein(name, known.0));
    known
}

/// One letter more, less or changed, or two letters swapped.
fn is_slip(name: &str, known: &str) -> bool {
    damerau_levenshtein(name, known) == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_comes_first() {
        for (name, expected) in
            [("TQKV_LOGS", "TQKV_LOG"), ("TQKV_LEVELLE", "TQKV_LEVEL"), ("TQKV_VK", "TQKV_KV")]
        {
            assert_eq!(nearest(name)[0].0, expected);
        }
    }

    #[test]
    fn slips_are_told_from_other_names() {
        for name in ["TQKV_LEVLE", "TQKV_LEVELS", "TQKV_LEVE", "TQKV_LEVEI"] {
            assert!(is_slip(name, "TQKV_LEVEL"), "{name}");
        }
        for name in ["TQKV_LEVEL", "TQKV_LIVES", "TQKV_EXHAUSTIVE", "TQKV_MODEL"] {
            assert!(VARIABLES.iter().all(|known| !is_slip(name, known.0)), "{name}");
        }
    }
}
