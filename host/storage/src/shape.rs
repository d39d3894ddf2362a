//! The shape of a model's keys and values.

use sha2::{Digest, Sha256};

use crate::error::StorageError;
use crate::parse::ByteReader;
use tqkv::rope::{Rope, RopePairing};

/// A layer with more values than this has one basis for keys and one for values.
const LARGEST_JOINT: usize = 1024;
/// No model has larger widths or counts. Up to this limit a product of three does not overflow.
const MAX_COUNT: usize = 1 << 16;

/// Which keys and values share one basis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// One basis for keys and values of a layer.
    Joint,
    /// One basis for the keys of a layer, and one for its values. This halves the file and the products, and
    /// costs a few tenths of a bit.
    Apart,
    /// One basis for keys and values of this many consecutive layers, two or more. This needs the fewest
    /// bits. The file and the products grow by the number of layers.
    Layers(u16),
}

impl Join {
    /// Number of layers that share a basis.
    pub fn layers(self) -> usize {
        match self {
            Self::Joint | Self::Apart => 1,
            Self::Layers(layers) => usize::from(layers),
        }
    }

    /// The number in files.
    pub(crate) const fn code(self) -> u16 {
        match self {
            Self::Joint => 0,
            Self::Apart => 1,
            Self::Layers(layers) => layers,
        }
    }

    pub(crate) const fn from_code(code: u16) -> Self {
        match code {
            0 => Self::Joint,
            1 => Self::Apart,
            layers => Self::Layers(layers),
        }
    }
}

/// Layers, heads, coordinates and RoPE of a model's keys and values.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    pub(crate) num_layers: usize,
    pub(crate) num_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) ropes: Vec<Rope>,
    /// The index of the RoPE of each layer.
    pub(crate) rope_of: Vec<u8>,
}

impl Shape {
    /// A shape whose layers all have the same RoPE. `value_dim` is 0 where one latent vector is both key and
    /// value of a token (MLA). The latent vector is then passed as the key.
    ///
    /// # Errors
    /// A count of zero or above 65536, head dims that no codec accepts, or a RoPE that turns more coordinates
    /// than a key has.
    pub fn new(
        num_layers: usize,
        num_kv_heads: usize,
        head_dim: usize,
        value_dim: usize,
        rope: Rope,
    ) -> Result<Self, StorageError> {
        let (ropes, rope_of) = (vec![rope], vec![0; num_layers.min(MAX_COUNT)]);
        let shape = Self { num_layers, num_kv_heads, head_dim, value_dim, ropes, rope_of };
        shape.check()?;
        Ok(shape)
    }

    /// Gives some layers another RoPE: in some models the layers with a sliding window have their own.
    ///
    /// # Errors
    /// A layer that does not exist, or a RoPE that turns more coordinates than a key has.
    pub fn with_rope(
        mut self,
        rope: Rope,
        layers: impl IntoIterator<Item = usize>,
    ) -> Result<Self, StorageError> {
        let kind = u8::try_from(self.ropes.len())
            .map_err(|_| StorageError::Shape("more than 256 kinds of RoPE".into()))?;
        self.ropes.push(rope);
        for layer in layers {
            let of = self.rope_of.get_mut(layer).ok_or_else(|| {
                StorageError::Shape(format!("RoPE of layer {layer} of {}", self.num_layers))
            })?;
            *of = kind;
        }
        self.check()?;
        Ok(self)
    }

    fn check(&self) -> Result<(), StorageError> {
        let bad = |why: String| Err(StorageError::Shape(why));
        let &Self { num_layers, num_kv_heads, head_dim, value_dim, .. } = self;
        if [num_layers, num_kv_heads, head_dim].contains(&0)
            || [num_layers, num_kv_heads, head_dim, value_dim].into_iter().max() > Some(MAX_COUNT)
            || self.layer_values() > MAX_COUNT
        {
            return bad(format!(
                "{num_layers} layers of {num_kv_heads} KV heads of {head_dim} and {value_dim} values; expected 1 to \
                 {MAX_COUNT} of each, and of all values of a layer"
            ));
        }
        if !head_dim.is_multiple_of(16) || !value_dim.is_multiple_of(16) {
            return bad(format!("head dims {head_dim} and {value_dim}; expected multiples of 16"));
        }
        for Rope { first, inv_freq, .. } in &self.ropes {
            let last = inv_freq.len().saturating_mul(2).saturating_add(*first);
            if last > head_dim {
                return bad(format!("RoPE of coordinates {first} to {last} of a head of {head_dim}"));
            }
            if let Some(f) = inv_freq.iter().find(|f| !f.is_finite() || f.abs() > 1e3) {
                return bad(format!(
                    "RoPE with the frequency {f}; expected those of magnitude 1000 and below"
                ));
            }
        }
        Ok(())
    }

    /// Number of layers.
    pub const fn num_layers(&self) -> usize {
        self.num_layers
    }

    /// Coordinates of a key.
    pub const fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Coordinates of a value. 0 for latent vectors.
    pub const fn value_dim(&self) -> usize {
        self.value_dim
    }

    /// Numbers in a token's keys in one layer.
    pub const fn key_values(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Numbers in a token's values in one layer. 0 for latent vectors.
    pub const fn value_values(&self) -> usize {
        self.num_kv_heads * self.value_dim
    }

    /// Numbers in a token's keys and values in one layer.
    pub const fn layer_values(&self) -> usize {
        self.key_values() + self.value_values()
    }

    /// The kind of RoPE of each layer, a number from 0.
    pub fn rope_kinds(&self) -> &[u8] {
        &self.rope_of
    }

    pub(crate) fn rope(&self, layer: usize) -> &Rope {
        &self.ropes[usize::from(self.rope_of[layer])]
    }

    /// The default: keys and values share a basis if a layer has at most 1024 values.
    pub const fn join(&self) -> Join {
        if self.layer_values() <= LARGEST_JOINT { Join::Joint } else { Join::Apart }
    }

    /// Widths of the parts that have a basis of their own, one after the other.
    pub(crate) fn parts(&self, join: Join) -> Vec<usize> {
        match (join, self.value_values()) {
            (Join::Apart, values) if values > 0 => vec![self.key_values(), values],
            _ => vec![join.layers() * self.layer_values()],
        }
    }

    /// Bytes of a basis's matrices, means and scales.
    pub fn basis_bytes(&self, join: Join) -> u64 {
        let parts: u64 = self.parts(join).into_iter().map(|dim| dim as u64 * (dim as u64 + 2)).sum();
        let layers = join.layers().max(1);
        let frames = self.num_layers.div_ceil(layers) as u64;
        frames * (parts + (layers * (2 * self.key_values() + 8)) as u64)
    }

    /// Refuses layers that cannot share a basis.
    pub(crate) fn check_join(&self, join: Join) -> Result<(), StorageError> {
        let Join::Layers(layers) = join else { return Ok(()) };
        let most = MAX_COUNT / self.layer_values();
        if layers < 2 || usize::from(layers) > most || !self.num_layers.is_multiple_of(usize::from(layers)) {
            return Err(StorageError::Shape(format!(
                "a basis over {layers} layers of {}; expected 2 to {most} that divide them",
                self.num_layers
            )));
        }
        Ok(())
    }

    /// The bytes of the shape in the format.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for count in [self.num_layers, self.num_kv_heads, self.head_dim, self.value_dim, self.ropes.len()] {
            out.extend_from_slice(&(count as u32).to_le_bytes());
        }
        for Rope { first, pairs, inv_freq } in &self.ropes {
            for count in [*first, usize::from(*pairs == RopePairing::Interleaved), inv_freq.len()] {
                out.extend_from_slice(&(count as u32).to_le_bytes());
            }
            inv_freq.iter().for_each(|f| out.extend_from_slice(&f.to_le_bytes()));
        }
        out.extend_from_slice(&self.rope_of);
        out
    }

    pub(crate) fn parse(bytes: &mut ByteReader<'_>) -> Result<Self, StorageError> {
        let bad = |why: &str| Err(bytes_error(why));
        let counts: [u32; 5] = bytes.u32s()?;
        let [num_layers, num_kv_heads, head_dim, value_dim, kinds] = counts.map(|count| count as usize);
        if !(1..=256).contains(&kinds) {
            return bad("its number of RoPE kinds is not 1 to 256");
        }
        let mut ropes = Vec::new();
        for _ in 0..kinds {
            let [first, pairs, count] = bytes.u32s()?.map(|count: u32| count as usize);
            let pairs = match pairs {
                0 => RopePairing::Half,
                1 => RopePairing::Interleaved,
                _ => return bad("its RoPE is of an unknown kind"),
            };
            if first > MAX_COUNT || count > MAX_COUNT {
                return bad("its RoPE turns more than any head has");
            }
            let inv_freq =
                bytes.take(8 * count)?.as_chunks().0.iter().map(|f| f64::from_le_bytes(*f)).collect();
            ropes.push(Rope { first, pairs, inv_freq });
        }
        let rope_of = bytes.take(num_layers)?.to_vec();
        if rope_of.iter().any(|&kind| usize::from(kind) >= kinds) {
            return bad("a layer names a RoPE that does not exist");
        }
        let shape = Self { num_layers, num_kv_heads, head_dim, value_dim, ropes, rope_of };
        shape.check().map_err(|error| bytes_error(&error.to_string()))?;
        Ok(shape)
    }

    /// The digest that replaces a basis where there is none. RoPE and counts must be the same to decode.
    pub(crate) fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.to_bytes()).into()
    }

    /// The first difference to `other`, in words.
    pub(crate) fn differs(&self, other: &Self) -> Option<String> {
        let counts = |shape: &Self| {
            let Self { num_layers, num_kv_heads, head_dim, value_dim, .. } = shape;
            format!("{num_layers} layers, {num_kv_heads} KV heads of {head_dim} and {value_dim} values")
        };
        let (own, others) = (counts(self), counts(other));
        if own != others {
            return Some(format!("it is of {own}, the model of {others}"));
        }
        (self != other).then(|| "it is of another RoPE than the model's".to_owned())
    }
}

fn bytes_error(why: &str) -> StorageError {
    StorageError::basis(why)
}
