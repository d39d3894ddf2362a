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

/// A function: its opcodes and its control flow.
#[derive(Debug)]
pub(crate) struct Code {
    opcodes: Vec<String>,
    /// Runs of instructions without a jump inside.
    blocks: Vec<Range<usize>>,
    /// The possible successors of each block.
    next: Vec<Vec<usize>>,
}

impl Code {
    /// Reads the listing of one function.
    pub(crate) fn parse(listing: &str) -> Self {
        let (mut lines, mut labels) = (Vec::new(), HashMap::new());
        for line in listing.lines().map(str::trim) {
            if let Some(label) = line.strip_suffix(':').filter(|label| label.starts_with(".L_")) {
                labels.insert(label, lines.len());
            } else if let Some(text) = instruction(line) {
                lines.push(text);
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
            let target = target.filter(|_| opcode(last).starts_with("BRA"));
            target
                .copied()
                .into_iter()
                .chain(falls_through(last).then_some(block.end))
                .filter_map(of)
                .collect()
        });
        Self {
            next: next.collect(),
            opcodes: lines.iter().map(|text| opcode(text).to_owned()).collect(),
            blocks,
        }
    }

    /// Number of tensor-core products in a range of blocks.
    fn products(&self, blocks: Range<usize>) -> usize {
        let instructions = self.blocks[blocks.start].start..self.blocks[blocks.end - 1].end;
        self.opcodes[instructions].iter().filter(|opcode| pipe(opcode) == Pipe::Tensor).count()
    }

    /// Ranges of blocks whose last block may jump to the first.
    fn loops(&self) -> impl Iterator<Item = Range<usize>> {
        let back = |(from, next): (usize, &Vec<usize>)| {
            next.iter().filter(move |&&to| to <= from).map(move |&to| to..from + 1).collect::<Vec<_>>()
        };
        self.next.iter().enumerate().flat_map(back)
    }

    /// The opcodes of the shortest round of the loop with the most products. Inner loops with products are on
    /// the path, and run `rounds` times. Returns `None` without such a loop.
    pub(crate) fn once_round(&self, rounds: usize) -> Option<Vec<&str>> {
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
        let opcodes = way.iter().flat_map(|block| {
            let opcodes = &self.opcodes[self.blocks[*block].clone()];
            std::iter::repeat_n(opcodes, times(block)).flatten().map(String::as_str)
        });
        Some(opcodes.collect())
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

/// The opcode behind the guard.
fn opcode(text: &str) -> &str {
    text.split_whitespace().find(|word| !word.starts_with('@')).unwrap_or_default()
}

/// Returns true if the instruction behind this one may run next.
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
        assert_eq!(code.once_round(1).unwrap(), once);
        let of = |listing: &str, wanted| {
            let code = Code::parse(listing);
            code.once_round(4).unwrap().iter().filter(|opcode| pipe(opcode) == wanted).count()
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
