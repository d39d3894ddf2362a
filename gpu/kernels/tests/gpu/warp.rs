//! A warp on the CPU: 32 threads in lock step. It checks every memory access.
//!
//! The kernel bodies of `tqkv-gpu-kernels` run on it as on the device. A test stops at an access outside its
//! buffer, at a misaligned access, and if threads disagree on a uniform value.

use std::cell::Cell;
use std::marker::PhantomData;
use tqkv_gpu_kernels::Threads;

/// Device memory. Bytes that no kernel wrote hold a pattern that is NaN as a float and as a half.
#[derive(Debug)]
pub(crate) struct Buffer(Vec<Cell<u8>>);

impl Buffer {
    /// `bytes` bytes of garbage.
    pub(crate) fn garbage(bytes: usize) -> Self {
        Self(vec![Cell::new(0xff); bytes])
    }

    /// A copy of `bytes`.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.iter().map(|&byte| Cell::new(byte)).collect())
    }

    /// A copy of words.
    pub(crate) fn from_u32(words: &[u32]) -> Self {
        Self::from_bytes(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
    }

    /// A copy of floats.
    pub(crate) fn from_f32(values: &[f32]) -> Self {
        Self::from_u32(&values.iter().map(|value| value.to_bits()).collect::<Vec<_>>())
    }

    /// The start, in the form that kernels take.
    pub(crate) fn place(&self) -> Place<'_> {
        Place { buffer: &self.0, at: 0 }
    }

    /// The contents.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.iter().map(Cell::get).collect()
    }

    /// The contents as words.
    pub(crate) fn words(&self) -> Vec<u32> {
        self.bytes().as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect()
    }

    /// The contents as floats.
    pub(crate) fn floats(&self) -> Vec<f32> {
        self.words().into_iter().map(f32::from_bits).collect()
    }
}

/// A place in a [`Buffer`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    buffer: &'a [Cell<u8>],
    at: u64,
}

impl<'a> Place<'a> {
    fn cells(self, offset: u32, bytes: u64, alignment: u64) -> &'a [Cell<u8>] {
        let start = self.at + u64::from(offset);
        assert!(start.is_multiple_of(alignment), "access at {start}, not a multiple of {alignment}");
        let end = start + bytes;
        assert!(end <= self.buffer.len() as u64, "access up to {end} of {} bytes", self.buffer.len());
        &self.buffer[start as usize..end as usize]
    }

    fn word(self, offset: u32) -> u32 {
        let cells = self.cells(offset, 4, 4);
        word(cells, 0)
    }
}

fn word(cells: &[Cell<u8>], at: usize) -> u32 {
    u32::from_le_bytes([cells[at].get(), cells[at + 1].get(), cells[at + 2].get(), cells[at + 3].get()])
}

/// 32 threads of the CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Emulated<'a>(PhantomData<&'a ()>);

const fn alignment(words: usize) -> u64 {
    if words.is_multiple_of(4) {
        16
    } else if words == 2 {
        8
    } else {
        4
    }
}

/// The numbers of the threads.
const LANES: [u32; 32] = {
    let (mut lanes, mut i) = ([0; 32], 0);
    while i < 32 {
        lanes[i] = i as u32;
        i += 1;
    }
    lanes
};

impl<'a> Threads for Emulated<'a> {
    type Of<T: Copy> = [T; 32];
    type Memory = Place<'a>;

    fn splat<T: Copy>(value: T) -> [T; 32] {
        [value; 32]
    }

    fn uniform(value: [f32; 32]) -> f32 {
        let bits = value[0].to_bits();
        // A GPU has one NaN. Here its sign and payload depend on the order of the operands.
        let is_same = value.iter().all(|v| v.to_bits() == bits) || value.iter().all(|v| v.is_nan());
        assert!(is_same, "threads disagree on a uniform value");
        value[0]
    }

    fn lane() -> [u32; 32] {
        LANES
    }

    // These are out of line, because the bodies call them thousands of times. They are plain loops, because
    // the test is compiled without optimisation.
    #[inline(never)]
    fn map<A: Copy, B: Copy>(a: [A; 32], f: impl Fn(A) -> B) -> [B; 32] {
        let mut out = [f(a[0]); 32];
        let mut i = 1;
        while i < 32 {
            out[i] = f(a[i]);
            i += 1;
        }
        out
    }

    #[inline(never)]
    fn zip<A: Copy, B: Copy, C: Copy>(a: [A; 32], b: [B; 32], f: impl Fn(A, B) -> C) -> [C; 32] {
        let mut out = [f(a[0], b[0]); 32];
        let mut i = 1;
        while i < 32 {
            out[i] = f(a[i], b[i]);
            i += 1;
        }
        out
    }

    fn gather(table: &[f32; 32]) -> [f32; 32] {
        *table
    }

    fn shuffle_xor(value: [u32; 32], mask: u32) -> [u32; 32] {
        Self::map(Self::lane(), |lane| value[(lane ^ mask) as usize])
    }

    fn shuffle(value: [u32; 32], from: [u32; 32]) -> [u32; 32] {
        Self::map(from, |from| value[from as usize % 32])
    }

    fn ballot(value: [bool; 32]) -> u32 {
        value.iter().rev().fold(0, |word, &bit| word << 1 | u32::from(bit))
    }

    fn multiply<const SIGNED: bool>(
        a: [[u32; 4]; 32],
        b: [[u32; 2]; 32],
        sum: [[i32; 4]; 32],
    ) -> [[i32; 4]; 32] {
        let byte = |word: u32, i: usize, signed: bool| {
            let byte = (word >> (8 * i)) as u8;
            if signed { i32::from(byte as i8) } else { i32::from(byte) }
        };
        let mut sum = sum;
        // Thread 4 column + k / 4 % 4 holds byte k % 4 of word k / 16 of a column of b. Rows of a have the
        // same layout: the upper eight in words 0 and 2, the lower eight in 1 and 3.
        for (column, k) in (0..8).flat_map(|column| (0..32).map(move |k| (column, k))) {
            let of_b = byte(b[4 * column + k / 4 % 4][k / 16], k % 4, SIGNED);
            if of_b != 0 {
                for row in 0..16 {
                    let of_a = byte(a[4 * (row % 8) + k / 4 % 4][2 * (k / 16) + row / 8], k % 4, true);
                    let place = &mut sum[4 * (row % 8) + column / 2][2 * (row / 8) + column % 2];
                    *place = place.checked_add(of_a * of_b).expect("sums stay inside 32 bits");
                }
            }
        }
        sum
    }

    // In lock step every write is already done.
    fn sync() {}

    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    fn exp2(x: f32) -> f32 {
        x.exp2()
    }

    fn log2(x: f32) -> f32 {
        x.log2()
    }

    fn permute(a: u32, b: u32, choice: u32) -> u32 {
        let bytes = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
        u32::from_le_bytes(std::array::from_fn(|i| {
            let choice = (choice >> (4 * i)) as u8 % 16;
            let byte = bytes[usize::from(choice % 8)];
            if choice < 8 { byte } else { (byte as i8 >> 7) as u8 }
        }))
    }

    fn sqrt(x: f32) -> f32 {
        x.sqrt()
    }

    fn from_half(bits: u16) -> f32 {
        half::f16::from_bits(bits).to_f32()
    }

    fn to_half(x: f32) -> u16 {
        half::f16::from_f32(x).to_bits()
    }

    fn at(memory: Place<'a>, bytes: u64) -> Place<'a> {
        Place { at: memory.at + bytes, ..memory }
    }

    fn prefetch(memory: Place<'a>, offset: [u32; 32]) {
        for offset in offset {
            memory.cells(offset, 1, 1);
        }
    }

    fn read(memory: Place<'a>, offset: u32) -> u32 {
        memory.word(offset)
    }

    fn load<const N: usize>(memory: Place<'a>, offset: [u32; 32]) -> [[u32; N]; 32] {
        Self::map(offset, |offset| {
            let cells = memory.cells(offset, 4 * N as u64, alignment(N));
            let (mut words, mut i) = ([0; N], 0);
            while i < N {
                words[i] = word(cells, 4 * i);
                i += 1;
            }
            words
        })
    }

    fn load_u16(memory: Place<'a>, offset: [u32; 32]) -> [u16; 32] {
        Self::map(offset, |offset| {
            let cells = memory.cells(offset, 2, 2);
            u16::from_le_bytes([cells[0].get(), cells[1].get()])
        })
    }

    fn store<const N: usize>(
        memory: Place<'a>,
        offset: [u32; 32],
        value: [[u32; N]; 32],
        active: [bool; 32],
    ) {
        for lane in (0..32).filter(|&lane| active[lane]) {
            let cells = memory.cells(offset[lane], 4 * N as u64, alignment(N));
            for (cell, byte) in cells.iter().zip(value[lane].iter().flat_map(|word| word.to_le_bytes())) {
                cell.set(byte);
            }
        }
    }

    fn store_u16(memory: Place<'a>, offset: [u32; 32], value: [u16; 32], active: [bool; 32]) {
        for lane in (0..32).filter(|&lane| active[lane]) {
            let cells = memory.cells(offset[lane], 2, 2);
            for (cell, byte) in cells.iter().zip(value[lane].to_le_bytes()) {
                cell.set(byte);
            }
        }
    }
}
