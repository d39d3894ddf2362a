//! Builds the GPU kernels to PTX, compares the text with the committed file, and audits the output of
//! `ptxas`. It needs the components rust-src, llvm-tools and llvm-bitcode-linker, and Python with pip for
//! `ptxas`. It needs no GPU and no CUDA installation.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::cost::{Cost, ENTRY, FILE, assemble, only};
use crate::disassemble::Source;
use crate::timing::Machine;
use crate::{counts, simulate, wheel};

/// The architecture of the committed file. Later ones run it too.
const BUILT: &str = "sm_80";

/// The folder of the build.
const FOLDER: &str = "target/ptx";

/// Architectures for which the audit looks at every kernel, with the kernels in the forms that caches get.
const AUDITED: [&str; 2] = [BUILT, "sm_90"];

/// The assembler, from the Python package index.
const PTXAS_PACKAGE: &str = "nvidia-cuda-nvcc==13.0.88";

/// The folder of the unpacked package.
const PTXAS_FOLDER: &str = "target/ptxas";

/// The program in that folder.
const PTXAS_PROGRAM: &str = "nvidia/cu13/bin/ptxas";

/// The other architectures of GPUs that run the file. There the audit looks at every kernel, and at attention on
/// tensor cores with every two formats that it may get.
const OTHERS: [&str; 5] = ["sm_86", "sm_89", "sm_100", "sm_103", "sm_120"];

/// Directives that rustc cannot write, and the start of the names of their kernels. With 168 registers, three
/// blocks of four warps run on a multiprocessor. The assembler would keep the merge below 33 registers, so
/// that many warps fit. But there are few warps, and they need many loads under way instead. With eight heads
/// and at head dim 256 it would aim at 170 registers for some pairs of formats, and load late. That is two too
/// many for a third block. Two blocks leave it the registers to load early.
const DIRECTIVES: [(&str, &str); 4] = [
    ("attend_tensor_d128_r4", ".maxnreg 168\n"),
    ("attend_tensor_d128_r8", ".maxntid 128, 1, 1\n.minnctapersm 2\n"),
    ("attend_tensor_d256_r4", ".maxntid 128, 1, 1\n.minnctapersm 2\n"),
    ("attend_merge_", ".maxntid 128, 1, 1\n.minnctapersm 1\n"),
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compare with the committed file instead of writing it
    #[arg(long)]
    check: bool,
    /// Print the registers of every kernel
    #[arg(long)]
    registers: bool,
    /// Build nothing: count the instructions of attention in the committed file, and compute times from them
    #[arg(long, conflicts_with_all = ["check", "registers"])]
    counts: bool,
    /// Build nothing: run attention in a model of a GPU, an H200 by default, and print the expected times
    #[arg(long, conflicts_with_all = ["check", "registers", "counts"])]
    simulate: bool,
    /// Architecture of the machine code for --counts and --simulate [default: sm_90]
    #[arg(long, value_name = "SM", conflicts_with_all = ["check", "registers"])]
    architecture: Option<String>,
    #[command(flatten)]
    machine: Machine,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match build_all(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn build_all(args: &Args) -> Result<(), String> {
    args.machine.check(args.simulate)?;
    if args.architecture.is_some() && !args.counts && !args.simulate {
        return Err("--architecture: expected --counts or --simulate with it".into());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).ok_or("no workspace root")?;
    let ptxas = ptxas(root)?;
    let architecture = args.architecture.as_deref().unwrap_or(AUDITED[1]);
    if args.counts {
        print!("{}", counts::tables(&Source::open(root, &ptxas, architecture)?)?);
        return Ok(());
    }
    if args.simulate {
        print!("{}", simulate::table(&Source::open(root, &ptxas, architecture)?, &args.machine)?);
        return Ok(());
    }
    let text = normalise(&build(root)?);
    let faults = audit_text(&text, root);
    if !faults.is_empty() {
        return Err(faults.join("\n"));
    }
    write_or_compare(&root.join(FILE), &text, args.check)?;
    // The assembler takes one processor, so architectures are assembled side by side.
    let made = std::thread::scope(|scope| {
        let threads = AUDITED.map(|architecture| {
            let (ptxas, text) = (&ptxas, &text);
            scope.spawn(move || costs(root, ptxas, architecture, text))
        });
        threads.map(|thread| thread.join().unwrap_or_else(|_| Err("an assembler panicked".into())))
    });
    let mut all = Vec::new();
    for (architecture, made) in AUDITED.into_iter().zip(made) {
        let costs = made?;
        let faults = audit_costs(&costs);
        if !faults.is_empty() {
            return Err(format!("{architecture}: {}", faults.join("\n")));
        }
        println!("{architecture}: {} kernels, no stack, no spills", costs.len());
        if args.registers {
            for (name, cost) in &costs {
                println!("{name} {}", cost.registers);
            }
        }
        all.push(costs);
    }
    for other in OTHERS {
        let mut costs = assemble(root, &ptxas, other, &text)?;
        // No cache gets a kernel of attention whose formats are arguments.
        costs.retain(|name, _| !name.starts_with("attend_") || name.starts_with("attend_merge_"));
        costs.extend(costs_of_tensor(root, &ptxas, other, &text)?);
        let faults = spills(&costs);
        if !faults.is_empty() {
            return Err(format!("{other}: {}", faults.join("\n")));
        }
        println!("{other}: {} kernels, no stack, no spills", costs.len());
    }
    write_or_compare(&root.join("gpu/ptx/REGISTERS.md"), &register_table(&all), args.check)
}

/// Costs of all kernels, those that caches get in another form included.
fn costs(
    root: &Path,
    ptxas: &Path,
    architecture: &str,
    text: &str,
) -> Result<BTreeMap<String, Cost>, String> {
    let mut costs = assemble(root, ptxas, architecture, text)?;
    costs.extend(costs_by_format(root, ptxas, architecture, text)?);
    costs.extend(costs_of_pairs(root, ptxas, architecture, text)?);
    Ok(costs)
}

/// Writes a file with this text, or with `check` compares the file with it.
fn write_or_compare(path: &Path, text: &str, check: bool) -> Result<(), String> {
    if !check {
        fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    } else if fs::read_to_string(path).is_ok_and(|committed| committed == text) {
        Ok(())
    } else {
        Err(format!("{} differs from what the source gives: run cargo xtask ptx", path.display()))
    }
}

/// Kernels that are far below every limit, so that one row of the table has the most of all codecs.
const SMALL: [&str; 3] = ["decode_pages", "scores", "weight_decode"];

/// The registers of every kernel, one row for all head dims. `all` has one entry per architecture of the
/// audit.
fn register_table(all: &[BTreeMap<String, Cost>]) -> String {
    let assembler = PTXAS_PACKAGE.rsplit('=').next().unwrap_or_default();
    let head_dims = tqkv_gpu::HEAD_DIMS;
    let mut text = format!(
        "# Registers of the GPU kernels\n\n{}, ptxas {assembler}; all {} kernels on both: 0 bytes of stack, 0 spills, \
         no call in the text.\nAttention on tensor cores: formats are constants; the maximum over pairs of equal formats, \
         and over pairs with the last format.\nEncoders: keys and values side by side with their f16 rows, as one kernel, both of this codec; the last codec also \
         with the first.\nSmall kernels: the codec that takes the most.\nWritten by `cargo xtask ptx`.\n\n| kernel |{}\n| --- |{}\n",
        AUDITED.join(" / "),
        kernels().len(),
        head_dims.map(|dim| format!(" d{dim} |")).concat(),
        " --- |".repeat(head_dims.len()),
    );
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    for name in kernels() {
        let name = of_any_dim(&name);
        let row = row_of(&name);
        match rows.iter_mut().find(|(other, _)| *other == row) {
            Some((_, names)) => names.push(name),
            None => rows.push((row, vec![name])),
        }
    }
    for (row, names) in rows {
        text += &format!("| {row} |");
        for dim in head_dims {
            let has_dim = |name: &&String| name.contains('*') || dim == head_dims[0];
            let names: Vec<_> =
                names.iter().filter(has_dim).map(|name| name.replace('*', &dim.to_string())).collect();
            let most = all
                .iter()
                .filter_map(|costs| names.iter().filter_map(|name| Some(costs.get(name)?.registers)).max());
            let most = most.map(|registers| registers.to_string()).collect::<Vec<_>>().join(" / ");
            text += &format!(" {} |", if most.is_empty() { "-" } else { &most });
        }
        text.push('\n');
    }
    text
}

/// The row of a kernel, whose name has `*` instead of the head dim.
fn row_of(name: &str) -> String {
    let row = name.replace("_d*", "");
    let is_codec = |rest: &str| tqkv_gpu::CODECS.iter().any(|id| rest.strip_prefix('_') == Some(id.name()));
    let small = SMALL.iter().find(|small| row.strip_prefix(**small).is_some_and(is_codec));
    small.map_or(row.clone(), |small| format!("{small} of codecs"))
}

/// The name of a kernel with `*` instead of its head dim.
fn of_any_dim(name: &str) -> String {
    let part = |part: &str| match part.strip_prefix('d').filter(|dim| dim.parse::<usize>().is_ok()) {
        Some(_) => "d*".to_owned(),
        None => part.to_owned(),
    };
    name.split('_').map(part).collect::<Vec<_>>().join("_")
}

/// Names of all kernels that a PTX file must hold.
fn kernels() -> Vec<String> {
    let mut names = Vec::new();
    let codecs = tqkv_gpu::CODECS.map(|id| id.name());
    for dim in tqkv_gpu::HEAD_DIMS {
        names.extend(codecs.map(|codec| format!("encode_append_{codec}_d{dim}")));
        for kernel in SMALL {
            names.extend(codecs.map(|codec| format!("{kernel}_{codec}_d{dim}")));
        }
        for kernel in [
            "encode_append_f16",
            "decode_pages_f16",
            "rotate_queries",
            "attend_merge",
            "attend_merge_exact",
            "keep_rows",
            "qjl_sketch",
            "qjl_correct",
        ] {
            names.push(format!("{kernel}_d{dim}"));
        }
        names.push(format!("attend_d{dim}_r1"));
        names.extend([1, 2].map(|heads| format!("attend_f16_d{dim}_r{heads}")));
        for kernel in ["attend_tensor", "attend_trellis"] {
            names.push(format!("{kernel}_d{dim}_r4"));
        }
    }
    names.extend([64, 128].map(|dim| format!("attend_tensor_d{dim}_r8")));
    names.extend(["plan_parts", "give_units", "keep_units", "see_units", "read_bytes"].map(str::to_owned));
    names
}

/// Compiles the device crate and returns the linker's text.
fn build(root: &Path) -> Result<String, String> {
    let target = root.join(FOLDER);
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    cargo.current_dir(root).args([
        "rustc",
        "--quiet",
        "--locked",
        "--package",
        "tqkv-gpu-kernels",
        "--lib",
        "--profile",
        "ptx",
        "-Zbuild-std=core",
        "--target",
        "nvptx64-nvidia-cuda",
        "--crate-type",
        "cdylib",
        "--target-dir",
    ]);
    cargo.arg(&target);
    for name in ["RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_TARGET_DIR", "CARGO_BUILD_TARGET"] {
        cargo.env_remove(name);
    }
    // Jump threading may move a shuffle into a branch, because MIR passes do not know that its intrinsic is
    // convergent. Only LLVM knows it.
    let flags = [format!("-Ctarget-cpu={BUILT}"), "-Zmir-enable-passes=-JumpThreading".to_owned()];
    cargo.env("RUSTC_BOOTSTRAP", "1").env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    let status = cargo.status().map_err(|error| format!("cargo: {error}"))?;
    if !status.success() {
        return Err("the kernels do not build".to_owned());
    }
    let path = target.join("nvptx64-nvidia-cuda/ptx/tqkv_gpu_kernels.ptx");
    fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Drops comments and the hashes in the names of constants, which do not come from the source, and limits
/// registers.
fn normalise(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default().trim_end();
        let line = without_crate_hash(line);
        let mut rest = line.as_str();
        while let Some((before, after)) = rest.split_once("anon_$_") {
            out.push_str(before);
            out.push_str("constant_");
            rest = after.split_once("_$_").map_or(after, |(_hash, number)| number);
        }
        out.push_str(rest);
        if !line.is_empty() {
            out.push('\n');
        }
    }
    with_directives(&out)
}

/// Writes the directives of kernels between their parameters and their bodies.
fn with_directives(text: &str) -> String {
    let mut kernels = text.split(ENTRY);
    let mut out = kernels.next().unwrap_or_default().to_owned();
    for kernel in kernels {
        let directives = DIRECTIVES.iter().find(|(start, _)| kernel.starts_with(start));
        let (parameters, body) = kernel.split_once("\n)\n").unwrap_or((kernel, ""));
        out +=
            &format!("{ENTRY}{parameters}\n)\n{}{body}", directives.map_or("", |(_, directives)| directives));
    }
    out
}

/// The line without the hash in the names of the core's statics, `_RNv..Cs(hash)_9tqkv_core..`.
fn without_crate_hash(line: &str) -> String {
    const CRATE: &str = "_9tqkv_core";
    let mut parts = line.split(CRATE);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let hash = out.len() - out.bytes().rev().take_while(u8::is_ascii_alphanumeric).count();
        if let Some(start) = out[hash..].find("Cs") {
            out.truncate(hash + start);
        }
        out.push_str(CRATE);
        out.push_str(part);
    }
    out
}

/// The kernels of a PTX text: name and body.
fn bodies(text: &str) -> BTreeMap<&str, &str> {
    text.split(ENTRY).skip(1).filter_map(|kernel| kernel.split_once('(')).collect()
}

/// The faults in a PTX text.
fn audit_text(text: &str, root: &Path) -> Vec<String> {
    let (bodies, mut faults) = (bodies(text), Vec::new());
    for name in kernels() {
        if !bodies.contains_key(name.as_str()) {
            faults.push(format!("{name}: missing"));
        }
    }
    for (name, body) in bodies {
        let forbidden: &[&str] = if name.starts_with("encode_append") {
            &[".local", "call", "fma.", "mad.rn.f32", ".approx", ".ftz"]
        } else {
            &[".local", "call", ".ftz"]
        };
        // A softmax weight below the normal numbers may count as 0. Encoders have no such exception.
        let body =
            if name.starts_with("attend") { body.replace("ex2.approx.ftz.f32", "") } else { body.to_owned() };
        if let Some((_, directives)) = DIRECTIVES.iter().find(|(start, _)| name.starts_with(start))
            && !body.contains(directives)
        {
            faults.push(format!("{name}: its directives were not written"));
        }
        for word in forbidden {
            if body.contains(word) {
                faults.push(format!("{name}: {word} is not allowed here"));
            }
        }
    }
    // Paths of the build machine: the checkout, the builder's home, the compiler's sources.
    let home = env::home_dir().filter(|home| home.parent().is_some());
    let paths = [Some(root.to_path_buf()), home, Some("/rustc/".into())];
    let named = paths.iter().flatten().map(|path| path.display().to_string());
    faults.extend(named.filter(|path| text.contains(path)).map(|path| format!("the text names {path}")));
    faults
}

/// Costs of the attention kernels with constant formats, as caches get them. Each is the maximum over pairs
/// of equal formats, and over pairs with the last format, which takes the most registers.
fn costs_by_format(
    root: &Path,
    ptxas: &Path,
    architecture: &str,
    text: &str,
) -> Result<BTreeMap<String, Cost>, String> {
    let mut formats = tqkv_gpu::CODECS.map(tqkv_gpu::page_format).to_vec();
    formats.dedup();
    let last = formats[formats.len() - 1];
    let pairs = formats.iter().flat_map(|&format| [[format; 2], [format, last], [last, format]]);
    let mut costs = BTreeMap::<String, Cost>::new();
    let shapes = tqkv_gpu::HEAD_DIMS.into_iter().flat_map(|dim| [(dim, 2), (dim, 8)]);
    for (formats, (dim, group)) in pairs.flat_map(|pair| shapes.clone().map(move |shape| (pair, shape))) {
        let (name, heads) = tqkv_gpu::kernel_for(formats, group, dim);
        if group == 8 && heads < 8 {
            continue;
        }
        let name = format!("{name}_d{dim}_r{heads}");
        let text = tqkv_gpu::with_formats(&only(text, &name), &name, formats);
        let text = text.ok_or_else(|| format!("{name}: it does not read its formats"))?;
        for (name, cost) in assemble(root, ptxas, architecture, &text)? {
            costs.entry(name).or_default().raise(&cost);
        }
    }
    Ok(costs)
}

/// Costs of the encoders side by side, as caches with exact tokens get them. Each codec is paired with itself.
/// The last codec, which takes the most registers, is also paired with the first.
fn costs_of_pairs(
    root: &Path,
    ptxas: &Path,
    architecture: &str,
    text: &str,
) -> Result<BTreeMap<String, Cost>, String> {
    let codecs = tqkv_gpu::CODECS.map(|id| id.name());
    let mixed = [codecs[codecs.len() - 1], codecs[0]];
    let pairs = codecs.into_iter().map(|codec| [codec; 2]).chain([mixed]);
    let mut costs = BTreeMap::<String, Cost>::new();
    for (pair, dim) in pairs.flat_map(|pair| tqkv_gpu::HEAD_DIMS.map(|dim| (pair, dim))) {
        let names = [pair[0], pair[1], "f16", "f16"].map(|codec| format!("encode_append_{codec}_d{dim}"));
        let text = tqkv_gpu::side_by_side(text, &names.each_ref().map(String::as_str));
        let text = text.ok_or_else(|| format!("{}: not in the text", names.join(", ")))?;
        for cost in assemble(root, ptxas, architecture, &text)?.into_values() {
            costs.entry(names[0].clone()).or_default().raise(&cost);
        }
    }
    Ok(costs)
}

/// Costs of attention on tensor cores with constant formats, the maximum over every two scalar formats.
fn costs_of_tensor(
    root: &Path,
    ptxas: &Path,
    architecture: &str,
    text: &str,
) -> Result<BTreeMap<String, Cost>, String> {
    let mut formats: Vec<u32> = tqkv_gpu::CODECS.map(tqkv_gpu::page_format).to_vec();
    formats.retain(|&format| !tqkv_gpu_kernels::page::is_trellis(format));
    formats.dedup();
    let shapes = tqkv_gpu::HEAD_DIMS.into_iter().flat_map(|dim| [(dim, 2), (dim, 8)]);
    let pairs = formats.iter().flat_map(|&key| formats.iter().map(move |&value| [key, value]));
    let mut costs = BTreeMap::<String, Cost>::new();
    for (formats, (dim, group)) in pairs.flat_map(|pair| shapes.clone().map(move |shape| (pair, shape))) {
        let (name, heads) = tqkv_gpu::kernel_for(formats, group, dim);
        if group == 8 && heads < 8 {
            continue;
        }
        let name = format!("{name}_d{dim}_r{heads}");
        let text = tqkv_gpu::with_formats(&only(text, &name), &name, formats);
        let text = text.ok_or_else(|| format!("{name}: it does not read its formats"))?;
        for (name, cost) in assemble(root, ptxas, architecture, &text)? {
            costs.entry(name).or_default().raise(&cost);
        }
    }
    Ok(costs)
}

/// The kernels that need a stack or spill registers.
fn spills(costs: &BTreeMap<String, Cost>) -> Vec<String> {
    costs
        .iter()
        .filter(|(_, cost)| cost.stack + cost.spills > 0 || cost.registers == 0)
        .map(|(name, cost)| {
            format!(
                "{name}: {} bytes of stack, {} of spills, {} registers",
                cost.stack, cost.spills, cost.registers
            )
        })
        .collect()
}

fn audit_costs(costs: &BTreeMap<String, Cost>) -> Vec<String> {
    let mut faults = spills(costs);
    faults.extend(
        kernels()
            .into_iter()
            .filter(|name| !costs.contains_key(name))
            .map(|name| format!("{name}: not assembled")),
    );
    faults
}

/// Returns true if [`ptxas`] can find the assembler, or can fetch it with Python's installer.
pub(crate) fn has_ptxas() -> bool {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PTXAS_FOLDER).join(PTXAS_PROGRAM);
    env::var_os("TQKV_PTXAS").is_some() || kept.exists() || wheel::has_pip()
}

/// Path of `ptxas`: the variable `TQKV_PTXAS`, or fetched once into the target folder.
fn ptxas(root: &Path) -> Result<PathBuf, String> {
    if let Some(path) = env::var_os("TQKV_PTXAS") {
        return Ok(PathBuf::from(path));
    }
    wheel::program(&root.join(PTXAS_FOLDER), PTXAS_PACKAGE, PTXAS_PROGRAM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::read_report;

    #[test]
    fn what_ptxas_reports_is_read() {
        let costs = read_report(
            "ptxas info    : Compiling entry function 'a' for 'sm_90'\n\
             ptxas info    : Function properties for a\n\
             \x20   0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
             ptxas info    : Used 43 registers, 428 bytes cmem[0]\n\
             ptxas info    : Compiling entry function 'b' for 'sm_90'\n\
             \x20   32 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n\
             ptxas info    : Used 255 registers",
        );
        assert_eq!((costs["a"].registers, costs["a"].stack, costs["a"].spills), (43, 0, 0));
        assert_eq!((costs["b"].registers, costs["b"].stack, costs["b"].spills), (255, 32, 12));
        let faults = audit_costs(&costs);
        assert!(faults.contains(&"b: 32 bytes of stack, 12 of spills, 255 registers".to_owned()));
        assert_eq!(faults.len(), 1 + kernels().len(), "every missing kernel is named");
    }

    #[test]
    fn the_table_of_registers_has_a_row_for_all_head_dims() {
        let costs = |add: u32| {
            let cost = |(i, name): (u32, String)| (name, Cost { registers: i + add, ..Cost::default() });
            (0..).zip(kernels()).map(cost).collect::<BTreeMap<_, _>>()
        };
        let text = register_table(&[costs(1), costs(1000)]);
        assert!(text.contains(
            "| kernel | d64 | d128 | d256 |\n| --- | --- | --- | --- |\n| encode_append_s2 | 1 / 1000 |"
        ));
        assert!(text.contains("| scores of codecs |") && !text.contains("scores_s4"));
        let merged = SMALL.len() * (tqkv_gpu::CODECS.len() - 1) * tqkv_gpu::HEAD_DIMS.len();
        let cells = kernels().len() - merged;
        assert_eq!(text.matches(" / ").count(), cells + 1, "every kernel, and the heading");
    }

    #[test]
    fn the_audit_names_what_a_kernel_must_not_do() {
        let entry = |name: &str, body: &str| format!(".visible .entry {name}(\n)\n{{\n\t{body}\n}}\n");
        let without: String = kernels().iter().map(|name| entry(name, "ret;")).collect();
        let good = with_directives(&without);
        let root = Path::new("/a/folder");
        assert!(audit_text(&good, root).is_empty());
        let with = |name: &str, body: &str| good.replace(&entry(name, "ret;"), &entry(name, body));
        let encode = "encode_append_s4_d128";
        for (name, body, fault) in [
            (encode, "fma.rn.f32 %f1, %f2, %f3, %f4;", "fma."),
            (encode, "sqrt.approx.f32 %f1, %f2;", ".approx"),
            (encode, "ex2.approx.ftz.f32 %f1, %f2;", ".approx"),
            (encode, ".local .align 4 .b8 depot[32];", ".local"),
            ("attend_d64_r1", "call.uni print;", "call"),
            ("attend_d64_r1", "mul.ftz.f32 %f1, %f2, %f3;", ".ftz"),
        ] {
            let faults = audit_text(&with(name, body), root);
            assert_eq!(faults[0], format!("{name}: {fault} is not allowed here"));
        }
        assert!(audit_text(&with("attend_d64_r1", "ex2.approx.ftz.f32 %f1, %f2;"), root).is_empty());
        assert_eq!(audit_text(&without, root).len(), 9, "the directives are missing");
        assert!(audit_text(&with("attend_d64_r1", "fma.rn.f32 %f1, %f2, %f3, %f4;"), root).is_empty());
        assert_eq!(audit_text(&good.replace("scores_s2_d64(", "x("), root), ["scores_s2_d64: missing"]);
        assert_eq!(audit_text(&(good + "\"/a/folder/x.rs\""), root), ["the text names /a/folder"]);
    }

    #[test]
    fn comments_and_hashes_are_not_compared() {
        let text = "// hash 1\n.global .b8 anon_$_0f3a_$_7[4];\n\tld %r1, anon_$_0f3a_$_7; // x\n";
        assert_eq!(normalise(text), ".global .b8 constant_7[4];\n\tld %r1, constant_7;\n");
        let text = "mov.b64 %rd1, _RNvNtCse7Cs4_9tqkv_core6tables2T2;\n";
        assert_eq!(normalise(text), "mov.b64 %rd1, _RNvNt_9tqkv_core6tables2T2;\n");
    }
}
