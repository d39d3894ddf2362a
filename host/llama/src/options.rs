//! The user's settings, from environment variables or from the parameters that the host gives the device.

use crate::declared::Declared;
use crate::policy;
use std::collections::BTreeMap;
use tqkv::CodecId;
use tqkv::cache::CacheSpec;
use tqkv::unstable::slots::StoreSide;

/// How caches of a model are held.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelPolicy {
    /// The policy. The shape of the spec has no meaning.
    pub spec: CacheSpec,
    /// True if the user named the codecs. Otherwise the type that a cache is declared as chooses them, and is a
    /// limit of bytes.
    pub is_named: bool,
    /// True if saved states hold codes, which a stock llama.cpp cannot read.
    pub is_of_codes: bool,
}

/// The words that say what saved states hold: rows of the declared type, or codes.
const STATES: [(&str, bool); 2] = [("state=type", false), ("state=codes", true)];

impl ModelPolicy {
    /// Applies a policy text for models of `layers` layers, or of any number; settings that it does not name stay.
    fn with(&self, text: &str, layers: Option<usize>) -> Result<Self, String> {
        let (of_states, words): (Vec<&str>, Vec<&str>) =
            text.split_whitespace().partition(|word| word.starts_with("state="));
        let mut new = self.clone();
        for word in &of_states {
            let known = STATES.iter().find(|(name, _)| name == word);
            let wrong =
                || format!("{word} is not valid: expected {}", STATES.map(|(name, _)| name).join(" or "));
            new.is_of_codes = known.ok_or_else(wrong)?.1;
        }
        // Without other words, the type that a cache is declared as goes on choosing codecs.
        if of_states.is_empty() || !words.is_empty() {
            (new.spec, new.is_named) = (policy::read(&words.join(" "), &self.spec, layers)?, true);
        }
        Ok(new)
    }

    /// The codec of one side of layer `at.0`, counted from 0, in a model of `at.1` layers.
    pub(crate) fn codec(&self, side: StoreSide, declared: &Declared, at: (usize, usize)) -> CodecId {
        let (key, value) = policy::codecs(&self.spec, at.0, at.1);
        let named = if side == StoreSide::Keys { key } else { value };
        declared.codec.filter(|_| !self.is_named).unwrap_or(named)
    }
}

/// The settings of a buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How caches of most models are held.
    pub held: ModelPolicy,
    /// How those of models with a number of layers are held.
    pub of_models: BTreeMap<usize, ModelPolicy>,
    /// Print declared and held bytes when a cache is freed.
    pub log: bool,
}

impl Default for Options {
    fn default() -> Self {
        let held = ModelPolicy { spec: policy::default(), is_named: false, is_of_codes: false };
        Self { held, of_models: BTreeMap::new(), log: false }
    }
}

impl Options {
    /// Reads the environment variables.
    ///
    /// # Errors
    /// A line that names the variable, its value and what is accepted.
    pub fn from_environment() -> Result<Self, String> {
        Self::read(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// Reads variables that `get` looks up.
    ///
    /// # Errors
    /// Same as [`Options::from_environment`].
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let mut options = Self::default();
        if let Some(text) = get("TQKV_KV") {
            options = options.with(&text).map_err(|error| format!("TQKV_KV={text}: {error}"))?;
        }
        if let Some(value) = get("TQKV_LOG") {
            options.log = match value.as_str() {
                "1" => true,
                "0" | "" => false,
                _ => return Err(format!("TQKV_LOG={value}: expected 0 or 1")),
            };
        }
        Ok(options)
    }

    /// Applies a text of one or more policies; settings that they do not name stay.
    ///
    /// # Errors
    /// A line that says what is wrong and what is accepted.
    pub fn with(mut self, text: &str) -> Result<Self, String> {
        for (layers, text) in policy::parts(text)? {
            let old = layers.map_or(&self.held, |layers| self.of_model(layers));
            let held = old.with(text, layers)?;
            // Models of other numbers of layers have nothing of a policy that names each layer.
            match layers.or(policy::each_layer(&held.spec)) {
                None => self.held = held,
                Some(layers) => _ = self.of_models.insert(layers, held),
            }
        }
        Ok(self)
    }

    /// How caches of a model with this number of layers are held.
    pub fn of_model(&self, layers: usize) -> &ModelPolicy {
        self.of_models.get(&layers).unwrap_or(&self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tqkv::CodecId::{I8, M3, S4, T2, T3, T4};
    use tqkv::Effort;
    use tqkv::cache::KeyMap;

    fn read(name: &'static str, value: &'static str) -> Result<Options, String> {
        Options::read(|asked| (asked == name).then(|| value.to_owned()))
    }

    impl Options {
        fn pair(&self) -> tqkv::cache::KvPair {
            (self.held.spec.key, self.held.spec.value)
        }
    }

    #[test]
    fn policies_are_understood() {
        assert_eq!(Options::read(|_| None).unwrap(), Options::default());
        assert_eq!(read("TQKV_KV", "compact").unwrap().pair(), (T4, T2));
        assert_eq!(read("TQKV_KV", "T4,t2").unwrap().pair(), (T4, T2));
        assert_eq!(read("TQKV_KV", "s4").unwrap().pair(), (S4, S4));
        assert!(read("TQKV_LOG", "1").unwrap().log);
        let options = read("TQKV_KV", "t4,t2 hot=0 sinks=8 effort=fast layer-kv=tail:1:i8").unwrap();
        assert_eq!(
            (options.held.spec.hot, options.held.spec.sinks, options.held.spec.options.effort),
            (0, 8, Effort::Fast)
        );
        let codecs =
            |options: &Options| [0, 1, 2, 3].map(|layer| policy::codecs(&options.held.spec, layer, 4));
        assert_eq!(codecs(&options), [(T4, T2), (T4, T2), (T4, T2), (I8, I8)]);
        let mapped = read("TQKV_KV", "m2,t2 map=pairs").unwrap();
        let map = |options: &Options| options.held.spec.key_map;
        assert_eq!([map(&mapped), map(&options)], [KeyMap::Pairs, KeyMap::Auto]);
        assert_eq!(map(&mapped.clone().with("t2 map=auto").unwrap()), KeyMap::Auto);
        assert_eq!(map(&mapped.with("t2 map=off").unwrap()), KeyMap::Off);
        let unmapped = read("TQKV_KV", "m2,t2 last:m3,t2 map=off").unwrap();
        assert_eq!([0, 3].map(|layer| policy::codecs(&unmapped.held.spec, layer, 4)), [(T2, T2), (T3, T2)]);
        let last = read("TQKV_KV", "t4,t2 last:i8").unwrap();
        assert_eq!(codecs(&last), codecs(&options));
        let other = options.with("layer-kv=boundary:1:t4,i8").unwrap();
        assert_eq!((codecs(&other), other.held.spec.hot), ([(T4, I8), (T4, T2), (T4, T2), (T4, I8)], 0));
        let other = other.with("s4 layer-kv=gradient:i8/s4").unwrap();
        assert_eq!(codecs(&other), [(I8, I8), (I8, I8), (S4, S4), (S4, S4)]);
        let tiered = read("TQKV_KV", "tiered").unwrap();
        assert_eq!((tiered.pair(), tiered.held.spec.hot, tiered.held.spec.cold.len()), ((M3, T4), 16, 1));
    }

    #[test]
    fn states_of_codes_leave_the_codecs_to_the_declared_type() {
        let of = |text: &'static str| {
            let held = read("TQKV_KV", text).unwrap().held;
            (held.is_named, held.is_of_codes, held.spec.key)
        };
        assert_eq!(of("state=codes"), (false, true, S4));
        assert_eq!(of("t4,t2 state=codes hot=16"), (true, true, T4));
        assert_eq!(of("state=codes t2"), (true, true, T2));
        assert_eq!(of("t2 state=type"), (true, false, T2));
        assert!(read("TQKV_KV", "state=codes; layers=16: t2").unwrap().of_model(16).is_of_codes);
    }

    #[test]
    fn models_are_told_apart_by_their_layers() {
        let options = read("TQKV_KV", "t4,t2 hot=8; layers=16: s4 ;layers=2:i8 hot=0").unwrap();
        let of = |layers| {
            let held = options.of_model(layers);
            (held.spec.key, held.spec.value, held.spec.hot, held.is_named)
        };
        assert_eq!([of(30), of(16), of(2)], [(T4, T2, 8, true), (S4, S4, 8, true), (I8, I8, 0, true)]);
        // A policy that names each layer is for models of as many.
        let options = read("TQKV_KV", "s4 hot=8 layer-kv=each:t4/2*t2; layers=5: t4 hot=0").unwrap();
        assert_eq!(
            [0, 1, 2].map(|layer| policy::codecs(&options.of_model(3).spec, layer, 3).0),
            [T4, T2, T2]
        );
        assert!(!options.of_model(30).is_named && options.of_model(5).spec.hot == 0);
        // Other models have what the host declares.
        let options = read("TQKV_KV", "layers=16: t2").unwrap();
        assert!(!options.of_model(30).is_named && options.of_model(16).is_named);
        assert_eq!(options.of_model(30), &Options::default().held);
    }

    #[test]
    fn what_is_unknown_is_refused_in_one_line_with_what_is_accepted() {
        for (name, value, part) in [
            ("TQKV_KV", "t4,q9", "'q9' is not a codec"),
            ("TQKV_KV", "t2,m2 map=pairs", "m2 is not valid for values"),
            ("TQKV_KV", "m2 map=pairs", "m2 is not valid for values"),
            ("TQKV_KV", "t2 map=full", "map=full is not valid: expected map=auto|off|pairs"),
            ("TQKV_KV", "", "expected codecs"),
            ("TQKV_KV", "s4 hot=many", "hot=many is not valid: expected hot=TOKENS"),
            (
                "TQKV_KV",
                "s4 ring=4096",
                "ring=4096 is not valid in a cache of slots: expected kv=, layer-kv=, hot=",
            ),
            ("TQKV_KV", "s4 arithmetic=f32", "arithmetic=f32 is not valid in a cache of slots"),
            ("TQKV_KV", "layers=3: s4 layer-kv=each:t4/t2", "2 pairs of codecs for 3 layers"),
            ("TQKV_KV", "s4 sinks=-1", "expected sinks=TOKENS"),
            ("TQKV_KV", "s4 effort=most", "effort=most is not valid"),
            ("TQKV_KV", "s4 spill=256:/tmp", "spill=256:/tmp is not valid in a cache of slots: expected kv="),
            ("TQKV_KV", "s4 tier=256:i8", "s4 pages cannot go cold as i8"),
            ("TQKV_KV", "s4; layers=x:t2", "layers=x:t2 is not valid: expected layers=NUMBER: and a policy"),
            ("TQKV_KV", "layers=16", "layers=16 is not valid: expected layers=NUMBER: and a policy"),
            ("TQKV_KV", "s4; t2", "two policies for all models: expected one"),
            ("TQKV_KV", "layers=2:s4; layers=2:t2", "two policies for models of 2 layers: expected one"),
            ("TQKV_KV", "s4 layer-kv=middle:1:t4", "gradient"),
            ("TQKV_KV", "s4 layer-kv=gradient:u4/s4", "'u4' is neither a preset"),
            ("TQKV_KV", "s4 state=rows", "state=rows is not valid: expected state=type or state=codes"),
            ("TQKV_LOG", "yes", "expected 0 or 1"),
        ] {
            let error = read(name, value).unwrap_err();
            assert!(error.contains(part) && error.starts_with(name) && !error.contains('\n'), "{error}");
        }
    }
}
