//! Texts of a program: the spec of a cache, and a codec with its options.

use crate::error::Failure;
use crate::pointer::Call;
use std::ffi::c_char;
use tqkv::cache::{CacheSpec, Policy};
use tqkv::paged::Layout;
use tqkv_core::{CodecId, Options};

/// Reads the spec of a cache, shape included.
pub(crate) fn read(call: &Call, text: *const c_char) -> Result<CacheSpec, Failure> {
    Ok(call.text("spec", text)?.parse()?)
}

/// Reads a codec, such as "t4 seed=7 effort=best".
pub(crate) fn codec(call: &Call, text: *const c_char) -> Result<(CodecId, Options), Failure> {
    let text = call.text("codec", text)?;
    let base = CacheSpec::new(1, 1, 1, 64);
    let spec = text.parse::<Policy>()?.apply(base.clone());
    let plain = base.codecs(spec.key, spec.key).options(spec.options);
    if spec != plain {
        return Err(Failure::argument(format!(
            "codec \"{text}\" is not valid: expected one codec, and seed=, scale-mode= or effort="
        )));
    }
    Ok((spec.key, spec.options))
}

/// Reads the shape, the codecs and the encoder of blocks, such as "layers=1 heads=8 kv-heads=2 head-dim=64 t4,s4 seed=7".
pub(crate) fn layout(call: &Call, text: *const c_char) -> Result<Layout, Failure> {
    let spec = read(call, text)?;
    let CacheSpec { shape, key, value, options, .. } = spec.clone();
    let shape_alone = CacheSpec::new(shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.head_dim);
    if spec != shape_alone.codecs(key, value).options(options) {
        return Err(Failure::argument(format!(
            "blocks of \"{}\" are not valid: expected a shape, one or two codecs, and seed=, scale-mode= or effort=",
            call.text("spec", text)?
        )));
    }
    Ok(Layout::new(shape.num_heads, shape.num_kv_heads, shape.head_dim).codecs(key, value).options(options))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use tqkv::unstable::cache::{OPTIONS, OptionPart};

    /// Every option gives the same spec as the library does.
    #[test]
    fn every_option_arrives() {
        const SHAPE: &str = "layers=2 heads=4 kv-heads=2 head-dim=64";
        for option in OPTIONS {
            let name = format!("{}=", option.name);
            let others = SHAPE.split(' ').filter(|word| !word.starts_with(&name)).map(str::to_owned);
            let text = others.chain([format!("{name}{}", option.example)]).collect::<Vec<_>>().join(" ");
            let c_text = CString::new(text.clone()).unwrap();
            // SAFETY: the text ends with a zero.
            let found = read(&unsafe { Call::new() }, c_text.as_ptr()).unwrap();
            assert_eq!(found, text.parse().unwrap(), "{text}");
        }
    }

    /// A codec takes the options of its encoder, and no other option of a cache.
    #[test]
    fn a_codec_has_the_options_of_its_encoder() {
        // SAFETY: the text ends with a zero.
        let codec = |text: &str| codec(&unsafe { Call::new() }, CString::new(text).unwrap().as_ptr());
        let found = codec("t3 seed=7 scale-mode=raw effort=best").unwrap();
        let options = CacheSpec::new(1, 1, 1, 64).with("seed=7 scale-mode=raw effort=best").unwrap().options;
        assert_eq!(found, (CodecId::T3, options));
        assert_eq!(codec("s4").unwrap(), (CodecId::S4, Options::DEFAULT));
        for option in OPTIONS.iter().filter(|option| option.part == OptionPart::Policy && option.name != "kv")
        {
            let is_taken = ["seed", "scale-mode", "effort"].contains(&option.name);
            let text = format!("s4 {}={}", option.name, option.example);
            assert_eq!(codec(&text).is_ok(), is_taken, "{text}");
        }
        assert!(codec("t4,t2").is_err() && codec("s9").is_err() && codec("").is_err());
    }
}
