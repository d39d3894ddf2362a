//! Hadamard matrices whose order is not a power of two: Paley's constructions.
//!
//! Entry (r, c) is -1 if bit c of row r is set. For a prime q = 3 mod 4, construction I gives order q + 1.
//! For q = 1 mod 4, construction II gives order 2 (q + 1). Both start from the Jacobsthal matrix of quadratic
//! residues, `chi(r - c)`. SPEC.md fixes the construction of each order; the tests check orthogonality.

/// Largest order in this file.
pub(crate) const MAX_ORDER: usize = 36;

/// Rows of a +-1 matrix as bit masks.
type SignRows = [u64; MAX_ORDER];

/// Quadratic character of `a` modulo the odd prime `q`: 0, 1 or -1.
const fn chi(a: usize, q: usize) -> i8 {
    let a = a % q;
    if a == 0 {
        return 0;
    }
    let mut root = 1;
    while root < q {
        if root * root % q == a {
            return 1;
        }
        root += 1;
    }
    -1
}

/// Entry (r, c) of the bordered Jacobsthal matrix: 0 on the diagonal, +1 in the first row,
/// `border` in the first column, `chi` inside.
const fn conference(r: usize, c: usize, q: usize, border: i8) -> i8 {
    if r == c {
        0
    } else if r == 0 {
        1
    } else if c == 0 {
        border
    } else {
        chi(q + r - c, q)
    }
}

/// Construction I: I + S with S skew.
const fn paley_one(q: usize) -> SignRows {
    let (mut rows, mut r) = ([0; MAX_ORDER], 0);
    while r <= q {
        let mut c = 0;
        while c <= q {
            if r != c && conference(r, c, q, -1) < 0 {
                rows[r] |= 1 << c;
            }
            c += 1;
        }
        r += 1;
    }
    rows
}

/// Construction II: each entry e of the symmetric conference matrix becomes e * [+ +; + -]. Each zero of its
/// diagonal becomes [+ -; - -].
const fn paley_two(q: usize) -> SignRows {
    let (mut rows, mut r) = ([0; MAX_ORDER], 0);
    while r <= q {
        let mut c = 0;
        while c <= q {
            let negative: [[bool; 2]; 2] = match conference(r, c, q, 1) {
                0 => [[false, true], [true, true]],
                1 => [[false, false], [false, true]],
                _ => [[true, true], [true, false]],
            };
            let mut i = 0;
            while i < 4 {
                if negative[i / 2][i % 2] {
                    rows[2 * r + i / 2] |= 1 << (2 * c + i % 2);
                }
                i += 1;
            }
            c += 1;
        }
        r += 1;
    }
    rows
}

const fn transpose(rows: &SignRows) -> SignRows {
    let (mut out, mut r) = ([0; MAX_ORDER], 0);
    while r < MAX_ORDER {
        let mut c = 0;
        while c < MAX_ORDER {
            out[c] |= (rows[r] >> c & 1) << r;
            c += 1;
        }
        r += 1;
    }
    out
}

/// A Hadamard matrix and its transpose.
struct PaleyMatrix {
    forward: SignRows,
    transposed: SignRows,
}

impl PaleyMatrix {
    const fn new(forward: SignRows) -> Self {
        Self { forward, transposed: transpose(&forward) }
    }
}

static ORDER_12: PaleyMatrix = PaleyMatrix::new(paley_one(11));
static ORDER_20: PaleyMatrix = PaleyMatrix::new(paley_one(19));
static ORDER_28: PaleyMatrix = PaleyMatrix::new(paley_two(13));
static ORDER_36: PaleyMatrix = PaleyMatrix::new(paley_two(17));

/// Rows of the matrix of `order` (12, 20, 28 or 36), or of its transpose. If bit c of row r is set, entry (r,
/// c) is -1. Any other order gives an empty table.
pub(crate) fn rows(order: usize, transposed: bool) -> &'static [u64] {
    let pair = match order {
        12 => &ORDER_12,
        20 => &ORDER_20,
        28 => &ORDER_28,
        36 => &ORDER_36,
        _ => return &[],
    };
    let rows = if transposed { &pair.transposed } else { &pair.forward };
    rows.get(..order).unwrap_or_default()
}
