//! Reads machine code of NVIDIA GPUs as `nvdisasm` prints it: instructions, their blocks, and the path of one
//! round of a loop.

use std::collections::HashMap;
use std::ops::Range;

/// The part of a multiprocessor that an instruction occupies, besides instruction issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pipe {
    /// Integers, logic, permutations, comparisons, packed conversions to floats (`I2FP`): one instruction per
    /// two cycles.
    Integer,
    /// Floating point, and integer products.
    Float,
    /// Products on the tensor cores.
    Tensor,
    /// Any other instruction.
    Other,
}

/// The pipe of an opcode. An unknown opcode counts as integer, which is the first bound.
pub(crate) fn pipe(opcode: &str) -> Pipe {
    match opcode.split('.').next().unwrap_or_default() {
        "IMMA" => Pipe::Tensor,
        "IMAD" | "FFMA" | "FMUL" | "FADD" | "HADD2" | "HFMA2" | "HMUL2" => Pipe::Float,
        "LDG" | "STG" | "LD" | "ST" | "LDC" | "ULDC" | "CCTL" | "SHFL" | "MUFU" | "I2F" | "F2I" | "F2F"
        | "BRA" | "BRX" | "BSYNC" | "BSSY" | "BREAK" | "WARPSYNC" | "EXIT" | "NOP" | "CALL" | "RET"
        | "VOTE" | "R2UR" | "S2R" | "S2UR" | "CS2R" => Pipe::Other,
        // Opcodes of the uniform pipe.
        name if name.starts_with('U') => Pipe::Other,
        _ => Pipe::Integer,
    }
}

/// How the assembler tells the scheduler to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Control {
    /// Cycles until the warp's next instruction.
    pub(crate) stall: u8,
    /// The scoreboard that falls when the result is there; the next one falls when the operands are read.
    pub(crate) written: Option<u8>,
    pub(crate) read: Option<u8>,
    /// A bit for each scoreboard that must have fallen before this instruction.
    pub(crate) waits: u8,
}

impl Control {
    /// Reads the upper 64 bits of an instruction of sm_80 or a later one.
    fn of(upper: u64) -> Self {
        let bits = |from: u32, count: u32| ((upper >> from) & ((1 << count) - 1)) as u8;
        let scoreboard = |from| Some(bits(from, 3)).filter(|&number| number < 6);
        Self { stall: bits(41, 4), written: scoreboard(46), read: scoreboard(49), waits: bits(52, 6) }
    }
}

/// An instruction of the machine.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    pub(crate) opcode: String,
    /// Zeros if the listing has no encodings.
    pub(crate) control: Control,
}

/// A function: its instructions and its control flow.
#[derive(Debug)]
pub(crate) struct Code {
    instructions: Vec<Instruction>,
    /// Runs of instructions without a jump inside.
    blocks: Vec<Range<usize>>,
    /// The possible successors of each block.
    next: Vec<Vec<usize>>,
}

impl Code {
    /// Reads the listing of one function.
    pub(crate) fn parse(listing: &str) -> Self {
        let (mut lines, mut labels) = (Vec::new(), HashMap::new());
        let mut controls = Vec::new();
        for line in listing.lines().map(str::trim) {
            if let Some(label) = line.strip_suffix(':').filter(|label| label.starts_with(".L_")) {
                labels.insert(label, lines.len());
            } else if let Some(text) = instruction(line) {
                lines.push(text);
                controls.push(Control::default());
            } else if let (Some(upper), Some(control)) = (encoding(line), controls.last_mut()) {
                *control = Control::of(upper);
            }
        }
        let jumps =
            |text: &&str| matches!(opcode(text).split('.').next(), Some("BRA" | "BRX" | "EXIT" | "RET"));
        let after_jumps = lines.iter().enumerate().filter(|(_, text)| jumps(text)).map(|(i, _)| i + 1);
        let mut starts: Vec<usize> =
            labels.values().copied().chain(after_jumps).chain([0, lines.len()]).collect();
        starts.sort_unstable();
        starts.dedup();
        let blocks: Vec<_> = starts.windows(2).map(|pair| pair[0]..pair[1]).collect();
        let of = |at: usize| blocks.iter().position(|block| block.start == at);
        let next = blocks.iter().map(|block| {
            let last = lines[block.end - 1];
            let target = last.split_once("`(").and_then(|(_, rest)| labels.get(rest.split(')').next()?));
            // Threads are together here, so a jump for those that are not (`BRA.DIV`) is not taken.
            let is_taken = |_: &&usize| opcode(last).starts_with("BRA") && !opcode(last).contains(".DIV");
            let target = target.filter(is_taken);
            target
                .copied()
                .into_iter()
                .chain(falls_through(last).then_some(block.end))
                .filter_map(of)
                .collect()
        });
        Self {
            next: next.collect(),
            instructions: lines
                .iter()
                .zip(controls)
                .map(|(text, control)| Instruction { opcode: opcode(text).to_owned(), control })
                .collect(),
            blocks,
        }
    }

    /// Number of tensor-core products in a range of blocks. In a function without any, look-ups by a shuffle
    /// count instead.
    fn products(&self, blocks: Range<usize>) -> usize {
        let is_product = |code: &Instruction| pipe(&code.opcode) == Pipe::Tensor;
        let is_look_up = |code: &Instruction| code.opcode.starts_with("SHFL.IDX");
        let counts = if self.instructions.iter().any(is_product) { is_product } else { is_look_up };
        let instructions = self.blocks[blocks.start].start..self.blocks[blocks.end - 1].end;
        self.instructions[instructions].iter().filter(|code| counts(code)).count()
    }

    /// Ranges of blocks whose last block may run and jump to the first.
    fn loops(&self) -> impl Iterator<Item = Range<usize>> {
        let (mut runs, mut todo) = (vec![false; self.blocks.len()], vec![0]);
        while let Some(block) = todo.pop() {
            if !std::mem::replace(&mut runs[block], true) {
                todo.extend(&self.next[block]);
            }
        }
        let back = move |(from, next): (usize, &Vec<usize>)| {
            let next = next.iter().filter(|&&to| runs[from] && to <= from);
            next.map(|&to| to..from + 1).collect::<Vec<_>>()
        };
        self.next.iter().enumerate().flat_map(back)
    }

    /// The instructions of the shortest round of the loop with the most products. Inner loops with products
    /// are on the path, and run `rounds` times. Returns `None` without such a loop.
    pub(crate) fn once_round(&self, rounds: usize) -> Option<Vec<&Instruction>> {
        let outer = self.loops().max_by_key(|range| (self.products(range.clone()), range.len()))?;
        if self.products(outer.clone()) == 0 {
            return None;
        }
        let mut inner: Vec<_> = self
            .loops()
            .filter(|range| *range != outer && outer.start < range.start && range.end < outer.end)
            .filter(|range| self.products(range.clone()) > 0)
            .collect();
        inner.sort_by_key(|range| range.start);
        // The path must also pass inner loops that a shorter path would skip.
        let stops: Vec<_> = inner.iter().map(|range| range.start).chain([outer.end - 1]).collect();
        let mut way = vec![outer.start];
        for stop in stops {
            let from = way.pop()?;
            way.extend(self.shortest(outer.clone(), from, stop)?);
        }
        let before: usize = way
            .iter()
            .filter(|block| !inner.iter().any(|range| range.contains(block)))
            .map(|&block| self.products(block..block + 1))
            .sum();
        let times = |block: &usize| match inner.iter().find(|range| range.contains(block)) {
            // The assembler moved the first round in front of the loop.
            Some(range) if self.products(range.clone()) == before => rounds - 1,
            Some(_) => rounds,
            None => 1,
        };
        let instructions = way.iter().flat_map(|block| {
            let instructions = &self.instructions[self.blocks[*block].clone()];
            std::iter::repeat_n(instructions, times(block)).flatten()
        });
        Some(instructions.collect())
    }

    /// The blocks of the path with the fewest instructions between two blocks of a loop, both included.
    fn shortest(&self, within: Range<usize>, from: usize, to: usize) -> Option<Vec<usize>> {
        let mut best: HashMap<usize, (usize, Option<usize>)> = HashMap::from([(from, (0, None))]);
        // Repeats up to the length of the longest path. Most blocks follow each other, so two rounds are
        // usual.
        for _ in within.clone() {
            let mut changed = false;
            for block in within.clone() {
                let Some(&(length, _)) = best.get(&block) else { continue };
                let length = length + self.blocks[block].len();
                for &next in
                    self.next[block].iter().filter(|&next| within.contains(next) && *next != within.start)
                {
                    if best.get(&next).is_none_or(|&(known, _)| length < known) {
                        best.insert(next, (length, Some(block)));
                        changed = true;
                    }
                }
            }
            if !changed {
                break;
            }
        }
        let mut way = vec![to];
        while let Some(before) = best.get(way.last()?)?.1 {
            way.push(before);
        }
        way.reverse();
        Some(way)
    }
}

/// The instruction of a line such as `/*0010*/  @P0 BRA ... ;`.
fn instruction(line: &str) -> Option<&str> {
    let (address, rest) = line.strip_prefix("/*")?.split_once("*/")?;
    (address.len() >= 4 && address.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .then(|| rest.split(';').next().unwrap_or_default().trim())
        .filter(|text| !text.is_empty())
}

/// The upper half of an encoding, in a line of its own such as `/* 0x000fe20000000800 */`.
fn encoding(line: &str) -> Option<u64> {
    let digits = line.strip_prefix("/* 0x")?.strip_suffix("*/")?;
    u64::from_str_radix(digits.trim(), 16).ok()
}

/// The opcode after the guard.
fn opcode(text: &str) -> &str {
    text.split_whitespace().find(|word| !word.starts_with('@')).unwrap_or_default()
}

/// Returns true if the instruction after this one may run next.
fn falls_through(text: &str) -> bool {
    let conditional = || {
        let operands = text.split_once(opcode(text)).map_or("", |(_, operands)| operands);
        let first = operands.split(',').next().unwrap_or_default().trim().trim_start_matches('!');
        text.starts_with('@')
            || first.starts_with('P')
            || first.starts_with("UP")
            || opcode(text).contains(".DIV")
    };
    match opcode(text).split('.').next().unwrap_or_default() {
        "BRA" | "EXIT" | "RET" => conditional(),
        "BRX" => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_conversions_run_on_the_integer_pipe() {
        assert_eq!(pipe("I2FP.F32.S32"), Pipe::Integer);
        assert_eq!(pipe("I2F.S8"), Pipe::Other);
        assert_eq!(pipe("IMMA.16832.S8.S8"), Pipe::Tensor);
    }

    const LISTING: &str = "
        .text.k:
            /*0000*/                   MOV R1, c[0x0][0x28] ;
        .L_x_3:
            /*0010*/                   FADD R8, R4, R6 ;
            /*0020*/              @!P0 BRA `(.L_x_1) ;
            /*0030*/                   FMUL R1, R2, R3 ;
            /*0040*/                   FMUL R1, R2, R3 ;
        .L_x_1:
            /*0050*/                   PRMT R4, R5, 0x5140, R6 ;
            /*0060*/                   IMMA.16832.S8.U8 R8, R4.ROW, R6.COL, R8 ;
            /*0070*/               @P2 BRA `(.L_x_1) ;
            /*0080*/                   UIADD3 UR4, UR4, 0x1, URZ ;
            /*0090*/               @P1 BRA `(.L_x_3) ;
            /*00a0*/                   EXIT ;
        .L_x_9:
            /*00b0*/                   BRA `(.L_x_9);
    ";

    #[test]
    fn a_loop_is_counted_by_its_shortest_way_and_inner_loops_as_often_as_they_run() {
        let code = Code::parse(LISTING);
        let once = ["FADD", "BRA", "PRMT", "IMMA.16832.S8.U8", "BRA", "UIADD3", "BRA"];
        let opcodes =
            |round: Vec<&Instruction>| round.iter().map(|code| code.opcode.clone()).collect::<Vec<_>>();
        assert_eq!(opcodes(code.once_round(1).unwrap()), once);
        let of = |listing: &str, wanted| {
            let code = Code::parse(listing);
            code.once_round(4).unwrap().iter().filter(|code| pipe(&code.opcode) == wanted).count()
        };
        assert_eq!(code.once_round(4).unwrap().len(), once.len() + 3 * 3);
        assert_eq!((of(LISTING, Pipe::Tensor), of(LISTING, Pipe::Integer)), (4, 4));
        assert!(Code::parse("/*0000*/ EXIT ;").once_round(1).is_none());
        // A jump past the inner loop.
        let past = LISTING.replace("@!P0 BRA `(.L_x_1)", "@!P0 BRA `(.L_x_4)");
        let past = past.replace("UIADD3", "NOP ;\n.L_x_4:\n/*0088*/ UIADD3");
        assert_eq!(of(&past, Pipe::Tensor), 4);
        // The first round is in front of the loop.
        let ahead = LISTING.replace("FADD R8, R4, R6", "IMMA.16832.S8.U8 R8, R4, R6");
        assert_eq!((of(&ahead, Pipe::Tensor), of(&ahead, Pipe::Integer)), (4, 3));
    }

    #[test]
    fn encodings_hold_what_an_instruction_waits_for() {
        let listing = "
            .L_x_1:
                /*0000*/  LDG.E.64 R4, [R2.64] ;                  /* 0x0000000402047981 */
                                                                  /* 0x002ea4000c1e1b00 */
                /*0010*/  IMMA.16832.S8.S8 R8, R4.ROW, R6, R8 ;   /* 0x0000000604087237 */
                                                                  /* 0x004fee0000001208 */
                /*0020*/  BRA `(.L_x_1) ;                         /* 0xfffffff000007947 */
                                                                  /* 0x000fea000383ffff */
        ";
        let code = Code::parse(listing);
        let round: Vec<_> = code.once_round(1).unwrap().iter().map(|code| code.control).collect();
        let control = |stall, written, waits| Control { stall, written, read: None, waits };
        assert_eq!(round, [control(2, Some(2), 0b10), control(7, None, 0b100), control(5, None, 0)]);
    }

    #[test]
    fn a_function_without_products_is_counted_by_its_look_ups() {
        let listing = LISTING.replace("IMMA.16832.S8.U8", "SHFL.IDX");
        assert_eq!(Code::parse(&listing).once_round(4).unwrap().len(), 7 + 3 * 3);
    }

    #[test]
    fn jumps_fall_through_where_they_have_a_condition() {
        for (text, falls) in [
            ("BRA `(.L_x_1)", false),
            ("@P0 BRA `(.L_x_1)", true),
            ("BRA !P5, `(.L_x_1)", true),
            ("BRA.DIV UR4, `(.L_x_1)", true),
            ("EXIT", false),
            ("@!P0 EXIT", true),
            ("BRX R4 -0x10", false),
            ("PRMT R1, R2, R3, R4", true),
        ] {
            assert_eq!(falls_through(text), falls, "{text}");
        }
    }
}
