//! The life of a token: sinks, hot window, warm and cold pages, as measured in a cache.

use tqkv::cache::{CacheSpec, KvCache};
use tqkv::error::CacheError;
use tqkv_cli::error::CliError;
use tqkv_cli::output::grouped;
use tqkv_core::CodecId;

use super::super::heat::Strips;
use super::{Section, Table, Wanted};
use crate::stats::random_directions;

/// Lengths at which the cache is inspected.
const LENGTHS: [usize; 7] = [32, 128, 256, 512, 1024, 2048, 4096];
const DIM: usize = 128;
/// Codes that lose one bit with age, twice.
const POLICY: &str = "n4 tier=256:n3 tier=1024:n2";
/// Names of the parts of a sequence.
const PARTS: [(&str, usize); 5] = [
    ("sinks, f16 for ever", 3),
    ("cold, 2 bits", 0),
    ("cold, 3 bits", 5),
    ("warm, 4 bits", 2),
    ("hot, f16", 1),
];

/// Number of tokens in each part, and bytes of the cache.
struct TierCounts {
    tokens: usize,
    parts: [usize; 5],
    bytes: usize,
}

pub(super) fn sections(_: &Wanted<'_>) -> Result<Vec<Section>, CliError> {
    let looks = looks().map_err(CliError::failure)?;
    let bits = |look: &TierCounts| 8.0 * look.bytes as f64 / (look.tokens * 2 * DIM) as f64;
    let strips: Vec<_> = looks
        .iter()
        .map(|look| {
            let shares = look.parts.iter().map(|part| *part as f64 / look.tokens as f64).collect();
            (grouped(look.tokens as u64), shares, format!("{:.2} bits", bits(look)))
        })
        .collect();
    let parts = PARTS.map(|(name, colour)| (name.to_owned(), colour));
    let figure = Strips {
        label: "What the tokens of a sequence are kept as, from the first to the newest, at seven lengths; after each its bits per \
                value of the complete cache"
            .to_owned(),
        parts: &parts,
        strips: &strips,
    };
    let rows = looks.iter().map(|look| {
        let mut cells = vec![grouped(look.tokens as u64)];
        cells.extend(look.parts.iter().map(|part| grouped(*part as u64)));
        cells.extend([grouped(look.bytes as u64), format!("{:.2}", bits(look))]);
        cells
    });
    let head = ["tokens", "sinks", "2 bits", "3 bits", "4 bits", "hot", "bytes", "bits per value"];
    Ok(vec![Section {
        title: "The life of a token",
        lead: vec![
            "A token enters the hot window as f16. When 64 newer ones have come it is encoded, once, and joins a warm page. With nested \
             codes a page that grows old drops its low bits, without being decoded: four, then three, then two. The first four tokens \
             stay f16, because attention gathers on them."
                .to_owned(),
            "Attention reads all of it where it lies: f16 rows as f16, pages as codes. Without tiers a token stays warm for ever."
                .to_owned(),
        ],
        figures: vec![figure.figure()?],
        tables: vec![Table::new("The same as a table (one KV head, D = 128)", &head, rows.collect())],
        commands: vec![format!("tqkv eval --kv s4 --kv \"{POLICY}\"")],
        ..Section::default()
    }])
}

/// Fills a cache and inspects it at each length.
fn looks() -> Result<Vec<TierCounts>, CacheError> {
    let mut cache = KvCache::new(CacheSpec::new(1, 1, 1, DIM).with(POLICY)?)?;
    let longest = LENGTHS[LENGTHS.len() - 1];
    let rows = random_directions(2 * longest, DIM, 1).map_err(|e| CacheError::BadSpec(e.to_string()))?;
    let row = |i: usize| {
        let mut row = [0.0; DIM];
        rows.read_row(i, &mut row).map_err(|e| CacheError::BadSpec(e.to_string()))?;
        Ok::<_, CacheError>(row)
    };
    let mut looks = Vec::new();
    for token in 0..longest {
        cache.append(0, &row(2 * token)?, &row(2 * token + 1)?)?;
        if LENGTHS.contains(&cache.len()) {
            looks.push(look(&cache)?);
        }
    }
    Ok(looks)
}

fn look(cache: &KvCache) -> Result<TierCounts, CacheError> {
    let (stats, runs) = (cache.stats(), cache.value_blocks(0, 0)?);
    let coded = |codec: CodecId| {
        let bytes = codec.block_bytes(DIM).unwrap_or(1);
        runs.iter().filter(|run| run.codec == codec).map(|run| run.blocks.len() / bytes).sum()
    };
    let parts = [stats.sinks, coded(CodecId::N2), coded(CodecId::N3), coded(CodecId::N4), stats.hot];
    Ok(TierCounts { tokens: stats.tokens, parts, bytes: stats.allocated_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_in_one_part_and_old_ones_are_narrow() {
        let looks = looks().unwrap();
        assert_eq!(looks.len(), LENGTHS.len());
        for look in &looks {
            assert_eq!(look.parts.iter().sum::<usize>(), look.tokens);
        }
        let [first, .., last] = &looks[..] else { panic!() };
        assert_eq!(first.parts[1..4], [0, 0, 0], "nothing is encoded yet");
        assert!(last.parts[1] > last.parts[2] && last.parts[2] > last.parts[3], "{:?}", last.parts);
    }
}
