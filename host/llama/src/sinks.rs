//! The sinks of sequences: rows whose tokens have the first positions. The RoPE of keys tells positions, so one
//! layer's keys tell the sinks of all layers of a buffer, and those of values.

use std::collections::BTreeSet;

/// The sinks among the rows of a buffer's tensors, which all have the same tokens.
#[derive(Debug, Default)]
pub(crate) struct Sinks {
    /// The first layer that told positions, and the rows that are sinks.
    told: Option<(usize, BTreeSet<usize>)>,
}

impl Sinks {
    /// Notes rows that layer `layer` writes, with their positions; those below `most` are sinks. Only the first
    /// layer that tells positions counts: the host may reuse their memory before the last layers run.
    pub(crate) fn note(&mut self, layer: usize, most: usize, written: impl Iterator<Item = (usize, i32)>) {
        if self.told.as_ref().is_some_and(|(first, _)| *first < layer) {
            return;
        }
        let (first, rows) = self.told.get_or_insert_default();
        *first = layer;
        for (row, position) in written {
            let is_sink = usize::try_from(position).is_ok_and(|position| position < most);
            if is_sink {
                rows.insert(row)
            } else {
                rows.remove(&row)
            };
        }
    }

    /// True if the row that layer `layer` writes is a sink. None if no earlier layer told the positions.
    pub(crate) fn has(&self, layer: usize, row: usize) -> Option<bool> {
        let (first, rows) = self.told.as_ref()?;
        (*first <= layer).then(|| rows.contains(&row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_layer_with_positions_tells_the_sinks() {
        let mut sinks = Sinks::default();
        assert_eq!(sinks.has(1, 7), None);
        sinks.note(1, 2, [(7, 0), (8, 1), (9, 2)].into_iter());
        assert_eq!([7, 8, 9, 10].map(|row| sinks.has(1, row)), [true, true, false, false].map(Some));
        // What a later layer reads is not believed, and an earlier layer was written before.
        sinks.note(3, 2, [(9, 0)].into_iter());
        assert_eq!([sinks.has(3, 9), sinks.has(0, 9)], [Some(false), None]);
        // A later token in the slot of a sink is none.
        sinks.note(1, 2, [(7, 40), (30, 1)].into_iter());
        assert_eq!([7, 8, 30].map(|row| sinks.has(2, row)), [false, true, true].map(Some));
    }
}
