//! tqkv.
fn main() {}
