//! `tests/firmware/FIGURES.md`: the budget as a table for readers.

use super::machine::{MACHINES, folder};
use super::report::{Report, Reports};
use std::fmt::Write;
use std::path::PathBuf;

pub(super) fn path() -> PathBuf {
    folder().join("FIGURES.md")
}

/// A row of the table: its heading and its value for a target.
type Row = (&'static str, fn(&Report) -> u64);

const ROWS: [Row; 21] = [
    ("encode, instructions", |r| r.instructions.encode),
    ("encode from i8", |r| r.instructions.encode_from_i8),
    ("decode", |r| r.instructions.decode),
    ("score of one key", |r| r.instructions.score),
    ("attention over 64 tokens", |r| r.instructions.attend_64),
    ("encode `t2s8`", |r| r.instructions.t2s8_encode),
    ("decode `t2s8`", |r| r.instructions.t2s8_decode),
    ("decode `t2`", |r| r.instructions.t2_decode),
    ("append a token to a ring of `t2s8`", |r| r.instructions.t2s8_push),
    ("attention over 64 tokens of it", |r| r.instructions.t2s8_attend_64),
    ("append to a full ring of `s4` with exact tokens", |r| r.instructions.s4_tiered_push),
    ("the worst append", |r| r.instructions.s4_worst_push),
    ("attention over its 32 tokens", |r| r.instructions.s4_tiered_attend),
    ("the worst attention", |r| r.instructions.s4_worst_attend),
    ("append to a full ring of `t2s8` with exact tokens", |r| r.instructions.t2s8_tiered_push),
    ("the worst append", |r| r.instructions.t2s8_worst_push),
    ("attention over its 32 tokens", |r| r.instructions.t2s8_tiered_attend),
    ("the worst attention", |r| r.instructions.t2s8_worst_attend),
    ("stack of encode, bytes", |r| r.stack_bytes),
    ("flash of encode, decode and score, bytes", |r| r.flash_bytes),
    ("static RAM, bytes", |r| r.ram_bytes),
];

/// The text of the document.
pub(super) fn text(reports: &Reports) -> String {
    let mut out = String::from(
        "# Costs on microcontrollers\n\n\
         Written by `cargo xtask firmware --update-budget`, do not edit. These are the figures of `budget.json`. A run of\n\
         `cargo xtask firmware` fails if a figure is 3 % larger. A test compares this table with `budget.json`.\n\n\
         Head dim 128; `s4` unless another codec is named; `opt-level` 3. Instructions are counted under QEMU; they are not cycles.\n\
         M4 and M33 run the DSP kernels of `tqkv-simd`. Rings with exact tokens have 4 + 8 of them in `i8`, and 20 coded ones.\n\n\
         The worst append and attention are the largest of nine histories and five queries (`tests/firmware/workload/src/worst.rs`).\n\
         Among them are scores that rise with every token, vectors of one coordinate after the rotation, and scales at both ends of\n\
         f16. The costs of the language model are in M39 of [MEASURED.md](../../MEASURED.md).\n\n",
    );
    let names = reports.targets.iter().map(|report| {
        MACHINES.iter().find(|machine| machine.target == report.target).map_or("?", |machine| machine.what)
    });
    let mut line = |first: &str, cells: &mut dyn Iterator<Item = String>| {
        let cells: Vec<String> = cells.collect();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| {first} | {} |", cells.join(" | "));
    };
    line("", &mut names.map(str::to_owned));
    line("---", &mut reports.targets.iter().map(|_| "---:".to_owned()));
    for (what, of) in ROWS {
        line(what, &mut reports.targets.iter().map(|report| grouped(of(report))));
    }
    out
}

/// Formats 12345 as 12,345.
fn grouped(number: u64) -> String {
    if number < 1000 {
        number.to_string()
    } else {
        format!("{},{:03}", grouped(number / 1000), number % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas() {
        assert_eq!([0, 999, 1000, 1_234_056].map(grouped), ["0", "999", "1,000", "1,234,056"]);
    }

    #[test]
    fn the_document_says_what_the_budget_says() {
        let expected = text(&crate::firmware::report::budget().unwrap());
        let written = std::fs::read_to_string(path()).unwrap();
        assert_eq!(written, expected, "run cargo xtask firmware --update-budget");
    }
}
