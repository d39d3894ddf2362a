//! The user's settings, from environment variables or from the parameters that the host gives the device.

use crate::declared::Declared;
use crate::policy;
use tqkv::CodecId;
use tqkv::cache::CacheSpec;
use tqkv::unstable::slots::Side;

/// The settings of a buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How caches are held. The shape of the spec has no meaning.
    pub spec: CacheSpec,
    /// True if the user named the codecs. Otherwise the type that a cache is declared as chooses them.
    pub is_named: bool,
    /// Print declared and held bytes when a cache is freed.
    pub log: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { spec: policy::default(), is_named: false, log: false }
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

    /// Applies a policy text; settings that it does not name stay.
    ///
    /// # Errors
    /// A line that says what is wrong and what is accepted.
    pub fn with(mut self, text: &str) -> Result<Self, String> {
        self.spec = policy::read(text, &self.spec)?;
        self.is_named = true;
        Ok(self)
    }

    /// The codec of one side of layer `at.0`, counted from 0, in a model of `at.1` layers.
    pub(crate) fn codec(&self, side: Side, declared: &Declared, at: (usize, usize)) -> CodecId {
        let (key, value) = policy::codecs(&self.spec, at.0, at.1);
        let named = if side == Side::Keys { key } else { value };
        declared.codec.filter(|_| !self.is_named).unwrap_or(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tqkv::CodecId::{I8, S4, T2, T3, T4};
    use tqkv::Effort;
    use tqkv::cache::KeyMap;

    fn read(name: &'static str, value: &'static str) -> Result<Options, String> {
        Options::read(|asked| (asked == name).then(|| value.to_owned()))
    }

    impl Options {
        fn pair(&self) -> tqkv::cache::KvPair {
            (self.spec.key, self.spec.value)
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
        assert_eq!((options.spec.hot, options.spec.sinks, options.spec.options.effort), (0, 8, Effort::Fast));
        let codecs = |options: &Options| [0, 1, 2, 3].map(|layer| policy::codecs(&options.spec, layer, 4));
        assert_eq!(codecs(&options), [(T4, T2), (T4, T2), (T4, T2), (I8, I8)]);
        let mapped = read("TQKV_KV", "m2,t2 map=pairs").unwrap();
        let map = |options: &Options| options.spec.key_map;
        assert_eq!([map(&mapped), map(&options)], [KeyMap::Pairs, KeyMap::Auto]);
        assert_eq!(map(&mapped.with("t2 map=off").unwrap()), KeyMap::Off);
        let unmapped = read("TQKV_KV", "m2,t2 last:m3,t2 map=off").unwrap();
        assert_eq!([0, 3].map(|layer| policy::codecs(&unmapped.spec, layer, 4)), [(T2, T2), (T3, T2)]);
        let last = read("TQKV_KV", "t4,t2 last:i8").unwrap();
        assert_eq!(codecs(&last), codecs(&options));
        let other = options.with("layer-kv=boundary:1:t4,i8").unwrap();
        assert_eq!((codecs(&other), other.spec.hot), ([(T4, I8), (T4, T2), (T4, T2), (T4, I8)], 0));
        let other = other.with("s4 layer-kv=gradient:i8/s4").unwrap();
        assert_eq!(codecs(&other), [(I8, I8), (I8, I8), (S4, S4), (S4, S4)]);
    }

    #[test]
    fn what_is_unknown_is_refused_in_one_line_with_what_is_accepted() {
        for (name, value, part) in [
            ("TQKV_KV", "t4,q9", "'q9' is not a codec"),
            ("TQKV_KV", "t2,m2 map=pairs", "m2 is not valid for values"),
            ("TQKV_KV", "m2 map=pairs", "m2 is not valid for values"),
            ("TQKV_KV", "t2 map=full", "map=full is not valid in llama.cpp: expected map=pairs"),
            ("TQKV_KV", "t2 map=model.tqm", "because rows come without positions"),
            ("TQKV_KV", "", "expected codecs"),
            ("TQKV_KV", "s4 hot=many", "hot=many is not valid: expected hot=TOKENS"),
            ("TQKV_KV", "s4 ring=4096", "ring= is not valid in a cache of slots: expected codecs, hot="),
            ("TQKV_KV", "s4 arithmetic=f32", "arithmetic=f32 is not valid in a cache of slots"),
            ("TQKV_KV", "s4 layer-kv=each:t4/t2", "1024"),
            ("TQKV_KV", "s4 sinks=-1", "expected sinks=TOKENS"),
            ("TQKV_KV", "s4 effort=most", "effort=most is not valid"),
            ("TQKV_KV", "s4 tier=256:t2", "tier= is not valid in a cache of slots: expected codecs, hot="),
            ("TQKV_KV", "s4 layer-kv=middle:1:t4", "gradient"),
            ("TQKV_KV", "s4 layer-kv=gradient:u4/s4", "'u4' is neither a preset"),
            ("TQKV_LOG", "yes", "expected 0 or 1"),
        ] {
            let error = read(name, value).unwrap_err();
            assert!(error.contains(part) && error.starts_with(name) && !error.contains('\n'), "{error}");
        }
    }
}
