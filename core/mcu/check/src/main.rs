//! Builds the images, runs them in QEMU, and reports their costs. `cargo xtask firmware` runs it after it has looked for the
//! programs that this needs.

use clap::Parser;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

mod examples;
mod figures;
mod image;
mod lm;
mod machine;
mod proofs;
mod report;

use image::Image;
use machine::{MACHINES, Machine, Result};
use report::{Report, Reports, budget, budget_path, numbers, of_log};

/// Build the firmware images, run them in QEMU, and compare their costs with the budget.
#[derive(Parser)]
#[command(name = "cargo xtask firmware")]
struct Args {
    /// Print one JSON object on stdout and nothing else
    #[arg(long)]
    json: bool,
    /// Write the measured figures as the new budget and as the table in core/mcu/firmware/FIGURES.md
    #[arg(long)]
    update_budget: bool,
    /// Only export the shipped language model and run it on the machines that have room for it
    #[arg(long, conflicts_with_all = ["json", "update_budget"])]
    lm: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let checked = if args.lm { lm::check() } else { check(&args) };
    match checked {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask firmware: {message}");
            ExitCode::FAILURE
        }
    }
}

fn check(args: &Args) -> Result<()> {
    let expected = format!("{:08x}", workload::crc(tqkv_core::Portable));
    if workload::golden() != workload::GOLDEN {
        return Err(format!("workload::GOLDEN is not what the host encodes: {:?}", workload::golden()));
    }
    let say = |text: &str| {
        if !args.json {
            println!("{text}");
        }
    };
    say(&format!("host: crc {expected}"));
    let mut targets = Vec::new();
    for machine in &MACHINES {
        let report = one(machine, &say)?;
        if report.crc != expected {
            return Err(format!("{}: crc {}, but {expected} on the host", machine.target, report.crc));
        }
        targets.push(report);
    }
    proofs::c_example(&MACHINES[0], &say)?;
    let reports = Reports { targets };
    if args.json {
        println!("{}", serde_json::to_string(&reports).map_err(|e| e.to_string())?);
    } else {
        print(&reports);
    }
    if args.update_budget {
        let text = serde_json::to_string_pretty(&reports).map_err(|e| e.to_string())?;
        return write(&budget_path(), &(text + "\n"))
            .and_then(|()| write(&figures::path(), &figures::text(&reports)));
    }
    compare(&reports)
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

fn one(machine: &Machine, say: &dyn Fn(&str)) -> Result<Report> {
    proofs::tests_pass(machine, say)?;
    proofs::nothing_panics_or_allocates(machine, say)?;
    let mut lines = Image::build(machine, "measure")?.run(machine)?;
    if machine.measures_worst() {
        lines.extend(Image::build(machine, "worst")?.run(machine)?);
    }
    let log: BTreeMap<String, String> = lines
        .into_iter()
        .filter_map(|line| line.split_once(' ').map(|(key, value)| (key.to_owned(), value.to_owned())))
        .collect();
    let number = |key: &str| -> Result<u64> {
        let value = log.get(key).ok_or(format!("{}: the image did not print {key}", machine.target))?;
        value.parse().map_err(|_| format!("{}: {key} is not a number: {value}", machine.target))
    };
    let (size, empty) =
        (Image::build(machine, "size")?.sections()?, Image::build(machine, "empty")?.sections()?);
    proofs::no_floats(machine, say)?;
    proofs::a_ring_takes_no_flash(machine, say)?;
    let extra = ["query", "stack_decode", "stack_t2s8_encode", "stack_t2s8_decode"]
        .map(|key| Ok::<_, String>(format!("{key} {}", number(key)?)));
    for line in extra {
        say(&format!("{}: {}", machine.what, line?));
    }
    let (crc, portable) = (log.get("crc"), log.get("crc_portable"));
    if crc != portable {
        let name = machine.target;
        return Err(format!("{name}: crc {crc:?} by the fastest kernels, {portable:?} by the portable code"));
    }
    Ok(Report {
        target: machine.target.to_owned(),
        machine: machine.name.to_owned(),
        crc: log.get("crc").cloned().unwrap_or_default(),
        instructions: of_log(&log, machine)?,
        worst: machine.measures_worst().then(|| of_log(&log, machine)).transpose()?,
        tasks: machine.runs_tasks().then(|| proofs::tasks_share_the_core(machine, say)).transpose()?,
        stack_bytes: number("stack_encode")?,
        flash_bytes: size.flash.saturating_sub(empty.flash),
        ram_bytes: size.ram.saturating_sub(empty.ram),
    })
}

fn print(reports: &Reports) {
    println!("\nD = 128; instructions (not cycles), bytes; s4, then t2s8 and t2");
    println!(
        "{:<28} {:<10} {:>7} {:>7} {:>6} {:>9} {:>6} {:>6} {:>4} {:>11} {:>11} {:>9}  crc",
        "target",
        "machine",
        "encode",
        "decode",
        "score",
        "attend_64",
        "stack",
        "flash",
        "ram",
        "t2s8_encode",
        "t2s8_decode",
        "t2_decode",
    );
    for Report { target, machine, crc, instructions: i, stack_bytes, flash_bytes, ram_bytes, .. } in
        &reports.targets
    {
        println!(
            "{target:<28} {machine:<10} {:>7} {:>7} {:>6} {:>9} {stack_bytes:>6} {flash_bytes:>6} {ram_bytes:>4} {:>11} {:>11} {:>9}  {crc}",
            i.encode, i.decode, i.score, i.attend_64, i.t2s8_encode, i.t2s8_decode, i.t2_decode,
        );
    }
}

/// A figure that exceeds the budget by 3 % and by more than a few units is an error. The compiler is pinned,
/// so only our code changes the figures.
fn compare(reports: &Reports) -> Result<()> {
    let budget = budget()?;
    for report in &reports.targets {
        let Some(limit) = budget.targets.iter().find(|b| b.target == report.target) else {
            return Err(format!("{}: no budget for {}", budget_path().display(), report.target));
        };
        let measured = numbers(report)?;
        for (what, allowed) in numbers(limit)? {
            let measured = *measured.get(&what).ok_or(format!("{}: {what} is missing", report.target))?;
            if measured > allowed + allowed * 3 / 100 + 8 {
                return Err(format!("{}: {what} is {measured}, budget {allowed}", report.target));
            }
        }
    }
    Ok(())
}
