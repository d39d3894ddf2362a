//! Takes bytes as calls of the C interface, many of them with lengths, types, layers and slots that are wrong. Right
//! calls are accepted, wrong ones refused, and the caches live on.
#![no_main]

#[macro_use]
mod choices;

#[path = "../../host/capi/tests/it/misuse.rs"]
mod misuse;

live!(misuse);
