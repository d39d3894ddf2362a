//! Says which targets have the DSP extension, because the compiler does not.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(dsp)");
    let target = std::env::var("TARGET").unwrap_or_default();
    if target.starts_with("thumbv7em") || target.starts_with("thumbv8m.main") {
        println!("cargo::rustc-cfg=dsp");
    }
}
