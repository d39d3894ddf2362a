//! [`Threads`]: the operations of 32 threads in lock step. Each machine implements this one trait.
//!
//! A value that differs between threads is `Of<T>`: a plain `T` on the device, `[T; 32]` in the emulator. A
//! value that is the same for all threads is a plain Rust value. Control flow depends only on such values, so
//! a body that compiles cannot diverge around an exchange.

/// A warp.
pub trait Threads: Copy {
    /// One `T` per thread.
    type Of<T: Copy>: Copy;
    /// A place in device memory. Reads and writes are at byte offsets from it.
    type Memory: Copy;

    /// The same value in every thread.
    fn splat<T: Copy>(value: T) -> Self::Of<T>;
    /// The value, which is the same in all threads.
    fn uniform(value: Self::Of<f32>) -> f32;
    /// The number of the thread, 0 to 31.
    fn lane() -> Self::Of<u32>;
    /// Applies `f` in every thread.
    fn map<A: Copy, B: Copy>(a: Self::Of<A>, f: impl Fn(A) -> B) -> Self::Of<B>;
    /// Applies `f` to two values in every thread.
    fn zip<A: Copy, B: Copy, C: Copy>(a: Self::Of<A>, b: Self::Of<B>, f: impl Fn(A, B) -> C) -> Self::Of<C>;
    /// Thread i gets `table[i]`.
    fn gather(table: &[f32; 32]) -> Self::Of<f32>;

    /// The value of thread `lane ^ mask`. The mask is below 32.
    fn shuffle_xor(value: Self::Of<u32>, mask: u32) -> Self::Of<u32>;
    /// The value of thread `from` mod 32.
    fn shuffle(value: Self::Of<u32>, from: Self::Of<u32>) -> Self::Of<u32>;
    /// A word whose bit i is the value of thread i.
    fn ballot(value: Self::Of<bool>) -> u32;

    /// `sum + a * b` on the tensor cores, in exact integers: 16 x 32 signed bytes times 32 x 8 bytes.
    /// `SIGNED` is the sign of the second. PTX's `mma.m16n8k32` defines the layout over the threads.
    fn multiply<const SIGNED: bool>(
        a: Self::Of<[u32; 4]>,
        b: Self::Of<[u32; 2]>,
        sum: Self::Of<[i32; 4]>,
    ) -> Self::Of<[i32; 4]>;

    /// A barrier: after it all threads can read what any thread wrote before.
    fn sync();

    /// a * b + c, rounded once. The encoders do not use it.
    fn mul_add(a: f32, b: f32, c: f32) -> f32;
    /// 2^x, to about 2 units in the last place. It is 0 below all normal numbers.
    fn exp2(x: f32) -> f32;
    /// The logarithm to base 2 of a number from 0 on, to about 2^-22, or to so much of the result if that is
    /// more. That of 0 is minus infinity.
    fn log2(x: f32) -> f32;
    /// Four bytes of a (numbers 0 to 3) and b (4 to 7), selected by the four low nibbles of `choice`. A
    /// nibble n of 8 or more gives eight copies of the top bit of byte n - 8.
    fn permute(a: u32, b: u32, choice: u32) -> u32;
    /// Square root, correctly rounded.
    fn sqrt(x: f32) -> f32;
    /// Widens half precision, exactly.
    fn from_half(bits: u16) -> f32;
    /// Rounds to half precision, to nearest, ties to even.
    fn to_half(x: f32) -> u16;

    /// The place `bytes` further on.
    fn at(memory: Self::Memory, bytes: u64) -> Self::Memory;
    /// Prefetches the memory around each thread's offset.
    fn prefetch(memory: Self::Memory, offset: Self::Of<u32>);
    /// The 32-bit word at `offset`, the same for all threads.
    fn read(memory: Self::Memory, offset: u32) -> u32;
    /// N words at each thread's offset. The offset is a multiple of 4 N, but at most of 16 (of 4 if N is
    /// odd).
    fn load<const N: usize>(memory: Self::Memory, offset: Self::Of<u32>) -> Self::Of<[u32; N]>;
    /// 16 bits at each thread's offset.
    fn load_u16(memory: Self::Memory, offset: Self::Of<u32>) -> Self::Of<u16>;
    /// Writes N words at the offsets of the threads in `active`. Offsets are aligned as for `load`.
    fn store<const N: usize>(
        memory: Self::Memory,
        offset: Self::Of<u32>,
        value: Self::Of<[u32; N]>,
        active: Self::Of<bool>,
    );
    /// Writes 16 bits at the offsets of the threads in `active`.
    fn store_u16(memory: Self::Memory, offset: Self::Of<u32>, value: Self::Of<u16>, active: Self::Of<bool>);
}

/// [`Threads::shuffle_xor`] of floats.
#[inline(always)]
pub fn shuffle_xor_f32<T: Threads>(value: T::Of<f32>, mask: u32) -> T::Of<f32> {
    T::map(T::shuffle_xor(T::map(value, f32::to_bits), mask), f32::from_bits)
}

/// [`Threads::shuffle`] of floats.
#[inline(always)]
pub fn shuffle_f32<T: Threads>(value: T::Of<f32>, from: T::Of<u32>) -> T::Of<f32> {
    T::map(T::shuffle(T::map(value, f32::to_bits), from), f32::from_bits)
}

/// [`Threads::uniform`] of a word.
#[inline(always)]
pub fn uniform<T: Threads>(value: T::Of<u32>) -> u32 {
    T::uniform(T::map(value, f32::from_bits)).to_bits()
}

/// One word at each thread's offset, as a float.
#[inline(always)]
pub fn load_f32<T: Threads>(memory: T::Memory, offset: T::Of<u32>) -> T::Of<f32> {
    T::map(T::load::<1>(memory, offset), |[word]| f32::from_bits(word))
}

/// Writes one float in every thread.
#[inline(always)]
pub fn store_f32<T: Threads>(memory: T::Memory, offset: T::Of<u32>, value: T::Of<f32>) {
    T::store(memory, offset, T::map(value, |v| [v.to_bits()]), T::splat(true));
}

/// A half at each thread's offset, widened.
#[inline(always)]
pub fn load_half<T: Threads>(memory: T::Memory, offset: T::Of<u32>) -> T::Of<f32> {
    T::map(T::load_u16(memory, offset), T::from_half)
}

/// True in the first thread only.
#[inline(always)]
pub fn first<T: Threads>() -> T::Of<bool> {
    T::map(T::lane(), |lane| lane == 0)
}

/// Quotient and remainder. Division by 0 gives (0, 0); kernels never use it, because they have no work then.
#[inline(always)]
pub fn divide(index: u32, by: u32) -> (u32, u32) {
    (index.checked_div(by).unwrap_or(0), index.checked_rem(by).unwrap_or(0))
}

/// The KV head that query head `head` reads.
#[inline(always)]
pub fn kv_head_of(head: u32, num_heads: u32, num_kv_heads: u32) -> u32 {
    divide(head, divide(num_heads, num_kv_heads).0).0
}
