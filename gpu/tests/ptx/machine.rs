//! Runs a kernel of a PTX text, one warp at a time.
//!
//! Threads that branched apart run from the lowest instruction on until they meet, as structured
//! code does. A shuffle or vote that not all threads reach together, an opcode that [`crate::alu`]
//! does not know, and an access outside a buffer or off its alignment stop the test.

use crate::alu::{Operation, operation};
use std::collections::HashMap;

/// Distance of buffers in the address space.
const SPACING: u64 = 1 << 32;

#[derive(Clone, Debug)]
enum Operand {
    Register(usize),
    Immediate(u64),
    /// %ctaid.x and the like.
    Special(String),
    /// Elements; none stands for `_`.
    Vector(Vec<Option<Operand>>),
    /// Base and displacement.
    Memory(Box<Operand>, i64),
    Parameter(usize),
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Alu(Operation),
    Split(u32),
    LoadParameter,
    Load(u32),
    Store(u32),
    Butterfly,
    Index,
    Ballot,
    Barrier,
    Branch,
    Table,
    Return,
}

#[derive(Debug)]
struct Instruction {
    guard: Option<(usize, bool)>,
    kind: Kind,
    operands: Vec<Operand>,
    targets: Vec<usize>,
    text: String,
}

/// A kernel, ready to run.
#[derive(Debug)]
pub(crate) struct Kernel {
    instructions: Vec<Instruction>,
    registers: usize,
    constants: Vec<Vec<u8>>,
}

/// A kernel's argument.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    /// A number, or a float's bits.
    Word(u32),
    /// The start of a buffer.
    Buffer(usize),
}

fn literal(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0f") {
        return u64::from_str_radix(hex, 16).ok();
    }
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    text.parse::<i64>().ok().map(|value| value as u64)
}

struct Parser<'a> {
    registers: HashMap<&'a str, usize>,
    parameters: HashMap<&'a str, usize>,
    symbols: &'a HashMap<String, u64>,
}

impl<'a> Parser<'a> {
    fn operand(&mut self, text: &'a str) -> Operand {
        let text = text.trim();
        if let Some(inner) = text.strip_prefix('{') {
            let parts = inner.trim_end_matches('}').split(',').map(str::trim);
            return Operand::Vector(parts.map(|part| (part != "_").then(|| self.operand(part))).collect());
        }
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.trim_end_matches(']');
            let (base, displacement) = inner.split_once('+').unwrap_or((inner, "0"));
            let displacement = displacement.parse().expect("a displacement is a number");
            return Operand::Memory(Box::new(self.operand(base)), displacement);
        }
        if let Some(value) = literal(text) {
            return Operand::Immediate(value);
        }
        if let Some(&index) = self.parameters.get(text) {
            return Operand::Parameter(index);
        }
        if let Some(&address) = self.symbols.get(text) {
            return Operand::Immediate(address);
        }
        assert!(text.starts_with('%'), "operand {text}");
        if text.contains('.') {
            return Operand::Special(text.to_owned());
        }
        let next = self.registers.len();
        Operand::Register(*self.registers.entry(text).or_insert(next))
    }
}

/// Splits at commas outside braces and brackets.
fn split_operands(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (i, c) in text.char_indices() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// Words of a vector access, and bytes of a word.
fn kind(opcode: &str) -> Option<Kind> {
    Some(match opcode {
        "ld.param.b32" | "ld.param.b64" | "ld.param.u32" | "ld.param.u64" => Kind::LoadParameter,
        "ld.global.b16" | "ld.global.nc.b16" => Kind::Load(2),
        "ld.global.b8" | "ld.global.nc.b8" => Kind::Load(1),
        "ld.global.b32" | "ld.global.nc.b32" | "ld.b32" => Kind::Load(4),
        "ld.global.v2.b32" | "ld.global.v4.b32" | "ld.global.nc.v2.b32" | "ld.global.nc.v4.b32" => {
            Kind::Load(4)
        }
        "ld.global.b64" | "ld.global.nc.b64" => Kind::Load(8),
        "st.global.b16" => Kind::Store(2),
        "st.global.b32" | "st.global.v2.b32" | "st.global.v4.b32" => Kind::Store(4),
        "st.global.b64" => Kind::Store(8),
        "shfl.sync.bfly.b32" => Kind::Butterfly,
        "shfl.sync.idx.b32" => Kind::Index,
        "vote.sync.ballot.b32" => Kind::Ballot,
        "bar.warp.sync" => Kind::Barrier,
        "bra" | "bra.uni" => Kind::Branch,
        "brx.idx" => Kind::Table,
        "ret" | "exit" => Kind::Return,
        _ => return None,
    })
}

/// Constants of the file: names to addresses, and the bytes.
fn constants(text: &str) -> (HashMap<String, u64>, Vec<Vec<u8>>) {
    let (mut symbols, mut all) = (HashMap::new(), Vec::new());
    for line in text.lines().filter(|line| line.starts_with(".global")) {
        // Without values it is all zeros.
        let (head, body) = line.split_once('=').unwrap_or((line.trim_end_matches(';'), ""));
        let name = head.split_whitespace().last().expect("constants have names");
        let (name, length) = name.trim_end_matches(']').split_once('[').expect("constants are arrays");
        let values = body.trim().trim_start_matches('{').trim_end_matches(';').trim_end_matches('}');
        let wide = head.contains(".u64");
        let mut bytes = Vec::new();
        for value in values.split(',').map(str::trim).filter(|value| !value.is_empty()) {
            if wide {
                let address = value
                    .strip_prefix("generic(")
                    .map_or_else(|| literal(value), |name| symbols.get(name.trim_end_matches(')')).copied());
                bytes.extend(address.expect("a known address").to_le_bytes());
            } else {
                bytes.push(value.parse().expect("a byte"));
            }
        }
        let length: usize = length.parse().expect("a length");
        bytes.resize(length * if wide { 8 } else { 1 }, 0);
        symbols.insert(name.to_owned(), (1000 + all.len() as u64) * SPACING);
        all.push(bytes);
    }
    (symbols, all)
}

/// Writes `{ .reg .b32 tmp; mov.b64 {tmp, %r1}, %rd1; }`, which older PTX has, as `mov.b64 {_, %r1}, %rd1;`.
fn upper_halves(body: &str) -> String {
    body.replace("{ .reg .b16 tmp; ", "")
        .replace("{ .reg .b32 tmp; ", "")
        .replace("{tmp, ", "{_, ")
        .replace("; }", ";")
}

impl Kernel {
    /// Reads kernel `name` of a PTX text.
    pub(crate) fn new(text: &str, name: &str) -> Self {
        let (symbols, constants) = constants(text);
        let start = text.find(&format!(".entry {name}(")).unwrap_or_else(|| panic!("no kernel {name}"));
        let (head, body) = text[start..].split_once("\n{\n").expect("a body");
        let body = upper_halves(body.split("\n}").next().expect("an end"));
        let parameters = head
            .lines()
            .skip(1)
            .filter_map(|line| line.trim_end_matches([',', ')']).split_whitespace().last())
            .enumerate()
            .map(|(i, name)| (name, i))
            .collect();
        let mut parser = Parser { registers: HashMap::new(), parameters, symbols: &symbols };
        let (mut instructions, mut labels, mut tables) = (Vec::new(), HashMap::new(), HashMap::new());
        let mut pending = Vec::new();
        for statement in body.split_inclusive([';', ':']).map(str::trim) {
            if let Some(label) = statement.strip_suffix(':') {
                labels.insert(label, instructions.len());
                continue;
            }
            let statement = statement.trim_end_matches(';');
            if let Some(list) = statement.strip_prefix(".branchtargets") {
                let label = labels
                    .iter()
                    .find(|(label, at)| label.starts_with("$L_brx") && **at == instructions.len());
                let label = *label.expect("a table has a label").0;
                tables.insert(label, list.split(',').map(str::trim).collect::<Vec<_>>());
                continue;
            }
            if statement.starts_with('.') || statement.is_empty() {
                continue;
            }
            let (guard, rest) = match statement.strip_prefix('@') {
                None => (None, statement),
                Some(guarded) => {
                    let (guard, rest) =
                        guarded.split_once(char::is_whitespace).expect("a guarded instruction");
                    let (name, wanted) = guard.strip_prefix('!').map_or((guard, true), |name| (name, false));
                    let Operand::Register(index) = parser.operand(name) else { panic!("guard {guard}") };
                    (Some((index, wanted)), rest.trim())
                }
            };
            let (opcode, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            let rest = rest.trim();
            let parts = split_operands(rest);
            let split = matches!(opcode, "mov.b32" | "mov.b64") && rest.starts_with('{');
            let kind = match kind(opcode) {
                _ if split => Kind::Split(if opcode == "mov.b32" { 16 } else { 32 }),
                Some(kind) => kind,
                None => {
                    let (count, operation) =
                        operation(opcode).unwrap_or_else(|| panic!("unknown opcode {opcode}"));
                    assert_eq!(parts.len(), count + 1, "{statement}");
                    Kind::Alu(operation)
                }
            };
            let mut operands = Vec::new();
            match kind {
                Kind::Branch => pending.push((instructions.len(), vec![parts[0]])),
                Kind::Table => {
                    operands.push(parser.operand(parts[0]));
                    pending.push((instructions.len(), tables[parts[1]].clone()));
                }
                _ => operands.extend(parts.into_iter().map(|part| parser.operand(part))),
            }
            instructions.push(Instruction {
                guard,
                kind,
                operands,
                targets: Vec::new(),
                text: statement.to_owned(),
            });
        }
        for (at, names) in pending {
            instructions[at].targets = names.iter().map(|name| labels[name]).collect();
        }
        let registers = parser.registers.len();
        Self { instructions, registers, constants }
    }

    /// Runs warp `warp` of a launch of `(32, 1)` threads a block; y and z are the block's.
    pub(crate) fn run(&self, (x, y, z): (u32, u32, u32), arguments: &[Argument], buffers: &mut [Vec<u8>]) {
        let mut warp = State {
            registers: vec![[0; 32]; self.registers],
            at: [0; 32],
            block: [x, y, z],
            arguments,
            buffers,
            constants: &self.constants,
        };
        let end = self.instructions.len();
        loop {
            let at = warp.at.into_iter().min().unwrap_or(end);
            if at >= end {
                return;
            }
            let here: [bool; 32] = std::array::from_fn(|lane| warp.at[lane] == at);
            warp.step(&self.instructions[at], here, end);
        }
    }
}

struct State<'a> {
    registers: Vec<[u64; 32]>,
    at: [usize; 32],
    block: [u32; 3],
    arguments: &'a [Argument],
    buffers: &'a mut [Vec<u8>],
    constants: &'a [Vec<u8>],
}

impl State<'_> {
    fn value(&self, operand: &Operand, lane: usize) -> u64 {
        match operand {
            Operand::Register(index) => self.registers[*index][lane],
            Operand::Immediate(value) => *value,
            Operand::Special(name) => u64::from(match name.as_str() {
                "%tid.x" => lane as u32,
                "%tid.y" => 0,
                "%ntid.y" => 1,
                "%ctaid.x" => self.block[0],
                "%ctaid.y" => self.block[1],
                "%ctaid.z" => self.block[2],
                _ => panic!("unknown special register {name}"),
            }),
            Operand::Vector(_) | Operand::Memory(..) | Operand::Parameter(_) => {
                panic!("not a value: {operand:?}")
            }
        }
    }

    fn set(&mut self, operand: &Operand, lane: usize, value: u64) {
        let Operand::Register(index) = operand else { panic!("not a register: {operand:?}") };
        self.registers[*index][lane] = value;
    }

    fn address(&self, operand: &Operand, lane: usize) -> u64 {
        let Operand::Memory(base, displacement) = operand else { panic!("not an address: {operand:?}") };
        self.value(base, lane).wrapping_add(*displacement as u64)
    }

    /// Buffer and offset of an access, checked.
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

    fn load(&self, address: u64, bytes: u32) -> u64 {
        let (buffer, offset) = self.locate(address, bytes, "load");
        let source = if buffer >= 1000 { &self.constants[buffer - 1000] } else { &self.buffers[buffer - 1] };
        let mut word = [0; 8];
        word[..bytes as usize].copy_from_slice(&source[offset..offset + bytes as usize]);
        u64::from_le_bytes(word)
    }

    fn step(&mut self, instruction: &Instruction, here: [bool; 32], end: usize) {
        let Instruction { guard, kind, operands, targets, text } = instruction;
        let active: [bool; 32] = std::array::from_fn(|lane| {
            here[lane] && guard.is_none_or(|(index, wanted)| (self.registers[index][lane] != 0) == wanted)
        });
        if matches!(kind, Kind::Butterfly | Kind::Index | Kind::Ballot | Kind::Barrier) {
            assert!(active == [true; 32], "{text}: not all threads are here");
            self.exchange(*kind, operands, text);
        }
        for lane in 0..32 {
            if !here[lane] {
                continue;
            }
            self.at[lane] += 1;
            if !active[lane] {
                continue;
            }
            match kind {
                Kind::Alu(operation) => {
                    let value = |i: usize| operands.get(i).map_or(0, |operand| self.value(operand, lane));
                    let result = operation(value(1), value(2), value(3));
                    self.set(&operands[0], lane, result);
                }
                Kind::Split(bits) => {
                    let Operand::Vector(parts) = &operands[0] else { panic!("{text}") };
                    let mut value = self.value(&operands[1], lane);
                    for part in parts {
                        if let Some(part) = part {
                            self.set(part, lane, value & ((1 << bits) - 1));
                        }
                        value >>= bits;
                    }
                }
                Kind::LoadParameter => {
                    let Operand::Memory(base, 0) = &operands[1] else { panic!("{text}") };
                    let Operand::Parameter(index) = **base else { panic!("{text}") };
                    let value = match self.arguments[index] {
                        Argument::Word(word) => u64::from(word),
                        Argument::Buffer(buffer) => (buffer as u64 + 1) * SPACING,
                    };
                    self.set(&operands[0], lane, value);
                }
                Kind::Load(bytes) => {
                    let address = self.address(&operands[1], lane);
                    self.each_word(
                        &operands[0],
                        |state, i, word| {
                            let value = state.load(address + u64::from(i * bytes), *bytes);
                            state.set(word, lane, value);
                        },
                        address,
                        *bytes,
                        text,
                    );
                }
                Kind::Store(bytes) => {
                    let address = self.address(&operands[0], lane);
                    self.each_word(
                        &operands[1],
                        |state, i, word| {
                            let value = state.value(word, lane).to_le_bytes();
                            let (buffer, offset) = state.locate(address + u64::from(i * bytes), *bytes, text);
                            assert!(buffer < 1000, "{text}: writes a constant");
                            state.buffers[buffer - 1][offset..offset + *bytes as usize]
                                .copy_from_slice(&value[..*bytes as usize]);
                        },
                        address,
                        *bytes,
                        text,
                    );
                }
                Kind::Branch => self.at[lane] = targets[0],
                Kind::Table => self.at[lane] = targets[self.value(&operands[0], lane) as usize],
                Kind::Return => self.at[lane] = end,
                Kind::Butterfly | Kind::Index | Kind::Ballot | Kind::Barrier => {}
            }
        }
    }

    /// Calls `f` for the words of a scalar or vector access, whose whole width is its alignment.
    fn each_word(
        &mut self,
        operand: &Operand,
        f: impl Fn(&mut Self, u32, &Operand),
        address: u64,
        bytes: u32,
        text: &str,
    ) {
        let Operand::Vector(words) = operand else { return f(self, 0, operand) };
        assert!(address.is_multiple_of(u64::from(bytes) * words.len() as u64), "{text}: misaligned access");
        for (i, word) in words.iter().enumerate() {
            if let Some(word) = word {
                f(self, i as u32, word);
            }
        }
    }

    fn exchange(&mut self, kind: Kind, operands: &[Operand], text: &str) {
        let column = |state: &Self, i: usize| -> [u64; 32] {
            std::array::from_fn(|lane| state.value(&operands[i], lane))
        };
        if matches!(kind, Kind::Barrier) {
            assert!(column(self, 0).iter().all(|&mask| mask as u32 == !0), "{text}: not for all threads");
            return;
        }
        let (values, members) = (column(self, 1), column(self, operands.len() - 1));
        assert!(members.iter().all(|&mask| mask as u32 == !0), "{text}: not for all threads");
        if matches!(kind, Kind::Ballot) {
            let word = (0..32).fold(0, |word, lane| word | (values[lane] & 1) << lane);
            (0..32).for_each(|lane| self.set(&operands[0], lane, word));
            return;
        }
        let (from, clamp) = (column(self, 2), column(self, 3));
        for lane in 0..32 {
            assert_eq!(clamp[lane], 31, "{text}: a segmented shuffle");
            let source = if matches!(kind, Kind::Butterfly) {
                lane ^ from[lane] as usize
            } else {
                from[lane] as usize & 31
            };
            self.set(&operands[0], lane, values[source]);
        }
    }
}
