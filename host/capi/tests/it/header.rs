//! Checks that the header is the output of cbindgen. TQKV_WRITE_HEADER=1 writes it.

use std::path::Path;

#[test]
fn the_header_is_that_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut made = Vec::new();
    let builder = cbindgen::Builder::new().with_config(config).with_src(root.join("src/lib.rs"));
    builder.generate().unwrap().write(&mut made);
    let (made, path) = (String::from_utf8(made).unwrap(), root.join("include/tqkv.h"));
    if std::env::var_os("TQKV_WRITE_HEADER").is_some_and(|value| value == "1") {
        std::fs::write(&path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == made,
        "include/tqkv.h is not what the sources give: TQKV_WRITE_HEADER=1 cargo test --workspace --test it header::"
    );
}
