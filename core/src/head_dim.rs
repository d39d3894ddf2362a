//! The supported head dims: the only place that defines them.
//!
//! A head dim is `order * sylvester`. `order` is 1 or the order of a Paley matrix (12, 20, 28, 36), and
//! `sylvester` is a power of two. Both factors are orders of Hadamard matrices, so their Kronecker product is
//! one too. Nothing is padded and every entry is +1 or -1. To add a family of head dims, add its order to
//! `ORDERS` and to the text below it, and its prime to [`crate::rotation::paley`]. Everything else reads this
//! file.

/// Orders of the non-Sylvester factor, with 1 for the plain powers of two.
const ORDERS: [usize; 5] = [1, 12, 20, 28, 36];

/// The supported head dims as text for error messages. It is a macro, so that messages can be literals.
macro_rules! accepted_head_dims {
    () => {
        "multiples of 16 from 16 to 1024 of the form n * 2^k with n = 1, 12, 20, 28 or 36"
    };
}
pub(crate) use accepted_head_dims;

/// Smallest supported head dim.
const MIN_HEAD_DIM: usize = 16;
/// Largest supported head dim.
pub const MAX_HEAD_DIM: usize = 1024;

/// Coordinates in one group, the unit of all algorithms.
pub(crate) const GROUP: usize = 32;
/// Groups of the largest head dim.
pub(crate) const MAX_GROUPS: usize = MAX_HEAD_DIM / GROUP;

/// A head dim and its two factors: `dim = order * sylvester`. Only sealed traits name this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct HeadDim {
    dim: u16,
    order: u16,
}

impl HeadDim {
    /// The factors of `dim`, or `None` if it is not supported.
    pub(crate) const fn new(dim: usize) -> Option<Self> {
        if dim < MIN_HEAD_DIM || dim > MAX_HEAD_DIM || !dim.is_multiple_of(16) {
            return None;
        }
        let mut i = 0;
        while i < ORDERS.len() {
            let order = ORDERS[i];
            if dim.is_multiple_of(order) && (dim / order).is_power_of_two() {
                return Some(Self { dim: dim as u16, order: order as u16 });
            }
            i += 1;
        }
        None
    }

    /// The head dim itself.
    pub(crate) const fn dim(self) -> usize {
        self.dim as usize
    }

    /// Order of the Paley factor, 1 for powers of two.
    pub(crate) const fn order(self) -> usize {
        self.order as usize
    }

    /// Order of the Sylvester factor, a power of two.
    pub(crate) const fn sylvester(self) -> usize {
        self.dim as usize / self.order as usize
    }

    /// Groups of 32 coordinates; the last one may be half full.
    pub(crate) const fn groups(self) -> usize {
        (self.dim as usize).div_ceil(GROUP)
    }

    /// True if the last group holds 16 coordinates and 16 zeros.
    pub(crate) const fn is_ragged(self) -> bool {
        !(self.dim as usize).is_multiple_of(GROUP)
    }
}

/// Returns true if `dim` is supported. It must be a multiple of 16 from 16 to 1024, and n * 2^k with n = 1,
/// 12, 20, 28 or 36. The first head dims are 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 224 and 256.
pub const fn is_supported_head_dim(dim: usize) -> bool {
    HeadDim::new(dim).is_some()
}

const COUNT: usize = {
    let (mut n, mut d) = (0, MIN_HEAD_DIM);
    while d <= MAX_HEAD_DIM {
        n += is_supported_head_dim(d) as usize;
        d += 16;
    }
    n
};

/// All supported head dims, ascending.
pub const HEAD_DIMS: [usize; COUNT] = {
    let (mut all, mut n, mut d) = ([0; COUNT], 0, MIN_HEAD_DIM);
    while d <= MAX_HEAD_DIM {
        if is_supported_head_dim(d) {
            all[n] = d;
            n += 1;
        }
        d += 16;
    }
    all
};

/// Position of a supported head dim in [`HEAD_DIMS`].
pub(crate) const fn index_of(dim: usize) -> usize {
    let mut i = 0;
    while i < COUNT {
        if HEAD_DIMS[i] == dim {
            return i;
        }
        i += 1;
    }
    panic!("unsupported head dim")
}
