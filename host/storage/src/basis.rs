//! A basis for the keys and values of each layer of one model.

use std::fmt;

use crate::error::StorageError;
use crate::frame::Frame;
use crate::marks::Marks;
use crate::shape::{Join, Shape};

/// The SHA-256 of a basis file: its name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BasisId(pub [u8; 32]);

impl BasisId {
    /// Reads the 64 hexadecimal digits that `Display` writes.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let mut id = [0; 32];
        let digits = name.as_bytes().as_chunks::<2>().0;
        if name.len() != 2 * id.len() {
            return None;
        }
        for (byte, digits) in id.iter_mut().zip(digits) {
            let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
            *byte = (high? << 4 | low?) as u8;
        }
        Some(Self(id))
    }
}

impl fmt::Display for BasisId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BasisId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The basis of each layer, in which its keys and values are coded. [`crate::Learner::freeze`] makes one, and
/// nothing changes it.
///
/// Size: about `layer_values^2` bytes per layer where keys and values share a basis. It is half of that where
/// they have one each, and n times that where n layers share one. Encoding takes as much again.
#[derive(Debug, Clone, PartialEq)]
pub struct Basis {
    pub(crate) shape: Shape,
    pub(crate) join: Join,
    pub(crate) model: String,
    pub(crate) tokens: u64,
    pub(crate) marks: Marks,
    /// One frame per layer or group of layers, in their order.
    pub(crate) frames: Vec<Frame>,
    pub(crate) id: BasisId,
}

impl Basis {
    /// The frame in which a layer is coded.
    pub(crate) fn frame(&self, layer: usize) -> &Frame {
        &self.frames[layer / self.join.layers()]
    }

    /// The name of the basis.
    pub const fn id(&self) -> BasisId {
        self.id
    }

    /// The model that the basis was learned for.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The number of tokens that the basis was learned from.
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The share of a text that the basis was learned from, estimated from hashes of the tokens passed to
    /// [`crate::Learner::mark`]. Figures measured on such a text say nothing about other texts. 0 where no
    /// tokens were marked.
    pub fn learned_from(&self, tokens: &[u32]) -> f64 {
        self.marks.share(tokens)
    }

    /// The shape of the keys and values.
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Which keys and values share one basis.
    pub const fn join(&self) -> Join {
        self.join
    }

    /// Checks that the basis is for this model and shape.
    ///
    /// # Errors
    /// [`StorageError::Basis`] names the difference.
    pub fn check(&self, model: &str, shape: &Shape) -> Result<(), StorageError> {
        if self.model != model {
            return Err(StorageError::Basis(format!(
                "it is of the model '{}', not of '{model}'",
                self.model
            )));
        }
        self.shape.differs(shape).map_or(Ok(()), |why| Err(StorageError::Basis(why)))
    }
}
