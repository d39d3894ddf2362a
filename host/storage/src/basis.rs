//! A basis for the keys and values of each layer of one model.

use std::fmt;

use crate::error::StorageError;
use crate::frame::Frame;
use crate::marks::Marks;
use crate::shape::{Join, Shape};

/// The SHA-256 of a basis file: its name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BasisId(pub [u8; 32]);

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

/// Where keys and values of each layer are coded: [`crate::Learner::freeze`] makes one, and nothing changes it.
///
/// About `layer_values^2` bytes a layer where keys and values share one, half of that where they do not, n times that where n layers do.
#[derive(Debug, Clone, PartialEq)]
pub struct Basis {
    pub(crate) shape: Shape,
    pub(crate) join: Join,
    pub(crate) model: String,
    pub(crate) tokens: u64,
    pub(crate) marks: Marks,
    /// In the order of their layers.
    pub(crate) frames: Vec<Frame>,
    pub(crate) id: BasisId,
}

impl Basis {
    /// That in which a layer is coded.
    pub(crate) fn frame(&self, layer: usize) -> &Frame {
        &self.frames[layer / self.join.layers()]
    }

    /// Its name.
    pub const fn id(&self) -> BasisId {
        self.id
    }

    /// The model that it was learned for.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Tokens that it was learned from.
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The share of a text that it was learned from, estimated from some hashes of what [`crate::Learner::mark`] was shown; figures on
    /// such a text say nothing of others. 0 where it was shown nothing.
    pub fn learned_from(&self, tokens: &[u32]) -> f64 {
        self.marks.share(tokens)
    }

    /// What keys and values it is for.
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// What shares it.
    pub const fn join(&self) -> Join {
        self.join
    }

    /// Refuses a basis of another model or shape.
    ///
    /// # Errors
    /// [`StorageError::Basis`] with what differs.
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
