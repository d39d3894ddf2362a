//! Maps of the keys of one KV head: keys go through a map before encoding, and queries through its inverse.
//!
//! Logits of exact keys stay as they are. The error of a coded key is even over its coordinates. The map
//! moves it from directions that queries amplify to directions that they do not. Keys weigh by the attention
//! that they get ([`weights`]), because a block's error grows with its own length. All is learnt from the
//! first page ([`learner`]). Keys whose energy few pairs hold get factors by themselves, from the keys of the
//! first mean alone.
//!
//! A map is a factor per RoPE pair ([`pairs`]). The rotation of RoPE keeps the energy of a pair, so the factors
//! are the same at every position. For codes whose widths differ by quarter, a map also orders the coordinates
//! and weighs the quarters ([`order`]).
//!
//! Values gain nothing from a map, and latent vectors are values, so both have none. Means are in
//! [`super::means`]; pages keep the map with their blocks ([`super::page`]).

mod learner;
mod order;
mod pairs;
mod weights;

pub(super) use learner::Learner;
pub(crate) use order::Order;
pub(crate) use pairs::{PairFactors, add_energy, prepare, shares};
pub(super) use weights::WeightRule;
pub(crate) use weights::limit_weights;

use super::spec::KeyMap;

/// Upper bound of the bytes of the map of one KV head that has encoded keys.
pub(super) fn map_bytes(kind: KeyMap, head_dim: usize) -> usize {
    match kind {
        KeyMap::Off => 0,
        KeyMap::Auto | KeyMap::Pairs => PairFactors::bytes(head_dim) + Order::bytes(head_dim),
    }
}

#[cfg(test)]
mod noise;
#[cfg(test)]
mod tests;
