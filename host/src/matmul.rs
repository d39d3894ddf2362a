//! Matrix products: a bounds-checked wrapper around the crate `gemm-f32`.
//!
//! It supports only what the model runner and the dense cache need: row-major f32 with a row stride, with
//! either side transposed.
#![expect(unsafe_code, reason = "`gemm-f32` takes pointers")]

use crate::threads;
use gemm_common::Parallelism;
use gemm_f32::gemm::f32::get_gemm_fn;
use rayon::prelude::*;

/// Products with fewer multiply-adds stay on the calling thread, because a fork costs about 10 us.
const PARALLEL_FROM: usize = 1 << 22;

/// A read-only matrix view over a slice.
#[derive(Clone, Copy)]
pub struct Mat<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Mat<'a> {
    /// Views `rows` rows of `cols` values. Consecutive rows are `row_stride` values apart.
    pub fn new(data: &'a [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        check_bounds(data.len(), rows, cols, row_stride);
        Self { data, rows, cols, row_stride, col_stride: 1 }
    }

    /// The transposed view of the same values.
    pub fn transposed(self) -> Self {
        Self {
            data: self.data,
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
        }
    }

    /// Columns `first..first + count`.
    fn columns(self, first: usize, count: usize) -> Self {
        assert!(first + count <= self.cols, "columns past the matrix");
        Self { data: &self.data[first * self.col_stride..], cols: count, ..self }
    }
}

/// A writable matrix view; rows are contiguous.
pub struct MatMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
}

impl<'a> MatMut<'a> {
    /// Makes a view. See [`Mat::new`].
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        check_bounds(data.len(), rows, cols, row_stride);
        Self { data, rows, cols, row_stride }
    }
}

/// Checks what both views rely on: every element lies inside the slice, and rows do not overlap.
fn check_bounds(len: usize, rows: usize, cols: usize, row_stride: usize) {
    assert!(rows > 0 && cols > 0 && cols <= row_stride, "empty or overlapping matrix rows");
    assert!((rows - 1) * row_stride + cols <= len, "matrix reaches past its slice");
}

/// The treatment of values that are already in the destination.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Accumulate {
    /// They are replaced.
    Replace,
    /// The product is added to them.
    Add,
}

/// Writes `scale * lhs * rhs` to `dst`, or adds it to `dst`.
pub fn product(dst: &mut MatMut<'_>, lhs: Mat<'_>, rhs: Mat<'_>, scale: f32, store: Accumulate) {
    let (m, n, k) = (dst.rows, dst.cols, lhs.cols);
    if m * n * k < PARALLEL_FROM || !threads::several() {
        run(dst, lhs, rhs, scale, store, Parallelism::None);
    } else if m > 1 {
        threads::share(|| run(dst, lhs, rhs, scale, store, Parallelism::Rayon(0)));
    } else {
        // For one row, as in decoding token by token, `gemm` would use one thread, and memory bandwidth is
        // the limit.
        threads::share(|| {
            let span = n.div_ceil(rayon::current_num_threads());
            dst.data[..n].par_chunks_mut(span).enumerate().for_each(|(i, part)| {
                let count = part.len();
                let rhs = rhs.columns(i * span, count);
                run(&mut MatMut::new(part, 1, count, count), lhs, rhs, scale, store, Parallelism::None);
            });
        });
    }
}

fn run(
    dst: &mut MatMut<'_>,
    lhs: Mat<'_>,
    rhs: Mat<'_>,
    scale: f32,
    store: Accumulate,
    threads: Parallelism,
) {
    let (m, n, k) = (dst.rows, dst.cols, lhs.cols);
    assert!(lhs.rows == m && rhs.rows == k && rhs.cols == n, "matrix shapes do not match");
    // The kernels write columns, so rows are written as columns of the transposed product. A single column
    // stays as it is.
    let (m, n, lhs, rhs) =
        if dst.row_stride > 1 { (n, m, rhs.transposed(), lhs.transposed()) } else { (m, n, lhs, rhs) };
    // SAFETY: `gemm-f32` needs pointers and strides that stay inside their allocations for all m*k, k*n and
    // m*n elements, and a destination that no input overlaps. `check_bounds` checked the views when they were
    // made, and `columns` only narrows one. The assertion above checked the shapes, and transposing both
    // sides keeps them. The destination is a unique borrow. Slice lengths fit isize.
    unsafe {
        get_gemm_fn()(
            m,
            n,
            k,
            dst.data.as_mut_ptr(),
            dst.row_stride as isize,
            1,
            store == Accumulate::Add,
            lhs.data.as_ptr(),
            lhs.col_stride as isize,
            lhs.row_stride as isize,
            rhs.data.as_ptr(),
            rhs.col_stride as isize,
            rhs.row_stride as isize,
            1.0f32,
            scale,
            false,
            false,
            false,
            threads,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn painted(len: usize, period: usize) -> Vec<f32> {
        (0..len).map(|i| (i % period) as f32 - (period / 2) as f32).collect()
    }

    #[test]
    fn equals_the_triple_loop_for_one_row_and_many() {
        let split_over_threads = (1, 4099, 1031);
        let forked_inside = (130, 259, 131);
        assert!(split_over_threads.1 * split_over_threads.2 >= PARALLEL_FROM);
        assert!(forked_inside.0 * forked_inside.1 * forked_inside.2 >= PARALLEL_FROM);
        for (m, n, k) in [(1, 7, 5), (1, 64, 3), (3, 4, 5), (65, 33, 17), split_over_threads, forked_inside] {
            let (lhs, rhs) = (painted(m * (k + 2), 11), painted(n * k, 7));
            let mut dst = vec![1.0; m * n];
            product(
                &mut MatMut::new(&mut dst, m, n, n),
                Mat::new(&lhs, m, k, k + 2),
                Mat::new(&rhs, n, k, k).transposed(),
                0.5,
                Accumulate::Add,
            );
            for i in 0..m {
                for j in 0..n {
                    let want: f32 = (0..k).map(|p| lhs[i * (k + 2) + p] * rhs[j * k + p]).sum();
                    assert_eq!(dst[i * n + j], 1.0 + 0.5 * want, "{m}x{n}x{k} at {i},{j}");
                }
            }
        }
    }

    #[test]
    fn replaces_what_was_there() {
        let mut dst = vec![f32::NAN; 2];
        let (a, b) = ([2.0], [3.0, 4.0]);
        product(
            &mut MatMut::new(&mut dst, 1, 2, 2),
            Mat::new(&a, 1, 1, 1),
            Mat::new(&b, 1, 2, 2),
            1.0,
            Accumulate::Replace,
        );
        assert_eq!(dst, [6.0, 8.0]);
    }

    #[test]
    #[should_panic(expected = "past its slice")]
    fn a_view_past_its_slice_is_refused() {
        let _ = Mat::new(&[0.0; 5], 2, 3, 3);
    }
}
