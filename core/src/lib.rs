//! tqkv-core.
#![no_std]
