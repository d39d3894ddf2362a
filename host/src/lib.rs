//! tqkv.
