//! Takes bytes as the choices of a life of a cache of slots. Four sequences share one stream or have
//! one each, and some write values that are not finite. Rows come back, and every query that sees finite
//! rows alone gets the attention of f64 over them.
#![no_main]

#[macro_use]
mod choices;

#[path = "../../host/tests/it/slots/lives.rs"]
mod lives;

live!(lives);
