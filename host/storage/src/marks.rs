//! Marks: the traces of a text in the basis that was learned from it. They tell whether another text is the
//! same.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};

use crate::error::StorageError;
use crate::parse::ByteReader;

/// Consecutive tokens that are hashed together.
const RUN: usize = 32;
/// About one hash of this many is kept.
const EVERY: u64 = 64;

/// Hashes of runs of 32 tokens, about one of 64. Two texts that share a few hundred tokens share some hashes,
/// wherever their windows begin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Marks(BTreeSet<u64>);

fn hashes(tokens: &[u32]) -> impl Iterator<Item = u64> {
    let hash = |run: &[u32]| {
        let mut hasher = Sha256::new();
        run.iter().for_each(|token| hasher.update(token.to_le_bytes()));
        let digest: [u8; 32] = hasher.finalize().into();
        digest.first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
    };
    tokens.windows(RUN).map(hash).filter(|hash| hash % EVERY == 0)
}

impl Marks {
    pub(crate) fn add(&mut self, tokens: &[u32]) {
        self.0.extend(hashes(tokens));
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }

    /// The share of a text's marks that are here. 0 where the text has no marks.
    pub(crate) fn share(&self, tokens: &[u32]) -> f64 {
        let (mut known, mut all) = (0u32, 0u32);
        for hash in hashes(tokens) {
            known += u32::from(self.0.contains(&hash));
            all += 1;
        }
        if all == 0 { 0.0 } else { f64::from(known) / f64::from(all) }
    }

    /// The hashes in ascending order.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = u64> {
        self.0.iter().copied()
    }

    /// Appends the number of hashes, and the hashes.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.0.len() as u32).to_le_bytes());
        self.0.iter().for_each(|mark| out.extend_from_slice(&mark.to_le_bytes()));
    }

    /// Reads what [`Marks::write`] wrote. `None` if the hashes do not ascend.
    pub(crate) fn parse(bytes: &mut ByteReader<'_>) -> Result<Option<Self>, StorageError> {
        let count = bytes.u32()? as usize;
        let raw = bytes.take(count.saturating_mul(8))?.as_chunks().0;
        let hashes = raw.iter().map(|mark| u64::from_le_bytes(*mark));
        Ok(hashes.clone().is_sorted_by(|a, b| a < b).then(|| Self(hashes.collect())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_known_wherever_its_windows_begin() {
        let mut random = fastrand::Rng::with_seed(1);
        let tokens: Vec<u32> = (0..4096).map(|_| random.u32(..50_000)).collect();
        let mut marks = Marks::default();
        tokens[..2048].chunks(512).for_each(|window| marks.add(window));
        assert!((10..60).contains(&marks.iter().len()), "{}", marks.iter().len());
        assert!(marks.share(&tokens[37..1500]) > 0.8);
        assert_eq!(marks.share(&tokens[2048..]), 0.0);
        assert_eq!(marks.share(&tokens[..RUN - 1]), 0.0, "too short for a mark");
        let mut bytes = Vec::new();
        marks.write(&mut bytes);
        assert_eq!(Marks::parse(&mut ByteReader::new(&bytes, "basis")).unwrap(), Some(marks));
        let twice = [2, 0, 0, 0].into_iter().chain([7; 16]).collect::<Vec<u8>>();
        assert_eq!(Marks::parse(&mut ByteReader::new(&twice, "basis")).unwrap(), None);
        assert!(Marks::parse(&mut ByteReader::new(&twice[..12], "basis")).is_err());
    }
}
