//! `core/mcu/firmware/FIGURES.md`: the budget as a table for readers.

use super::machine::{MACHINES, folder};
use super::report::{Report, Reports, Tasks, Worst};
use std::fmt::Write;
use std::path::PathBuf;

pub(super) fn path() -> PathBuf {
    folder().join("firmware/FIGURES.md")
}

/// A row of the table: its heading and its value for a target.
type Row = (&'static str, fn(&Report) -> u64);

const ROWS: [Row; 13] = [
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
    ("stack of encode, bytes", |r| r.stack_bytes),
    ("flash of encode, decode and score, bytes", |r| r.flash_bytes),
    ("static RAM, bytes", |r| r.ram_bytes),
];

/// A row of the second table.
type WorstRow = (&'static str, fn(&Worst) -> u64);

const WORST_ROWS: [WorstRow; 8] = [
    ("append, `s4`, usual", |w| w.s4_tiered_push),
    ("append, `s4`, worst", |w| w.s4_worst_push),
    ("attention, `s4`, usual", |w| w.s4_tiered_attend),
    ("attention, `s4`, worst", |w| w.s4_worst_attend),
    ("append, `t2s8`, usual", |w| w.t2s8_tiered_push),
    ("append, `t2s8`, worst", |w| w.t2s8_worst_push),
    ("attention, `t2s8`, usual", |w| w.t2s8_tiered_attend),
    ("attention, `t2s8`, worst", |w| w.t2s8_worst_attend),
];

/// The text of the document.
pub(super) fn text(reports: &Reports) -> String {
    let all: Vec<&Report> = reports.targets.iter().collect();
    let worst: Vec<&Report> = all.iter().copied().filter(|report| report.worst.is_some()).collect();
    let mut out = String::from(
        "# Costs on microcontrollers\n\n\
         Written by `cargo xtask firmware --update-budget`, do not edit. These are the figures of `budget.json`. A run of\n\
         `cargo xtask firmware` fails if a figure is 3 % larger. A test compares this table with `budget.json`.\n\n\
         Head dim 128; `s4` unless another codec is named; `opt-level` 3. Instructions are counted under QEMU; they are not cycles.\n\
         M4 and M33 run the DSP kernels of `tqkv-simd`. The costs of the language model are in M22 of [MEASURED.md](../../../MEASURED.md).\n\n",
    );
    head(&mut out, &all);
    for (what, of) in ROWS {
        line(&mut out, what, all.iter().map(|report| grouped(of(report))));
    }
    out += "\n## Worst costs of a ring\n\n\
            One append to a full ring, and attention over its 32 tokens: 4 + 8 are exact in `i8`, and 20 are coded. The worst is the\n\
            largest of nine histories and five queries (`core/mcu/workload/src/worst.rs`). Among them are scores that rise with\n\
            every token, vectors of one coordinate after the rotation, and scales at both ends of f16.\n\n";
    head(&mut out, &worst);
    for (what, of) in WORST_ROWS {
        line(&mut out, what, worst.iter().filter_map(|report| report.worst.as_ref()).map(|w| grouped(of(w))));
    }
    for report in all {
        if let Some(tasks) = &report.tasks {
            let Tasks { handler, soonest, latest } = tasks;
            let _ = write!(
                out,
                "\n## A control loop beside a ring\n\n\
                 Two tasks of embassy on a Cortex-M4F (`core/mcu/firmware/examples/tasks.rs`). One appends tokens to a ring of `s4` and attends\n\
                 to 64; it gives way between calls. The other waits for a timer. From a tick to its handler it is at most {handler} instructions:\n\
                 no call of the ring closes interrupts. From a tick to the waiting task it is {} to {}, one call at most.\n",
                grouped(*soonest),
                grouped(*latest),
            );
        }
    }
    out
}

/// The first two lines of a table: the names of machines.
fn head(out: &mut String, reports: &[&Report]) {
    let names = reports.iter().map(|report| {
        MACHINES.iter().find(|machine| machine.target == report.target).map_or("?", |machine| machine.what)
    });
    line(out, "", names.map(str::to_owned));
    line(out, "---", reports.iter().map(|_| "---:".to_owned()));
}

fn line(out: &mut String, first: &str, cells: impl Iterator<Item = String>) {
    let cells: Vec<String> = cells.collect();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "| {first} | {} |", cells.join(" | "));
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
        let expected = text(&crate::report::budget().unwrap());
        let written = std::fs::read_to_string(path()).unwrap();
        assert_eq!(written, expected, "run cargo xtask firmware --update-budget");
    }
}
