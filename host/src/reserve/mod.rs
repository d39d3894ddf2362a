//! Memory in reserved address space.
//!
//! A range of reserved address space is committed before it is used. Its memory is zeros then, and becomes
//! resident when it is touched. A discarded range gives its memory back.

#[cfg(any(test, not(any(unix, windows))))]
mod heap;
#[cfg(any(unix, windows))]
mod region;
#[cfg(any(unix, windows))]
mod table;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(not(any(unix, windows)))]
pub(crate) use heap::Table;
#[cfg(any(unix, windows))]
pub use region::Region;
#[cfg(any(unix, windows))]
pub(crate) use table::Table;

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! like_a_vector_of_zeros {
        ($($name:ident: $table:ident)*) => {$(
            #[test]
            fn $name() {
                let each = 4096 / size_of::<u32>();
                let (mut table, mut wanted) = ($table::Table::<u32>::new(64 * each), Vec::new());
                for (step, len) in
                    [1, each, 5 * each + 3, 40 * each, 7, 9 * each, 0, 64 * each].into_iter().enumerate()
                {
                    table.resize(len);
                    wanted.resize(len, 0);
                    assert_eq!(*table, *wanted, "step {step}: new elements are zeros");
                    let mark = |i: usize| (i + step + 1) as u32;
                    table.iter_mut().enumerate().for_each(|(i, x)| *x = mark(i));
                    wanted.iter_mut().enumerate().for_each(|(i, x)| *x = mark(i));
                    let (from, to) = (len / 3, len / 2 + len / 4);
                    table.forget(from..to);
                    wanted[from..to].fill(0);
                    assert_eq!(*table, *wanted, "step {step}: forgotten elements are zeros");
                    assert_eq!(*table.clone(), *wanted, "step {step}: a copy is equal");
                    let held = table.held_in(std::iter::once(0..len));
                    assert!(held >= len * size_of::<u32>(), "step {step}");
                }
            }
        )*};
    }

    like_a_vector_of_zeros! {
        a_table_in_reserved_memory_is_like_a_vector_of_zeros: table
        a_table_on_the_heap_is_like_a_vector_of_zeros: heap
    }

    #[test]
    #[should_panic(expected = "a table of 8 elements has no 9")]
    fn a_table_refuses_more_than_its_capacity() {
        Table::<u16>::new(8).resize(9);
    }
}
