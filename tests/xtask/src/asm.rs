//! A check of the release assembly's text: innermost loops of the hot kernels have no calls and no bounds
//! checks.
//!
//! Every kernel is a separate function (`Memory::apart`), and the v0 mangling contains level and kernel. A
//! loop is the range from a label to a jump back to it. A bounds check is a jump out of the loop to code that
//! calls a panic.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, ExitCode};

#[derive(clap::Args)]
pub(crate) struct Args {}

/// Levels of x86-64: their types, the function in which `Memory::apart` enters, and true if operations on
/// blocks are compiled for them. AVX-VNNI shares those operations with AVX2.
const LEVELS: [(&str, &str, bool); 3] = [
    ("avx2::Avx2<_>", "enter", true),
    ("avx2::Avx2<_>", "enter_vnni", false),
    ("avx512::Avx512", "enter", true),
];

/// The module of the operations on blocks.
const OF_BLOCKS: &str = "codec::ops::";

/// Kernels: a part of their names, and the instructions that distinguish the hot loops from the loops around
/// them.
const KERNELS: [(&str, &str, &[&str]); 7] = [
    ("scores", "page::keys::", &["vpmaddubsw", "vpdpbusd"]),
    ("accumulate", ">::columns", &["vpmaddubsw", "vpdpbusd"]),
    ("kept", "page::woven::sum_kept", &["vpmaddubsw", "vpdpbusd"]),
    ("attend", "page::attend::", &["vmulps"]),
    ("f16 rows", "page::half_rows::", &["vcvtph2ps"]),
    ("encode", "codec::ops::encode_batches<", &["vpermps", "vpermd"]),
    ("decode", "codec::ops::decode<", &["vfmadd"]),
];

/// The form of f16 blocks. Its conversion is deliberately one call per group, because pages of f16 have
/// separate kernels.
const BY_CALL: &str = "form::Halves";

/// Parts of a panic's symbol.
const PANICS: [&str; 4] = ["panic", "slice_index", "unwrap_failed", "copy_from_slice"];

pub(crate) fn run(_: &Args) -> ExitCode {
    let text = match assembly() {
        Ok(text) => text,
        Err(error) => {
            eprintln!("asm: {error}");
            return ExitCode::FAILURE;
        }
    };
    let functions = functions(&text);
    let mut faults = 0;
    for (level, enter, of_blocks) in LEVELS {
        for (kernel, pattern, marks) in KERNELS {
            if pattern.starts_with(OF_BLOCKS) && !of_blocks {
                continue;
            }
            let seam = format!("{level} as tqkv_core::machine::lanes::Memory>::apart::{enter}::");
            let found: Vec<_> = functions
                .iter()
                .filter(|function| function.name.contains(&seam) && function.name.contains(pattern))
                .filter(|function| !function.name.contains(BY_CALL))
                .collect();
            let loops: usize = found.iter().map(|function| hot_loops(&function.lines, marks).len()).sum();
            println!("{level:14} {enter:10} {kernel:10} {:3} functions, {loops:3} hot loops", found.len());
            if loops == 0 {
                println!("  no loop found: has the kernel another name?");
                faults += 1;
            }
            for function in found {
                for fault in check(&function.lines, marks) {
                    println!("  {fault}\n    in {}", function.name);
                    faults += 1;
                }
            }
        }
    }
    if faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Builds the crate as one unit and reads the compiler's assembly.
fn assembly() -> Result<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = root.join("target/asm");
    // With more units or link-time optimisation there would be no assembly of this crate.
    let settings = ["lto=\"off\"", "codegen-units=1", "debug=false"];
    let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    cargo
        .current_dir(&root)
        .args(["rustc", "-p", "tqkv-simd", "--release", "--lib", "--target-dir"])
        .arg(&target);
    for setting in settings {
        cargo.arg("--config").arg(format!("profile.release.{setting}"));
    }
    cargo.args(["--", "--emit", "asm", "-C", "symbol-mangling-version=v0"]);
    match cargo.status() {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("the build failed: {status}")),
        Err(error) => return Err(format!("cannot run cargo: {error}")),
    }
    let newest = std::fs::read_dir(target.join("release/deps"))
        .map_err(|error| error.to_string())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.extension().is_some_and(|e| e == "s")
                && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("tqkv_simd"))
        })
        .max_by_key(|path| path.metadata().and_then(|metadata| metadata.modified()).ok())
        .ok_or("the build wrote no assembly")?;
    std::fs::read_to_string(newest).map_err(|error| error.to_string())
}

/// A function of the assembly, without directives and comments.
struct Function<'a> {
    name: String,
    lines: Vec<&'a str>,
}

/// Splits the text at the labels that are not local.
fn functions(text: &str) -> Vec<Function<'_>> {
    let mut all: Vec<Function<'_>> = Vec::new();
    for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
        // The encoding of an instruction does not matter.
        let line = line.strip_prefix("{vex}").map_or(line, str::trim_start);
        match line.strip_suffix(':') {
            Some(label) if !label.starts_with(".L") => {
                all.push(Function {
                    name: format!("{:#}", rustc_demangle::demangle(label)),
                    lines: Vec::new(),
                });
            }
            Some(_) => all.last_mut().into_iter().for_each(|function| function.lines.push(line)),
            None if line.starts_with('.') || line.is_empty() => {}
            None => all.last_mut().into_iter().for_each(|function| function.lines.push(line)),
        }
    }
    all
}

fn labels<'a>(lines: &[&'a str]) -> HashMap<&'a str, usize> {
    lines.iter().enumerate().filter_map(|(at, line)| Some((line.strip_suffix(':')?, at))).collect()
}

/// The label to which a line jumps, if it is a jump to a label.
fn jump(line: &str) -> Option<&str> {
    let (operation, label) = line.split_once(char::is_whitespace)?;
    (operation.starts_with('j') && label.starts_with(".L")).then_some(label.trim())
}

fn call(line: &str) -> Option<&str> {
    line.strip_prefix("call").map(|rest| rest.trim_start_matches('q').trim())
}

/// Ranges of lines of the loops that contain no other loop.
fn inner_loops(lines: &[&str]) -> Vec<(usize, usize)> {
    let labels = labels(lines);
    let mut loops: Vec<(usize, usize)> = lines
        .iter()
        .enumerate()
        .filter_map(|(end, line)| Some((*labels.get(jump(line)?)?, end)))
        .filter(|(start, end)| start < end)
        .collect();
    // Several jumps to one label are one loop, up to the last jump.
    loops.sort_unstable_by_key(|&(start, end)| (start, std::cmp::Reverse(end)));
    loops.dedup_by_key(|&mut (start, _)| start);
    let contains = |outer: (usize, usize), inner: (usize, usize)| {
        outer != inner && outer.0 <= inner.0 && inner.1 <= outer.1
    };
    let inner = |&candidate: &(usize, usize)| !loops.iter().any(|&other| contains(candidate, other));
    loops.iter().copied().filter(inner).collect()
}

/// The loops of [`inner_loops`] that contain one of `marks`.
fn hot_loops(lines: &[&str], marks: &[&str]) -> Vec<(usize, usize)> {
    let marked = |line: &&str| marks.iter().any(|mark| line.starts_with(mark));
    let mut loops = inner_loops(lines);
    loops.retain(|&(start, end)| lines[start..=end].iter().any(marked));
    loops
}

/// The faults in the hot loops of a function, one per line.
fn check(lines: &[&str], marks: &[&str]) -> Vec<String> {
    let labels = labels(lines);
    let mut faults = Vec::new();
    for (start, end) in hot_loops(lines, marks) {
        for line in &lines[start..=end] {
            if let Some(callee) = call(line) {
                faults.push(format!("loop at {} calls {:#}", lines[start], rustc_demangle::demangle(callee)));
            }
            let Some(&target) = jump(line).and_then(|label| labels.get(label)) else { continue };
            if (start..=end).contains(&target) {
                continue;
            }
            // The target block of the jump, up to its end. Only its first call can be the panic.
            let block = lines[target..].iter().take_while(|line| !ends(line));
            let panic = block
                .filter_map(|line| call(line))
                .take(1)
                .find(|callee| PANICS.iter().any(|panic| callee.contains(panic)));
            if let Some(callee) = panic {
                let callee = rustc_demangle::demangle(callee);
                faults.push(format!("loop at {} checks bounds: {line} leads to {callee:#}", lines[start]));
            }
        }
    }
    faults.dedup();
    faults
}

/// Returns true if control cannot continue after this line.
fn ends(line: &str) -> bool {
    line.starts_with("jmp") || line.starts_with("ret") || line.starts_with("ud2")
}

#[cfg(test)]
mod tests {
    use super::{check, functions, hot_loops, inner_loops};

    /// An outer loop that calls, around an inner loop that does not.
    const CLEAN: &str = "
_RNvC4test4good:
	.cfi_startproc
	xorl	%eax, %eax
.LBB0_1:
	callq	memset@PLT
.LBB0_2:
	vaddps	(%rdi), %zmm0, %zmm0	# comment
	addq	$64, %rdi
	jne	.LBB0_2
	decq	%rsi
	jne	.LBB0_1
	retq
";
    const CALLS: &str = "
_RNvC4test5calls:
.LBB1_1:
	callq	*sqrtf@GOTPCREL(%rip)
	decq	%rsi
	jne	.LBB1_1
	retq
";
    const CHECKS: &str = "
_RNvC4test6checks:
.LBB2_1:
	cmpq	%rcx, %rdi
	jae	.LBB2_3
	decq	%rsi
	jne	.LBB2_1
	retq
.LBB2_3:
	movq	%rcx, %rsi
	callq	*_ZN4core9panicking18panic_bounds_check17h0123456789abcdefE@GOTPCREL(%rip)
	ud2
";

    fn faults(text: &str) -> Vec<String> {
        let functions = functions(text);
        assert_eq!(functions.len(), 1);
        assert_eq!(inner_loops(&functions[0].lines).len(), 1);
        assert!(hot_loops(&functions[0].lines, &["fma"]).is_empty());
        check(&functions[0].lines, &["vaddps", "dec"])
    }

    #[test]
    fn a_clean_inner_loop_passes() {
        assert!(faults(CLEAN).is_empty());
        assert_eq!(functions(CLEAN)[0].name, "test::good");
    }

    #[test]
    fn calls_and_bounds_checks_are_found() {
        assert!(faults(CALLS)[0].contains("calls"));
        assert!(faults(CHECKS)[0].contains("checks bounds"));
    }
}
