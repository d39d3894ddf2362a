//! Options of `tqkv-lab` that a user may look for in `tqkv`.

/// Options that only commands of `tqkv-lab` have, and the command that has each.
const OPTIONS: [(&str, &str); 4] = [
    ("--storage", "tqkv-lab eval"),
    ("--biased-keys", "tqkv-lab eval"),
    ("--outlier-variant", "tqkv-lab eval"),
    ("--sweep", "tqkv-lab sweep"),
];

/// The command of `tqkv-lab` that has this option, if no command of `tqkv` has it.
pub(crate) fn owner_of(option: &str) -> Option<&'static str> {
    OPTIONS.iter().find(|(name, _)| *name == option).map(|(_, owner)| *owner)
}
