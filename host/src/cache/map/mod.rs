//! A map of the keys of one KV head: a factor per RoPE pair, by which keys are multiplied before encoding and
//! queries are divided.
//!
//! Logits of exact keys stay as they are. The error of a coded key is even over its coordinates. The factors
//! move it from pairs that queries amplify to pairs that they do not. The best factor of a pair is the fourth
//! root of (energy of queries / energy of keys). Here keys weigh by the attention that they get, because a
//! block's error grows with its own length.
//!
//! Both coordinates of a pair have one factor, and the rotation of RoPE keeps their energy. A map is
//! therefore the same at every position. It is learnt once, from the first page ([`learner`]). For codes
//! whose widths differ by quarter, the map also orders the coordinates and weighs the quarters ([`order`]).
//!
//! Values gain nothing from a map, and latent vectors are values, so both have none. Means are in
//! [`super::means`]; pages keep the map beside their blocks ([`super::page`]).

mod full;
mod learner;
mod moments;
mod order;
mod pairs;
mod ranges;

pub(super) use learner::{LEARN_TOKENS, Learner, Rule};
pub(super) use moments::{Moments, Setting};
pub(super) use order::Order;
pub(super) use pairs::Pairs;
pub(super) use ranges::{Map, Maps};

#[cfg(test)]
mod tests;
