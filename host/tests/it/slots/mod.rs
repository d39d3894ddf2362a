//! Keys and values in numbered slots.

mod cache;
mod histories;
mod lives;
mod not_finite;
mod parts;
mod random;
mod shifts;
mod sinks;
mod states;
