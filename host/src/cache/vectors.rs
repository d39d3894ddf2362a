//! The rows of callers, as they lie: nothing is gathered to be taken up.

/// Vectors that lie a stride apart: those of one head among those of all heads, or parts of others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vectors<'a> {
    all: &'a [f32],
    stride: usize,
    first: usize,
    dim: usize,
}

impl<'a> Vectors<'a> {
    /// Of each `stride` values those from `first` on, `dim` of them.
    pub(super) fn new(all: &'a [f32], stride: usize, first: usize, dim: usize) -> Self {
        Self { all, stride, first, dim }
    }

    /// None.
    pub(super) fn none(dim: usize) -> Self {
        Self::new(&[], dim, 0, dim)
    }

    /// Those of one of `heads` heads.
    pub(super) fn of_head(self, head: usize, heads: usize) -> Self {
        Self { stride: self.stride * heads, first: self.stride * head + self.first, ..self }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len() / self.stride
    }

    pub(super) fn rows(self) -> impl ExactSizeIterator<Item = &'a [f32]> {
        let at = self.first..self.first + self.dim;
        self.all.chunks_exact(self.stride).map(move |token| &token[at.clone()])
    }

    /// Tokens `from..to`.
    pub(super) fn part(self, from: usize, to: usize) -> Self {
        Self { all: &self.all[from * self.stride..to * self.stride], ..self }
    }
}
