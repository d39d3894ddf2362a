//! Sets the run-time name of the shared library, so that programs find the version that they were linked
//! with.

/// Systems whose shared libraries have such a name, and whose linkers accept this option.
const ELF: [&str; 5] = ["linux", "android", "freebsd", "netbsd", "openbsd"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let of = |name: &str| std::env::var(name).unwrap_or_default();
    // Before 1.0 a minor version may change the interface.
    let (major, minor) = (of("CARGO_PKG_VERSION_MAJOR"), of("CARGO_PKG_VERSION_MINOR"));
    let abi = if major == "0" { format!("0.{minor}") } else { major };
    if ELF.contains(&of("CARGO_CFG_TARGET_OS").as_str()) {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtqkv_capi.so.{abi}");
    }
}
