//! Tensors of the host as slices.

#![allow(unsafe_code, reason = "tensors of the host are pointers")]

use crate::abi::{self, DIMS, Tensor};
use std::ffi::{CStr, c_int};

/// A tensor whose fields may be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a>(&'a Tensor);

impl<'a> View<'a> {
    /// The view of a tensor of the host; none for null.
    ///
    /// # Safety
    /// The struct, its sources and the tensors that it views are valid and unchanged as long as the result.
    pub(crate) unsafe fn new(tensor: *const Tensor) -> Option<Self> {
        // SAFETY: the caller keeps this function's contract.
        unsafe { tensor.as_ref() }.map(Self)
    }

    /// The struct.
    pub(crate) fn get(&self) -> &'a Tensor {
        self.0
    }

    /// A source of the operation.
    pub(crate) fn source(&self, i: usize) -> Option<Self> {
        // SAFETY: `new` requires that sources are valid as long as the tensor.
        unsafe { Self::new(self.0.src[i]) }
    }

    /// The tensor that this one is a view of, or itself.
    pub(crate) fn root(&self) -> Self {
        let mut root = *self;
        // SAFETY: `new` requires that a viewed tensor is valid as long as the view.
        while let Some(viewed) = unsafe { Self::new(root.0.view_src) } {
            root = viewed;
        }
        root
    }

    /// The name that the host gave it.
    pub(crate) fn name(&self) -> &'a CStr {
        // SAFETY: the array is a field of the struct, which is valid for `'a`.
        let bytes =
            unsafe { std::slice::from_raw_parts(self.0.name.as_ptr().cast::<u8>(), self.0.name.len()) };
        CStr::from_bytes_until_nul(bytes).unwrap_or_default()
    }

    /// Elements in each dimension.
    pub(crate) fn shape(&self) -> [usize; DIMS] {
        self.0.ne.map(|n| usize::try_from(n).unwrap_or(0))
    }

    /// True if a dimension is 0.
    pub(crate) fn is_empty(&self) -> bool {
        self.shape().contains(&0)
    }

    /// Parameter `i` of the operation, as an integer.
    pub(crate) fn int(&self, i: usize) -> i32 {
        self.0.op_params[i]
    }

    /// Parameter `i` of the operation, as a float.
    pub(crate) fn float(&self, i: usize) -> f32 {
        f32::from_bits(self.0.op_params[i].cast_unsigned())
    }

    /// Bytes from the first element to the end of the last.
    fn span(&self, element: usize) -> usize {
        let steps = self.shape().into_iter().zip(self.0.nb);
        steps.map(|(n, step)| n.saturating_sub(1) * step).sum::<usize>() + element
    }

    /// Strides in elements. None where the tensor is not of type `T`, or the elements of a row are apart.
    pub(crate) fn strides<T: Element>(&self) -> Option<[usize; DIMS]> {
        let size = size_of::<T>();
        let fits = self.0.kind == T::KIND && self.0.nb.iter().all(|step| step % size == 0);
        (fits && (self.0.nb[0] == size || self.0.ne[0] <= 1)).then(|| self.0.nb.map(|step| step / size))
    }

    /// Address of the first element, and the number of elements up to the last.
    ///
    /// None where the tensor is empty or of another type, has no memory, or is not aligned.
    fn place<T: Element>(&self) -> Option<(*mut T, usize)> {
        let at: *mut T = self.0.data.cast();
        let usable = self.0.kind == T::KIND && !at.is_null() && at.is_aligned() && !self.is_empty();
        usable.then(|| (at, self.span(size_of::<T>()) / size_of::<T>()))
    }

    /// All elements from the first to the last, with those between rows.
    ///
    /// None where the tensor is empty or of another type, has no memory, or is not aligned.
    ///
    /// # Safety
    /// The tensor lies in memory as ggml.h says, and nobody writes to it while the slice exists.
    pub(crate) unsafe fn elements<T: Element>(&self) -> Option<&'a [T]> {
        let (at, count) = self.place()?;
        // SAFETY: the caller guarantees memory and aliasing; `place` checked type and alignment.
        Some(unsafe { std::slice::from_raw_parts(at, count) })
    }

    /// All bytes from the first element to the end of the last, whose size is `element`. None where the
    /// tensor is empty or has no memory.
    ///
    /// # Safety
    /// Same as [`View::elements_mut`].
    pub(crate) unsafe fn bytes_mut(&self, element: usize) -> Option<&'a mut [u8]> {
        let at: *mut u8 = self.0.data.cast();
        // SAFETY: the caller guarantees memory and aliasing, and bytes have no alignment.
        (!at.is_null() && !self.is_empty())
            .then(|| unsafe { std::slice::from_raw_parts_mut(at, self.span(element)) })
    }

    /// Same as [`View::elements`], but mutable.
    ///
    /// # Safety
    /// The tensor lies in memory as ggml.h says, and nobody else reads or writes it while the slice exists.
    pub(crate) unsafe fn elements_mut<T: Element>(&self) -> Option<&'a mut [T]> {
        let (at, count) = self.place()?;
        // SAFETY: the caller guarantees memory and aliasing; `place` checked type and alignment.
        Some(unsafe { std::slice::from_raw_parts_mut(at, count) })
    }
}

/// A type of tensor elements.
pub(crate) trait Element: Copy {
    /// The `ggml_type`.
    const KIND: c_int;
}

impl Element for f32 {
    const KIND: c_int = abi::F32;
}

impl Element for half::f16 {
    const KIND: c_int = abi::F16;
}

impl Element for i32 {
    const KIND: c_int = abi::I32;
}

impl Element for i64 {
    const KIND: c_int = abi::I64;
}
