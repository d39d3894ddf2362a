//! Options of `tqkv-lab` that a user may look for in `tqkv`.

/// Options that commands of `tqkv` share with commands of `tqkv-lab` but for these.
const OPTIONS: [(&str, &str); 4] = [
    ("--storage", "tqkv-lab eval"),
    ("--biased-keys", "tqkv-lab eval"),
    ("--outlier-variant", "tqkv-lab eval"),
    ("--sweep", "tqkv-lab sweep"),
];

/// The command of `tqkv-lab` that has an option which none of this program has.
pub(crate) fn owner_of(option: &str) -> Option<&'static str> {
    OPTIONS.iter().find(|(name, _)| *name == option).map(|(_, owner)| *owner)
}
