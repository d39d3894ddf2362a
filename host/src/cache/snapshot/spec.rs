//! Reads the spec of a snapshot: the inverse of `fields`.

use crate::cache::chunks::{NO_NUMBER, Parser, refused};
use crate::cache::layer::{LayerKind, LayerPolicy, LayerShape};
use crate::cache::spec::{Arithmetic, CacheSpec, Centring, Cold, KeyMap};
use crate::error::CacheError;
use tqkv_core::{CodecId, Effort, KvShape, Options, ScaleMode};

/// Limit on a count in a spec, 2^48 on 64-bit machines. It is larger than any real count, and far from
/// overflow.
const MOST: usize = 1 << (usize::BITS * 3 / 4);

/// Limit on the KV heads of all layers. No model has as many, and empty ones take few megabytes.
const MOST_HEADS: usize = 1 << 16;

/// Reads the payload of the spec's chunk.
pub(super) fn read(payload: &[u8]) -> Result<CacheSpec, CacheError> {
    let parser = &mut Parser::new(payload);
    let mut shape = [0; 6];
    for value in &mut shape {
        *value = parser.count("layers, heads or coordinates", MOST)?;
    }
    let [num_layers, num_heads, num_kv_heads, head_dim, value_dim, position_dim] = shape;
    let shape = KvShape::new(num_layers, num_heads, num_kv_heads, head_dim).with_value_dim(value_dim);
    let heads = num_layers.saturating_mul(num_kv_heads);
    if heads > MOST_HEADS {
        return refused(format!("{heads} KV heads: expected at most {MOST_HEADS}"));
    }
    // Taken at once, so a chunk cannot ask for more layers than it has bytes for.
    let codecs = parser.bytes(num_layers, 2)?.chunks_exact(2);
    let pairs = codecs.map(|pair| Ok((codec(pair[0])?, codec(pair[1])?)));
    let pairs: Vec<_> = pairs.collect::<Result<_, CacheError>>()?;
    let seen = (0..num_layers).map(|_| seen(parser)).collect::<Result<Vec<_>, _>>()?;
    let seed = parser.values::<u64>(1)?;
    let [mode, effort] = two(parser)?;
    let (Some(scale_mode), Some(&effort)) =
        (ScaleMode::from_code(mode), Effort::ALL.get(usize::from(effort)))
    else {
        return refused(format!("scale mode {mode}, effort {effort}, which are not known"));
    };
    let (sinks, hot) = (parser.count("sinks", MOST)?, parser.count("hot tokens", MOST)?);
    let (kinds, sliding_window) = windows(&seen, sinks)?;
    let (centring, arithmetic) = match two(parser)? {
        [centring @ 0..3, arithmetic @ 0..2] => (
            [Centring::Off, Centring::On, Centring::Auto][usize::from(centring)],
            [Arithmetic::Int8, Arithmetic::F32][usize::from(arithmetic)],
        ),
        [centring, arithmetic] => {
            return refused(format!("centring {centring}, arithmetic {arithmetic}, which are not known"));
        }
    };
    let tiers = parser.count("cold tiers", usize::from(u16::MAX))?;
    let cold = (0..tiers).map(|_| tier(parser)).collect::<Result<_, _>>()?;
    let [scale, soft_cap] = [float(parser)?, float(parser)?];
    if float(parser)? != Some(0.0) {
        return refused("with skipped values, which no cache has any more".to_owned());
    }
    let logits = parser.count("learned sinks", MOST)?;
    let sink_logits = parser.values::<f32>(logits)?;
    let layer_shapes = layer_shapes(parser, num_layers)?;
    let narrow_at =
        if parser.takes(8) { Some(parser.count("bytes before narrowing", usize::MAX)?) } else { None };
    let (ring, key_map) = last_field(parser)?;
    let Some(&(key, value)) = pairs.first() else { return refused("of a cache without layers") };
    Ok(CacheSpec {
        layer_shapes,
        position_dim,
        key,
        value,
        layers: LayerPolicy::Custom(pairs),
        kinds,
        sliding_window,
        ring,
        options: Options::DEFAULT
            .seed(seed.first().copied().unwrap_or_default())
            .scale_mode(scale_mode)
            .effort(effort),
        sinks,
        hot,
        narrow_at,
        centring,
        key_map,
        arithmetic,
        cold,
        scale,
        soft_cap,
        sink_logits,
        ..CacheSpec::from(shape)
    })
}

/// Reads the shapes of layers, which only some specs have.
fn layer_shapes(parser: &mut Parser<'_>, num_layers: usize) -> Result<Vec<LayerShape>, CacheError> {
    if !parser.takes(5) {
        return Ok(Vec::new());
    }
    let mut heads: usize = 0;
    let mut shape = |_| {
        let mut count = || parser.count("KV heads or coordinates of a layer", MOST);
        let shape = LayerShape { num_kv_heads: count()?, head_dim: count()?, value_dim: count()? };
        heads = heads.saturating_add(shape.num_kv_heads);
        if heads > MOST_HEADS {
            return refused(format!("{heads} KV heads: expected at most {MOST_HEADS}"));
        }
        Ok(shape)
    };
    (0..num_layers).map(&mut shape).collect()
}

/// Reads the last fields, which only specs with a ring or a map have.
fn last_field(parser: &mut Parser<'_>) -> Result<(Option<usize>, KeyMap), CacheError> {
    if parser.end().is_ok() {
        return Ok((None, KeyMap::Auto));
    }
    let read = match parser.bytes(1, 1)?[0] {
        1 => (None, KeyMap::Pairs),
        4 => (Some(parser.count("tokens of a ring", MOST)?), KeyMap::Auto),
        6 => (None, KeyMap::Auto),
        7 => (None, KeyMap::Off),
        code => return refused(format!("key map {code}, which is not known")),
    };
    parser.end()?;
    Ok(read)
}

fn two(parser: &mut Parser<'_>) -> Result<[u8; 2], CacheError> {
    let bytes = parser.bytes(1, 2)?;
    Ok([bytes[0], bytes[1]])
}

fn codec(code: u8) -> Result<CodecId, CacheError> {
    CodecId::from_code(code).map_or_else(|| refused(format!("codec {code}, which is not known")), Ok)
}

fn seen(parser: &mut Parser<'_>) -> Result<LayerSight, CacheError> {
    Ok(match parser.count("kinds of layers", 3)? {
        0 => LayerSight::Kind(LayerKind::Full),
        1 => LayerSight::Kind(LayerKind::None),
        2 => LayerSight::Sinks(parser.count("tokens of a window", MOST)?),
        _ => LayerSight::Kind(LayerKind::Sliding(parser.count("tokens of a window", MOST)?)),
    })
}

/// The tokens that a layer's queries see.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LayerSight {
    Kind(LayerKind),
    /// A window, with sinks beside it.
    Sinks(usize),
}

/// The kinds of the layers, or the window of all of them.
fn windows(seen: &[LayerSight], sinks: usize) -> Result<(Vec<LayerKind>, Option<usize>), CacheError> {
    if let Some(LayerSight::Sinks(window)) =
        seen.first().filter(|first| sinks > 0 && seen.iter().all(|s| s == *first))
    {
        return Ok((Vec::new(), Some(*window)));
    }
    let kind = |seen: &LayerSight| match *seen {
        LayerSight::Kind(kind) => Ok(kind),
        LayerSight::Sinks(window) if sinks == 0 => Ok(LayerKind::Sliding(window)),
        LayerSight::Sinks(_) => {
            refused("some layers have a window beside sinks: expected one for all layers")
        }
    };
    Ok((seen.iter().map(kind).collect::<Result<_, _>>()?, None))
}

fn tier(parser: &mut Parser<'_>) -> Result<(usize, Cold), CacheError> {
    let after = parser.count("tokens before a tier", MOST)?;
    let bytes = parser.bytes(1, 3)?;
    match bytes[0] {
        // The folder belongs to the machine.
        0 => Ok((after, Cold::Spill(std::env::temp_dir()))),
        1 => Ok((after, Cold::Demote { key: codec(bytes[1])?, value: codec(bytes[2])? })),
        other => refused(format!("a cold tier of kind {other}, which is not known")),
    }
}

fn float(parser: &mut Parser<'_>) -> Result<Option<f32>, CacheError> {
    let value = parser.values::<f32>(1)?.first().copied();
    Ok(value.filter(|value| value.to_bits() != NO_NUMBER))
}
