//! What the library says about a cache, once: how its layers are held, and which are not.

use std::fmt::Write as _;
use std::io::Write as _;
use tqkv::AnyCodec;
use tqkv::unstable::slots::{SlotStore, StoreSide};

/// Writes a line to standard error at once. `eprintln!` writes the parts of a line one by one, and another thread
/// of the host, or the prefix of its log, may come between them.
pub(crate) fn print(line: &str) {
    // A line that cannot be written has no other place.
    let _ = std::io::stderr().write_all(format!("tqkv: {line}\n").as_bytes());
}

/// One side of a layer, as the line sees it.
#[derive(Clone, Debug)]
pub(crate) struct HeldSide {
    pub(crate) layer: usize,
    pub(crate) side: StoreSide,
    /// The codec's name, and the bytes of a row in it; none where the rows were not divided into heads.
    pub(crate) codes: Option<(&'static str, usize)>,
    /// Bytes of a row in the coldest tier, to which the rows of a long context come; none as above.
    pub(crate) coldest: Option<usize>,
    /// Bytes of a row in f16.
    pub(crate) f16_bytes: usize,
    /// A head dim that no codec has; 0 if none was asked for.
    pub(crate) refused_dim: usize,
}

impl HeldSide {
    pub(crate) fn new(layer: usize, side: StoreSide, store: &SlotStore, refused_dim: usize) -> Self {
        let f16_bytes = 2 * store.width();
        let row_bytes = |codec: Option<&AnyCodec>, dim: usize| {
            codec.map_or(f16_bytes, |codec| store.width() / dim * codec.block_bytes())
        };
        let codes = store.format().map(|format| {
            let codec = format.codec();
            (codec.map_or("f16", |codec| codec.id().name()), row_bytes(codec, format.dim()))
        });
        let coldest = store.format().map(|format| row_bytes(format.coldest_codec(), format.dim()));
        Self { layer, side, codes, coldest, f16_bytes, refused_dim }
    }
}

/// The lines about a cache: one about the layers in codes, and one about those that stay f16.
pub(crate) fn lines(held: &[HeldSide]) -> Vec<String> {
    let mut layers: Vec<usize> = held.iter().map(|held| held.layer).collect();
    layers.sort_unstable();
    layers.dedup();
    let (mut kinds, mut plain): (Vec<(String, usize)>, Vec<usize>) = (Vec::new(), Vec::new());
    let (mut bytes, mut coldest, mut f16_bytes) = (0, 0, 0);
    for &layer in &layers {
        let sides: Vec<&HeldSide> = held.iter().filter(|held| held.layer == layer).collect();
        let name = |side| sides.iter().find(|held| held.side == side).and_then(|held| Some(held.codes?.0));
        let has_values = sides.iter().any(|held| held.side == StoreSide::Values);
        let pair = match (name(StoreSide::Keys), name(StoreSide::Values)) {
            (Some(key), Some(value)) => format!("{key},{value}"),
            (Some(key), None) if !has_values => format!("{key} for keys that are also values"),
            _ => {
                plain.push(layer);
                continue;
            }
        };
        bytes += sides.iter().filter_map(|held| Some(held.codes?.1)).sum::<usize>();
        coldest += sides.iter().filter_map(|held| held.coldest).sum::<usize>();
        f16_bytes += sides.iter().map(|held| held.f16_bytes).sum::<usize>();
        match kinds.iter_mut().find(|(kind, _)| *kind == pair) {
            Some((_, count)) => *count += 1,
            None => kinds.push((pair, 1)),
        }
    }
    let mut lines = Vec::new();
    if !kinds.is_empty() {
        let kinds: Vec<String> =
            kinds.iter().map(|(pair, count)| format!("{count} {} in {pair}", layers_of(*count))).collect();
        let kib = |bytes: usize| format!("{:.2} KiB", bytes as f64 / 1024.0);
        let per_token = if coldest == bytes {
            format!("{} per token", kib(bytes))
        } else {
            format!("{} per new token, {} per old one", kib(bytes), kib(coldest))
        };
        lines.push(format!("KV cache of {}: {per_token}, {} in f16", kinds.join(", "), kib(f16_bytes)));
    }
    if !plain.is_empty() {
        lines.push(not_served(held, &plain));
    }
    lines
}

fn layers_of(count: usize) -> &'static str {
    if count == 1 { "layer" } else { "layers" }
}

/// The line about layers that stay f16, with the reason of the first of them.
fn not_served(held: &[HeldSide], plain: &[usize]) -> String {
    let of_first: Vec<&HeldSide> = held.iter().filter(|held| held.layer == plain[0]).collect();
    let dim = of_first.iter().map(|held| held.refused_dim).max().unwrap_or(0);
    let why = if dim > 0 {
        format!("no codec has head dim {dim}")
    } else {
        "their attention is of a form that is not served".to_owned()
    };
    let mut line = format!(
        "{} {} in f16, slowly",
        plain.len(),
        if plain.len() == 1 { "layer stays" } else { "layers stay" }
    );
    let _ = write!(line, ", because {why}");
    line
}

/// The line about the first `missing` layers, whose cache is not here; none if there are none.
pub(crate) fn elsewhere(missing: usize) -> Option<String> {
    let layers = match missing {
        0 => return None,
        1 => "layer 0 keeps its cache".to_owned(),
        _ => format!("layers 0 to {} keep their cache", missing - 1),
    };
    Some(format!(
        "{layers} elsewhere, in the declared type: -ngl 99 gives all layers to TQKV. For weights on a GPU, here \
         called Vulkan0: -dev TQKV,Vulkan0 -ts 1,0 -ot .*=Vulkan0"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(layer: usize, side: StoreSide, codec: &'static str, bytes: usize) -> HeldSide {
        let (codes, coldest) = (Some((codec, bytes)), Some(bytes));
        HeldSide { layer, side, codes, coldest, f16_bytes: 256, refused_dim: 0 }
    }

    #[test]
    fn first_layers_that_are_elsewhere_are_named() {
        assert_eq!(elsewhere(0), None);
        assert!(elsewhere(1).unwrap().starts_with("layer 0 keeps its cache elsewhere"));
        assert!(elsewhere(16).unwrap().starts_with("layers 0 to 15 keep their cache elsewhere"));
    }

    #[test]
    fn layers_are_counted_by_their_codecs() {
        let mut all = vec![
            held(0, StoreSide::Keys, "t4", 66),
            held(0, StoreSide::Values, "t2", 34),
            held(2, StoreSide::Keys, "t4", 66),
            held(2, StoreSide::Values, "t2", 34),
            held(1, StoreSide::Keys, "i8", 130),
            held(1, StoreSide::Values, "i8", 130),
        ];
        assert_eq!(
            lines(&all),
            ["KV cache of 2 layers in t4,t2, 1 layer in i8,i8: 0.45 KiB per token, 1.50 KiB in f16"]
        );
        let latents = [held(5, StoreSide::Keys, "s4", 34)];
        assert_eq!(
            lines(&latents),
            ["KV cache of 1 layer in s4 for keys that are also values: 0.03 KiB per token, 0.25 KiB in f16"]
        );
        let tiers = [HeldSide { coldest: Some(34), ..held(0, StoreSide::Keys, "t4", 66) }];
        assert_eq!(
            lines(&tiers),
            [
                "KV cache of 1 layer in t4 for keys that are also values: 0.06 KiB per new token, 0.03 KiB per old one, 0.25 KiB in f16"
            ]
        );
        all.truncate(2);
        all.push(HeldSide { codes: None, refused_dim: 40, ..held(3, StoreSide::Keys, "", 0) });
        all.push(HeldSide { codes: None, ..held(4, StoreSide::Keys, "", 0) });
        let lines = lines(&all);
        assert_eq!(lines[1], "2 layers stay in f16, slowly, because no codec has head dim 40");
        assert_eq!(
            not_served(&all[3..], &[4]),
            "1 layer stays in f16, slowly, because their attention is of a form that is not served"
        );
    }
}
