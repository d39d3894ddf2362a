//! Reads a kernel of a PTX text: instructions, labels, tables and constants.

use crate::alu::{Operation, operation};
use std::collections::HashMap;

/// Distance between buffers in the address space.
pub(crate) const SPACING: u64 = 1 << 32;
/// Warps per block, as in the launches of `tqkv-gpu`.
pub(crate) const WARPS: u32 = 4;

/// One value per thread of a warp.
pub(crate) type Column = [u64; 32];

#[derive(Clone, Debug)]
pub(crate) enum Operand {
    Register(usize),
    /// An immediate, or a special register that has the same value in every warp.
    Constant(Box<Column>),
    /// %ctaid along an axis, or %tid.y.
    Block(usize),
    /// `_`, which discards a result.
    Sink,
    Vector(Vec<Operand>),
    /// Base and displacement.
    Memory(Box<Operand>, i64),
    Parameter(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Alu(Operation),
    /// Selects one of two operands.
    Select,
    Split(u32),
    LoadParameter,
    Load(u32),
    Store(u32),
    Butterfly,
    Index,
    Ballot,
    Barrier,
    /// A product on the tensor cores. True if the bytes of its second factor are signed.
    Multiply(bool),
    Prefetch,
    Branch,
    Table,
    Return,
}

impl Kind {
    /// True if all threads of a warp run it together.
    pub(crate) fn is_exchange(self) -> bool {
        matches!(self, Self::Butterfly | Self::Index | Self::Ballot | Self::Barrier | Self::Multiply(_))
    }
}

#[derive(Debug)]
pub(crate) struct Instruction {
    pub(crate) guard: Option<(usize, bool)>,
    pub(crate) kind: Kind,
    pub(crate) operands: Vec<Operand>,
    /// Width in bits of the result's registers.
    pub(crate) width: u64,
    pub(crate) targets: Vec<usize>,
    pub(crate) text: String,
}

/// A kernel, ready to run.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) registers: usize,
    pub(crate) constants: Vec<Vec<u8>>,
}

fn literal(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0f") {
        return u64::from_str_radix(hex, 16).ok();
    }
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex.trim_end_matches('U'), 16).ok();
    }
    text.parse::<i64>().ok().map(|value| value as u64)
}

fn constant(value: u64) -> Operand {
    Operand::Constant(Box::new([value; 32]))
}

fn special(name: &str) -> Operand {
    match name {
        "%tid.x" => Operand::Constant(Box::new(std::array::from_fn(|lane| lane as u64))),
        "%tid.y" => Operand::Block(3),
        "%ntid.y" => constant(u64::from(WARPS)),
        "%ctaid.x" => Operand::Block(0),
        "%ctaid.y" => Operand::Block(1),
        "%ctaid.z" => Operand::Block(2),
        _ => panic!("unknown special register {name}"),
    }
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
            return Operand::Vector(parts.map(|part| self.operand(part)).collect());
        }
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.trim_end_matches(']');
            let (base, displacement) = inner.split_once('+').unwrap_or((inner, "0"));
            let displacement = displacement.parse().expect("a displacement is a number");
            return Operand::Memory(Box::new(self.operand(base)), displacement);
        }
        if text == "_" {
            return Operand::Sink;
        }
        if let Some(value) = literal(text) {
            return constant(value);
        }
        if let Some(&index) = self.parameters.get(text) {
            return Operand::Parameter(index);
        }
        if let Some(&address) = self.symbols.get(text) {
            return constant(address);
        }
        assert!(text.starts_with('%'), "operand {text}");
        if text.contains('.') {
            return special(text);
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

/// The width in bits of the registers that an opcode writes: the width of its first type, or twice that for a
/// wide product.
fn width(opcode: &str) -> u64 {
    let of = |part: &str| match part {
        "pred" => Some(1),
        "b8" | "s8" | "u8" | "b16" | "s16" | "u16" | "f16" => Some(0xffff),
        "b32" | "s32" | "u32" | "f32" => Some(0xffff_ffff),
        "b64" | "s64" | "u64" => Some(u64::MAX),
        _ => None,
    };
    let narrow = opcode.split('.').find_map(of).unwrap_or(u64::MAX);
    match (opcode.starts_with("setp"), opcode.contains(".wide.")) {
        (true, _) => 1,
        (_, true) => narrow << narrow.count_ones() | narrow,
        _ => narrow,
    }
}

/// The kind of an opcode. Vector accesses have a number of words and the bytes per word.
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
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32" => Kind::Multiply(true),
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32" => Kind::Multiply(false),
        "prefetch.L2" => Kind::Prefetch,
        "selp.b16" | "selp.b32" | "selp.b64" | "selp.f32" => Kind::Select,
        "bra" | "bra.uni" => Kind::Branch,
        "brx.idx" => Kind::Table,
        "ret" | "exit" => Kind::Return,
        _ => return None,
    })
}

/// Constants of the file: names to addresses, and their bytes.
fn constants(text: &str) -> (HashMap<String, u64>, Vec<Vec<u8>>) {
    let (mut symbols, mut all) = (HashMap::new(), Vec::new());
    for line in text.lines().filter(|line| line.starts_with(".global")) {
        // A constant without values is all zeros.
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

/// Rewrites `{ .reg .b32 tmp; mov.b64 {tmp, %r1}, %rd1; }`, a form of older PTX, as
/// `mov.b64 {_, %r1}, %rd1;`.
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
            .filter(|line| line.trim_start().starts_with(".param"))
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
                width: width(opcode),
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
}
