//! Proofs that an image does not panic, allocate or use floats. Each has a control, which shows that the
//! check can fail.

use super::image::{Image, Sections};
use super::machine::{Machine, Result, cargo, folder, output};
use super::report::{Tasks, of_log};
use std::process::Command;

/// Runs the on-target tests.
pub(super) fn tests_pass(machine: &Machine, say: &dyn Fn(&str)) -> Result<()> {
    let build = output(cargo().args([
        "test",
        "--release",
        "-p",
        "firmware",
        "--no-run",
        "--test",
        "golden",
        "--target",
        machine.target,
        "--message-format=json",
    ]))?;
    let path = String::from_utf8_lossy(&build.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "golden")
        .find_map(|message| message["executable"].as_str().map(str::to_owned))
        .ok_or("cargo named no test image")?;
    let log = Image::at(path.into()).run(machine)?;
    let passed = log.iter().filter(|line| line.contains("running `")).count();
    if passed == 0 {
        return Err(format!("{}: the test image ran no test\n{}", machine.target, log.join("\n")));
    }
    say(&format!("{}: {passed} on-target tests passed", machine.what));
    Ok(())
}

/// Links the proof. Its two controls must fail to link.
pub(super) fn nothing_panics_or_allocates(machine: &Machine, say: &dyn Fn(&str)) -> Result<()> {
    Image::build(machine, "proof").map_err(|e| format!("a panic or an allocation is reachable\n{e}"))?;
    for (control, symbol) in
        [("control-panic", "the_codec_can_panic"), ("control-alloc", "the_codec_allocates")]
    {
        let build = ["build", "--release", "-p", "firmware", "--bin", "proof", "--features", control];
        match output(cargo().args(build).args(["--target", machine.target])) {
            Err(message) if message.contains(symbol) => {}
            Err(message) => return Err(format!("{control} failed for another reason\n{message}")),
            Ok(_) => {
                return Err(format!("{}: {control} linked, so the proof proves nothing", machine.target));
            }
        }
    }
    say(&format!("{}: no panic, no allocation (both controls fail to link)", machine.what));
    Ok(())
}

/// Returns true if a disassembled line is a floating-point instruction or a call of the soft-float library.
fn is_float(line: &str) -> bool {
    const CALLS: [&str; 6] = ["__aeabi_f", "__aeabi_d", "sf3", "df3", "sfsi", "dfsi"];
    let mut words = line.split_whitespace().skip(1);
    let mnemonic = words.next().unwrap_or_default();
    let rest = line.split_once('<').map_or("", |(_, name)| name);
    // For some cores the disassembler knows no floating-point instruction. All other instructions of the
    // codec are known.
    let vector = mnemonic == "<unknown>" || mnemonic.starts_with('v') && mnemonic.len() > 1;
    // Only the compiler's own functions count. Other names end in a hash, which may contain any letters.
    vector || rest.starts_with("__") && CALLS.iter().any(|call| rest.contains(call))
}

/// Looks for floating-point instructions in the images of the codec alone and of the language model alone.
/// The control is an image that has one.
pub(super) fn no_floats(machine: &Machine, say: &dyn Fn(&str)) -> Result<()> {
    if machine.target.starts_with("riscv") {
        // RV32IMAC has no floating-point instructions.
        return Ok(());
    }
    for bin in ["size", "lm_size"] {
        let text = Image::build(machine, bin)?.disassembly(machine)?;
        // The start-up code of a core with a floating-point unit enables the unit without using it.
        if let Some(line) = text.lines().find(|line| is_float(line)) {
            return Err(format!("{}: a float instruction in {bin}: {line}", machine.target));
        }
    }
    let build = ["build", "--release", "-p", "firmware", "--bin", "size", "--features", "control-float"];
    output(cargo().args(build).args(["--target", machine.target]))?;
    let control = machine.folder().join("size");
    if !Image::at(control).disassembly(machine)?.lines().any(is_float) {
        return Err(format!("{}: the float of the control was not seen", machine.target));
    }
    say(&format!("{}: no float instruction (the control has one)", machine.what));
    Ok(())
}

/// Runs the example of a ring cache and checks where its tokens are: in zero-initialised memory, not in
/// flash.
pub(super) fn a_ring_takes_no_flash(machine: &Machine, say: &dyn Fn(&str)) -> Result<()> {
    let image = Image::example(machine, "ring", "")?;
    let log = image.run(machine)?;
    let value = |key: &str| log.iter().find_map(|line| line.strip_prefix(key)).unwrap_or_default().trim();
    let expected = format!("{:08x}", workload::ring_example_crc());
    if value("attended") != expected {
        return Err(format!(
            "{}: the ring attended {:?}, expected {expected}",
            machine.target,
            value("attended")
        ));
    }
    let bytes: u64 = value("ring_bytes").parse().map_err(|_| "the ring did not say its size".to_owned())?;
    let (sections, control) =
        (image.sections()?, Image::example(machine, "ring", "control-data")?.sections()?);
    if control.data < bytes {
        return Err(format!(
            "{}: the control holds its ring in {} bytes of data",
            machine.target, control.data
        ));
    }
    // The runtime's own initialised data is a few words.
    if sections.data >= 256 || sections.ram < bytes || control.flash.saturating_sub(sections.flash) < bytes {
        let Sections { flash, ram, data } = sections;
        return Err(format!(
            "{}: a ring of {bytes} bytes: flash {flash}, ram {ram}, data {data}",
            machine.target
        ));
    }
    say(&format!("{}: a ring of {bytes} bytes takes none of flash (the control does)", machine.what));
    Ok(())
}

/// Runs the example of two tasks. No tick may be lost, and the handler of the timer must not wait for a
/// call of the ring.
pub(super) fn tasks_share_the_core(machine: &Machine, say: &dyn Fn(&str)) -> Result<Tasks> {
    let log = Image::example(machine, "tasks", "embassy")?.figures(machine, Some(machine.icount))?;
    let number = |key: &str| {
        let value = log.get(key).and_then(|value| value.parse::<u64>().ok());
        value.ok_or_else(|| format!("{}: the tasks did not say {key}", machine.target))
    };
    let (ticks, seen) = (number("ticks")?, number("seen")?);
    let tasks: Tasks = of_log(&log, machine)?;
    // The last tick may come after the last turn of the loop.
    if ticks < 100 || ticks - seen > 1 || tasks.handler > 100 {
        return Err(format!("{}: {ticks} ticks, {seen} seen, {tasks:?}", machine.target));
    }
    let Tasks { handler, soonest, latest } = tasks;
    say(&format!(
        "{}: {ticks} ticks beside a ring: {handler} instructions to the handler, {soonest} to {latest} to a task",
        machine.what
    ));
    Ok(tasks)
}

/// Builds the C example against the static library and compares its output with the host's.
pub(super) fn c_example(machine: &Machine, say: &dyn Fn(&str)) -> Result<()> {
    output(cargo().args(["build", "--release", "-p", "tqkv-capi-fixed", "--target", machine.target]))?;
    let (folder, out) = (folder(), machine.folder());
    let elf = out.join("c_example");
    let mut gcc = Command::new("arm-none-eabi-gcc");
    gcc.current_dir(&folder);
    gcc.args([
        "-mcpu=cortex-m4",
        "-mthumb",
        "-mfloat-abi=hard",
        "-mfpu=fpv4-sp-d16",
        "-Os",
        "-Wall",
        "-Werror",
    ]);
    gcc.args(["-nostartfiles", "--specs=rdimon.specs", "-Icapi-fixed", "firmware/c/main.c"]);
    gcc.arg("example_c/startup.c").arg(out.join("libtqkv_capi_fixed.a"));
    gcc.args(["-T", "firmware/c/link.ld", "-Wl,--gc-sections", "-Wl,--no-warn-rwx-segments", "-o"]).arg(&elf);
    output(&mut gcc)?;
    let printed = Image::at(elf).emulate(machine)?;
    let printed = String::from_utf8_lossy(&printed).trim().to_owned();
    let expected = format!("{:08x}", workload::c_example_crc());
    if printed != format!("crc {expected}") {
        return Err(format!("the C example printed {printed:?}, expected crc {expected}"));
    }
    say(&format!("C example: linked by arm-none-eabi-gcc, crc {expected} as on the host"));
    Ok(())
}
