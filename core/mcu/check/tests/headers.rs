//! Checks that each header is the output of cbindgen. TQKV_WRITE_HEADER=1 writes it.
#![allow(missing_docs, reason = "a test crate")]

use std::path::Path;

/// Compares a header with the output of cbindgen for the crate in a folder of the workspace.
fn compare(crate_folder: &str, header: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(crate_folder);
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut made = Vec::new();
    let builder = cbindgen::Builder::new().with_config(config).with_src(root.join("src/lib.rs"));
    builder.generate().unwrap().write(&mut made);
    let (made, path) = (String::from_utf8(made).unwrap(), root.join(header));
    if std::env::var_os("TQKV_WRITE_HEADER").is_some_and(|value| value == "1") {
        std::fs::write(&path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == made,
        "{header} is not what the sources give: TQKV_WRITE_HEADER=1 cargo test --test headers"
    );
}

#[test]
fn the_header_of_the_integer_codec_is_that_of_the_sources() {
    compare("capi-fixed", "tqkv_fixed.h");
}

#[test]
fn the_header_of_the_language_model_is_that_of_the_sources() {
    compare("capi-lm", "tqkv_lm.h");
}
