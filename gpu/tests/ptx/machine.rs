//! Runs a kernel of a PTX text, one warp at a time.
//!
//! Threads that branched apart run from the lowest instruction on until they meet, as in structured code. At a
//! shuffle, a vote, a product or a barrier they wait for the others, as on every GPU that the kernels are for. Any
//! of these stops the test:
//!
//! * a shuffle or vote that some threads never reach;
//! * an opcode that [`crate::alu`] does not know;
//! * an access outside a buffer, or a misaligned one;
//! * an access that is not ordered with another thread's access, or a byte that two warps write
//!   ([`crate::races`]);
//! * an unwritten register that decides a jump, is an address, or is stored or shown to other threads.

use crate::parse::{Column, Instruction, Kernel, Kind, Operand, SPACING, WARPS};
use crate::races::{Races, Writes};
use std::ops::Range;
use tqkv_gpu_kernels::args::Argument;

impl Kernel {
    /// Runs the warps of a launch with `(32, WARPS)` threads per block, one after the other. The first number
    /// of a warp counts along the launch's x axis; the others are indices of the block. Buffers are named by
    /// their positions.
    pub(crate) fn launch(
        &self,
        warps: impl IntoIterator<Item = (u32, u32, u32)>,
        arguments: &[Argument<usize>],
        buffers: &mut [Vec<u8>],
    ) {
        let mut writes = Writes::default();
        for warp in warps {
            self.run(warp, arguments, buffers, &mut writes);
        }
    }

    fn run(
        &self,
        (x, y, z): (u32, u32, u32),
        arguments: &[Argument<usize>],
        buffers: &mut [Vec<u8>],
        writes: &mut Writes,
    ) {
        writes.next_warp();
        let end = self.instructions.len();
        let mut warp = State {
            registers: vec![[POISON; 32]; self.registers],
            known: vec![0; self.registers],
            at: [0; 32],
            block: [x / WARPS, y, z, x % WARPS].map(|index| [u64::from(index); 32]),
            arguments,
            buffers,
            constants: &self.constants,
            races: Races::default(),
            waits: [false; 32],
            writes,
        };
        while let Some(at) = warp.next(&self.instructions) {
            let here = warp.at.map(|lane| lane == at);
            let meeting = warp.at.into_iter().filter(|&lane| lane > at).min().unwrap_or(end);
            warp.advance(&self.instructions, at..meeting, here);
        }
    }
}

/// The value of a register before it is written.
const POISON: u64 = 0xdead_beef_dead_beef;

struct State<'a> {
    registers: Vec<Column>,
    /// One bit per thread; it is set if the register was computed from written values only.
    known: Vec<u32>,
    at: [usize; 32],
    /// Indices of the block, and of the warp in the block.
    block: [Column; 4],
    arguments: &'a [Argument<usize>],
    buffers: &'a mut [Vec<u8>],
    constants: &'a [Vec<u8>],
    races: Races,
    /// Threads at an exchange that the others have not reached.
    waits: [bool; 32],
    /// Writes of the launch's warps up to here.
    writes: &'a mut Writes,
}

impl State<'_> {
    fn column<'a>(&'a self, operand: &'a Operand) -> &'a Column {
        match operand {
            Operand::Register(index) => &self.registers[*index],
            Operand::Constant(column) => column,
            Operand::Block(axis) => &self.block[*axis],
            _ => panic!("not a value: {operand:?}"),
        }
    }

    /// The threads for which a value is known. For a vector or an address, all its parts must be known.
    fn known(&self, operand: &Operand) -> u32 {
        match operand {
            Operand::Register(index) => self.known[*index],
            Operand::Vector(parts) => parts.iter().fold(!0, |known, part| known & self.known(part)),
            Operand::Memory(base, _) => self.known(base),
            Operand::Constant(_) | Operand::Block(_) | Operand::Parameter(_) | Operand::Sink => !0,
        }
    }

    /// Stops the test if an active thread's value is not known.
    fn demand(&self, operand: &Operand, active: &[bool; 32], text: &str) {
        assert!(bits(active) & !self.known(operand) == 0, "{text}: a register that nothing was written to");
    }

    fn set(&mut self, operand: &Operand, active: &[bool; 32], known: u32, values: &Column) {
        let index = match operand {
            Operand::Register(index) => *index,
            Operand::Sink => return,
            _ => panic!("not a register: {operand:?}"),
        };
        for ((value, new), active) in self.registers[index].iter_mut().zip(values).zip(active) {
            *value = if *active { *new } else { *value };
        }
        let active = bits(active);
        self.known[index] = self.known[index] & !active | known & active;
    }

    fn addresses(&self, operand: &Operand) -> Column {
        let Operand::Memory(base, displacement) = operand else { panic!("not an address: {operand:?}") };
        self.column(base).map(|base| base.wrapping_add(*displacement as u64))
    }

    /// Checks an access and returns its buffer and offset.
    fn locate(&self, address: u64, bytes: u32, text: &str) -> (usize, usize) {
        let (buffer, offset) = ((address / SPACING) as usize, (address % SPACING) as usize);
        let length = match buffer {
            1000.. => self.constants.get(buffer - 1000).map_or(0, Vec::len),
            _ => self.buffers.get(buffer.wrapping_sub(1)).map_or(0, Vec::len),
        };
        assert!(offset + bytes as usize <= length, "{text}: access outside a buffer ({buffer}, {offset})");
        assert!(offset.is_multiple_of(bytes as usize), "{text}: misaligned access");
        (buffer, offset)
    }

    fn load(&mut self, lane: usize, address: u64, bytes: u32, text: &str) -> u64 {
        let (buffer, offset) = self.locate(address, bytes, text);
        if buffer < 1000 {
            self.races.read(lane, buffer, offset..offset + bytes as usize, text);
        }
        let source = if buffer >= 1000 { &self.constants[buffer - 1000] } else { &self.buffers[buffer - 1] };
        let mut word = [0; 8];
        word[..bytes as usize].copy_from_slice(&source[offset..offset + bytes as usize]);
        u64::from_le_bytes(word)
    }

    fn store(&mut self, lane: usize, address: u64, bytes: u32, value: u64, text: &str) {
        let (buffer, offset) = self.locate(address, bytes, text);
        assert!(buffer < 1000, "{text}: writes a constant");
        self.races.write(lane, buffer, offset..offset + bytes as usize, text);
        let word = &value.to_le_bytes()[..bytes as usize];
        self.writes.write(buffer, offset, word, text);
        self.buffers[buffer - 1][offset..offset + bytes as usize].copy_from_slice(word);
    }

    /// The instruction that runs next: the first at which a thread can go on. None if all threads are at the end.
    fn next(&self, instructions: &[Instruction]) -> Option<usize> {
        let free = (0..32).filter(|&lane| !self.waits[lane]).map(|lane| self.at[lane]).min();
        if let Some(at) = free.filter(|&at| at < instructions.len()) {
            return Some(at);
        }
        let at = self.at.into_iter().min().filter(|&at| at < instructions.len())?;
        panic!("{}: not all threads are here", instructions[at].text)
    }

    /// Runs the threads `here` from the start of `range` to its end or the first jump. At an exchange they wait for
    /// the others.
    fn advance(&mut self, instructions: &[Instruction], range: Range<usize>, here: [bool; 32]) {
        let meeting = range.end;
        for at in range {
            let instruction = &instructions[at];
            if instruction.kind.is_exchange() {
                let all = here == [true; 32];
                lanes(&here).for_each(|lane| (self.at[lane], self.waits[lane]) = (at, !all));
                if !all {
                    return;
                }
            }
            let active = self.active(instruction, here);
            if matches!(instruction.kind, Kind::Branch | Kind::Table | Kind::Return) {
                instruction
                    .operands
                    .iter()
                    .for_each(|operand| self.demand(operand, &active, &instruction.text));
                for lane in lanes(&here) {
                    self.at[lane] = if active[lane] {
                        self.target(instruction, lane, instructions.len())
                    } else {
                        at + 1
                    };
                }
                return;
            }
            self.step(instruction, &active);
        }
        lanes(&here).for_each(|lane| self.at[lane] = meeting);
    }

    /// The threads of `here` whose guard holds.
    fn active(&self, instruction: &Instruction, here: [bool; 32]) -> [bool; 32] {
        let Some((index, wanted)) = instruction.guard else { return here };
        self.demand(&Operand::Register(index), &here, &instruction.text);
        std::array::from_fn(|lane| here[lane] && (self.registers[index][lane] != 0) == wanted)
    }

    /// The instruction to which a jump takes a thread.
    fn target(&self, instruction: &Instruction, lane: usize, end: usize) -> usize {
        let Instruction { kind, operands, targets, text, .. } = instruction;
        match kind {
            Kind::Branch => targets[0],
            Kind::Return => end,
            Kind::Table => targets[self.column(&operands[0])[lane] as usize],
            _ => panic!("{text}: not a jump"),
        }
    }

    fn step(&mut self, Instruction { kind, operands, text, width, .. }: &Instruction, active: &[bool; 32]) {
        // All operands except the result.
        let sources = operands.get(1..).unwrap_or_default();
        let known = sources.iter().fold(!0, |known, operand| known & self.known(operand));
        match kind {
            Kind::Alu(operation) => {
                let [a, b, c] =
                    [1, 2, 3].map(|i| operands.get(i).map_or(&[0; 32], |operand| self.column(operand)));
                let mut result = [0; 32];
                for lane in lanes(active) {
                    result[lane] = operation(a[lane], b[lane], c[lane]) & width;
                }
                self.set(&operands[0], active, known, &result);
            }
            Kind::Select => {
                let [first, second, choice] = [1, 2, 3].map(|i| self.column(&operands[i]));
                let result = std::array::from_fn(|lane| {
                    width & if choice[lane] != 0 { first[lane] } else { second[lane] }
                });
                self.set(&operands[0], active, self.chosen(operands), &result);
            }
            Kind::Split(bits) => {
                let mut values = *self.column(&operands[1]);
                for part in words(&operands[0]) {
                    self.set(part, active, known, &values.map(|value| value & ((1 << bits) - 1)));
                    values = values.map(|value| value >> bits);
                }
            }
            Kind::LoadParameter => {
                let Operand::Memory(base, 0) = &operands[1] else { panic!("{text}") };
                let Operand::Parameter(index) = **base else { panic!("{text}") };
                let value = match self.arguments[index] {
                    Argument::Word(word) => u64::from(word),
                    Argument::Float(float) => u64::from(float.to_bits()),
                    Argument::Memory(buffer) => (buffer as u64 + 1) * SPACING,
                };
                self.set(&operands[0], active, !0, &[value; 32]);
            }
            Kind::Load(bytes) => {
                self.demand(&operands[1], active, text);
                let addresses = self.addresses(&operands[1]);
                for (word, addresses) in each_word(&operands[0], addresses, *bytes, active, text) {
                    let mut values = [0; 32];
                    lanes(active)
                        .for_each(|lane| values[lane] = self.load(lane, addresses[lane], *bytes, text));
                    self.set(word, active, !0, &values);
                }
            }
            Kind::Store(bytes) => {
                operands.iter().for_each(|operand| self.demand(operand, active, text));
                let addresses = self.addresses(&operands[0]);
                for (word, addresses) in each_word(&operands[1], addresses, *bytes, active, text) {
                    let values = *self.column(word);
                    lanes(active)
                        .for_each(|lane| self.store(lane, addresses[lane], *bytes, values[lane], text));
                }
            }
            Kind::Butterfly | Kind::Index | Kind::Ballot | Kind::Barrier => {
                assert!(active == &[true; 32], "{text}: not all threads are here");
                sources.iter().for_each(|operand| self.demand(operand, active, text));
                self.exchange(*kind, operands, text);
            }
            Kind::Multiply(signed) => {
                assert!(active == &[true; 32], "{text}: not all threads are here");
                sources.iter().for_each(|operand| self.demand(operand, active, text));
                self.multiply(*signed, operands);
            }
            Kind::Prefetch => {
                self.demand(&operands[0], active, text);
                let addresses = self.addresses(&operands[0]);
                for lane in lanes(active) {
                    self.locate(addresses[lane], 1, text);
                }
            }
            Kind::Branch | Kind::Table | Kind::Return => panic!("{text}: a jump is no step"),
        }
    }

    /// The threads for which the operand that a selection takes is known.
    fn chosen(&self, operands: &[Operand]) -> u32 {
        let choice = self.column(&operands[3]);
        let first = (0..32).filter(|&lane| choice[lane] != 0).fold(0, |bits, lane| bits | 1 << lane);
        self.known(&operands[3]) & (first & self.known(&operands[1]) | !first & self.known(&operands[2]))
    }

    /// Multiplies 16 x 32 bytes by 32 x 8 bytes and adds the product to 16 x 8 sums. A word has four bytes.
    /// Thread 4 i + j holds:
    ///
    /// * of the first factor, columns 4 j .. and 16 + 4 j .. of rows i and i + 8;
    /// * of the second factor, the same rows of column i;
    /// * of the sums, columns 2 j and 2 j + 1.
    fn multiply(&mut self, signed: bool, operands: &[Operand]) {
        let [a, b, c] = [1, 2, 3]
            .map(|i| words(&operands[i]).iter().map(|word| *self.column(word)).collect::<Vec<Column>>());
        let byte = |word: u64, k: usize, signed: bool| {
            let byte = (word >> (8 * (k % 4))) as u8;
            if signed { i32::from(byte as i8) } else { i32::from(byte) }
        };
        for (i, sum) in words(&operands[0]).iter().enumerate() {
            let result = std::array::from_fn(|lane| {
                let column = 2 * (lane % 4) + i % 2;
                let products = (0..32).map(|k| {
                    let (thread, half) = (k / 4 % 4, k / 16);
                    let first = a[2 * half + i / 2][4 * (lane / 4) + thread];
                    byte(first, k, true) * byte(b[half][4 * column + thread], k, signed)
                });
                u64::from((c[i][lane] as i32).wrapping_add(products.sum()) as u32)
            });
            self.set(sum, &[true; 32], !0, &result);
        }
    }

    /// Shuffles, votes and barriers of all threads.
    fn exchange(&mut self, kind: Kind, operands: &[Operand], text: &str) {
        let members =
            self.column(&operands[if matches!(kind, Kind::Barrier) { 0 } else { operands.len() - 1 }]);
        assert!(members.iter().all(|&mask| mask as u32 == !0), "{text}: not for all threads");
        let source: fn(usize, u64) -> usize = match kind {
            Kind::Butterfly => |lane, from| lane ^ from as usize,
            Kind::Index => |_, from| from as usize & 31,
            Kind::Ballot => {
                let votes = self.column(&operands[1]).iter().rev();
                let word = votes.fold(0, |word, vote| word << 1 | vote & 1);
                return self.set(&operands[0], &[true; 32], !0, &[word; 32]);
            }
            Kind::Barrier => return self.races.barrier(),
            _ => panic!("{text}: not an exchange"),
        };
        let [values, from, clamp] = [1, 2, 3].map(|i| self.column(&operands[i]));
        assert!(clamp.iter().all(|&clamp| clamp == 31), "{text}: a segmented shuffle");
        let result = std::array::from_fn(|lane| values[source(lane, from[lane])]);
        self.set(&operands[0], &[true; 32], !0, &result);
    }
}

fn lanes(active: &[bool; 32]) -> impl Iterator<Item = usize> {
    (0..32).filter(|&lane| active[lane])
}

/// A word with one bit per active thread.
fn bits(active: &[bool; 32]) -> u32 {
    lanes(active).fold(0, |bits, lane| bits | 1 << lane)
}

/// The words of a scalar or vector.
fn words(operand: &Operand) -> &[Operand] {
    if let Operand::Vector(words) = operand { words } else { std::slice::from_ref(operand) }
}

/// The words of a scalar or vector access with their addresses. The access must be aligned to its whole
/// width.
fn each_word<'a>(
    operand: &'a Operand,
    addresses: Column,
    bytes: u32,
    active: &[bool; 32],
    text: &str,
) -> impl Iterator<Item = (&'a Operand, Column)> {
    let (words, bytes) = (words(operand), u64::from(bytes));
    let aligned = |lane: usize| addresses[lane].is_multiple_of(bytes * words.len() as u64);
    assert!(lanes(active).all(aligned), "{text}: misaligned access");
    (0..).zip(words).map(move |(i, word)| (word, addresses.map(|address| address.wrapping_add(i * bytes))))
}
