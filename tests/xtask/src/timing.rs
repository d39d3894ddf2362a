//! A multiprocessor that runs the pages of attention from their machine code.
//!
//! Warps issue in order, one instruction per cycle among all of a scheduler's. An instruction waits for the
//! stall count of the one before it, for the scoreboards that it names, and for its pipe. A load waits for
//! the memory: for its latency, and for the bytes that are before it in the scheduler's share of the
//! bandwidth. So one number has bytes, issue and latency together.
//!
//! Not modelled: misses of the instruction cache, banks of registers, and other traffic in the memory.

use crate::sass::{Control, Instruction, Pipe, pipe};

/// Rates and latencies of a GPU.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub(crate) struct Machine {
    /// Multiprocessors, of four schedulers each
    #[arg(long, default_value_t = 132, value_name = "N")]
    pub(crate) multiprocessors: usize,
    /// Clock of the multiprocessors
    #[arg(long, default_value_t = 1.755, value_name = "GHZ")]
    pub(crate) clock: f64,
    /// Bandwidth of the memory
    #[arg(long, default_value_t = 4.3, value_name = "TBPS")]
    pub(crate) bandwidth: f64,
    /// Bytes of the second-level cache; they decide about the prefetch
    #[arg(long, default_value_t = 50 << 20, value_name = "BYTES")]
    pub(crate) l2_bytes: usize,
    /// What to prefetch one page ahead, instead of what the rule of the host says: 0 is nothing, 1 keys, 2 both
    #[arg(long, value_name = "POOLS", value_parser = clap::value_parser!(u32).range(..=2))]
    pub(crate) ahead: Option<u32>,
    /// Cycles of a load from the second-level cache
    #[arg(long, default_value_t = 400, value_name = "CYCLES")]
    pub(crate) l2_latency: u32,
    /// Cycles that a load from memory takes longer
    #[arg(long, default_value_t = 300, value_name = "CYCLES")]
    pub(crate) memory_latency: u32,
    /// Cycles for which an instruction occupies the integer pipe
    #[arg(long, default_value_t = 2, value_name = "CYCLES")]
    pub(crate) integer: u32,
    /// The same for an integer product (`IMAD`)
    #[arg(long, default_value_t = 2, value_name = "CYCLES")]
    pub(crate) multiply: u32,
    /// The same for a product on the tensor cores
    #[arg(long, default_value_t = 8, value_name = "CYCLES")]
    pub(crate) tensor: u32,
    /// The same for exponentials and conversions of one number
    #[arg(long, default_value_t = 8, value_name = "CYCLES")]
    pub(crate) special: u32,
    /// Cycles for which a shuffle, or 128 bytes of a load, occupy the pipe that four schedulers share
    #[arg(long, default_value_t = 1, value_name = "CYCLES")]
    pub(crate) wavefront: u32,
    /// Cycles until the result of a shuffle or an exponential is there
    #[arg(long, default_value_t = 24, value_name = "CYCLES")]
    pub(crate) short_latency: u32,
}

impl Default for Machine {
    fn default() -> Self {
        let mut none = clap::Command::new("machine").no_binary_name(true);
        none = <Self as clap::Args>::augment_args(none);
        let matches = none.get_matches_from(std::iter::empty::<&str>());
        <Self as clap::FromArgMatches>::from_arg_matches(&matches).expect("every option has a default")
    }
}

impl Machine {
    /// Bytes per cycle that the memory sends to a multiprocessor.
    fn share(&self) -> f64 {
        self.bandwidth * 1e12 / (self.multiprocessors as f64 * self.clock * 1e9)
    }

    /// Refuses options that nothing reads, and a machine that never ends.
    pub(crate) fn check(&self, simulate: bool) -> Result<(), String> {
        if !simulate && *self != Self::default() {
            return Err("options of a machine: expected --simulate with them".into());
        }
        let rates = [self.clock, self.bandwidth, self.multiprocessors as f64];
        if rates.iter().any(|rate| !rate.is_finite() || *rate <= 0.0) {
            return Err("expected a clock, a bandwidth and multiprocessors above 0".into());
        }
        Ok(())
    }

    /// Seconds of a number of cycles.
    pub(crate) fn seconds(&self, cycles: f64) -> f64 {
        cycles / (self.clock * 1e9)
    }
}

/// Pipes that hold an instruction for more than one cycle.
const PIPES: usize = 5;

#[derive(Clone, Copy, Debug)]
enum Wait {
    /// No scoreboard depends on the instruction, or only on its operands.
    None,
    /// A result that comes after some cycles.
    Short,
    /// A load of bytes.
    Load { bytes: f64, is_prefetched: bool },
}

#[derive(Clone, Copy, Debug)]
struct Step {
    control: Control,
    /// The pipe, and the cycles for which it is occupied.
    pipe: Option<usize>,
    cycles: u64,
    wait: Wait,
}

/// A page's instructions with what they occupy.
#[derive(Debug)]
pub(crate) struct Page {
    steps: Vec<Step>,
    /// Bytes of the next page that are fetched while this one is computed.
    prefetched: f64,
}

/// Bytes per thread that a load reads, `None` for other instructions.
fn load_bytes(opcode: &str) -> Option<f64> {
    opcode.starts_with("LDG").then(|| {
        let widths = [(".128", 16.0), (".64", 8.0), (".U16", 2.0), (".U8", 1.0)];
        widths.into_iter().find(|(width, _)| opcode.contains(width)).map_or(4.0, |(_, bytes)| bytes)
    })
}

impl Page {
    /// Prepares a page of `bytes` bytes. Its first `prefetched` bytes are asked for one page ahead; they
    /// begin with the keys. The loads share the bytes by their widths.
    pub(crate) fn new(machine: &Machine, round: &[&Instruction], bytes: f64, prefetched: f64) -> Self {
        let all: f64 = round.iter().filter_map(|code| load_bytes(&code.opcode)).sum();
        let mut before = 0.0;
        let step = |code: &&Instruction| {
            let wait = match load_bytes(&code.opcode) {
                Some(width) => {
                    let is_prefetched = before < prefetched;
                    before += bytes * width / all;
                    Wait::Load { bytes: bytes * width / all, is_prefetched }
                }
                None if code.control.written.is_some() => Wait::Short,
                None => Wait::None,
            };
            let (pipe, cycles) = occupied(machine, &code.opcode);
            Step { control: code.control, pipe, cycles: u64::from(cycles), wait }
        };
        Self { steps: round.iter().map(step).collect(), prefetched }
    }
}

/// The pipe of an instruction, and the cycles for which it is occupied.
fn occupied(machine: &Machine, opcode: &str) -> (Option<usize>, u32) {
    let name = opcode.split('.').next().unwrap_or_default();
    match (pipe(opcode), name) {
        (Pipe::Integer, _) => (Some(0), machine.integer),
        (Pipe::Tensor, _) => (Some(1), machine.tensor),
        (Pipe::Float, "IMAD") => (Some(2), machine.multiply),
        (_, "MUFU" | "I2F" | "F2I" | "F2F") => (Some(3), machine.special),
        (_, "SHFL" | "LDG" | "STG" | "CCTL") => {
            let bytes = load_bytes(opcode).unwrap_or(4.0) as u32;
            (Some(MEMORY), machine.wavefront * (32 * bytes).div_ceil(128))
        }
        (Pipe::Float | Pipe::Other, _) => (None, 1),
    }
}

/// The pipe of shuffles and loads. It has a queue, so a warp goes on while an instruction waits for it.
const MEMORY: usize = 4;

/// Schedulers of a multiprocessor. A block has a warp on each.
pub(crate) const SCHEDULERS: usize = 4;

/// Cycles between the starts of warps. Warps in step would ask for their bytes at once, page after page.
const APART: u64 = 50;

#[derive(Clone, Debug)]
struct Warp {
    scheduler: usize,
    step: usize,
    /// Pages left, this one included.
    pages: u32,
    /// The cycle from which its stall count and its scoreboards let it issue.
    ready: u64,
    /// The cycle at which each scoreboard has fallen.
    fallen: [u64; 6],
    /// The cycle at which the prefetched bytes of this page and of the next one are there.
    arrived: [u64; 2],
    /// The cycle of its last instruction.
    last: u64,
}

/// The cycles in which a multiprocessor works off parts of these numbers of pages, a list for each scheduler.
/// Each scheduler has up to `resident` warps at once, and begins its parts in order.
pub(crate) fn cycles(machine: &Machine, page: &Page, parts: &[Vec<u32>; SCHEDULERS], resident: usize) -> u64 {
    let mut device = Multiprocessor {
        machine,
        page,
        pipes: [[0; PIPES]; SCHEDULERS],
        wavefronts: 0,
        memory: 0.0,
        distance: 1,
    };
    let mut free = [0; SCHEDULERS];
    let mut waiting = parts.each_ref().map(|parts| parts.iter().copied().filter(|&pages| pages > 0));
    let mut warps = Vec::new();
    for turn in 0..resident {
        for (scheduler, waiting) in waiting.iter_mut().enumerate() {
            let start = APART * (SCHEDULERS * turn + scheduler) as u64;
            warps.extend(waiting.next().map(|pages| device.begin(scheduler, pages, start)));
        }
    }
    let mut end = 0;
    // The warp that can issue first, and of those that can, the one that has waited for longest.
    while let Some((at, _, chosen)) = (0..warps.len())
        .map(|i| (device.earliest(&warps[i]).max(free[warps[i].scheduler]), warps[i].last, i))
        .min()
    {
        let warp = &mut warps[chosen];
        device.issue(warp, at);
        free[warp.scheduler] = at + 1;
        if warp.pages == 0 {
            end = end.max(warp.fallen.into_iter().fold(warp.ready, u64::max));
            match waiting[warp.scheduler].next() {
                Some(pages) => warps[chosen] = device.begin(warp.scheduler, pages, at),
                None => {
                    warps.swap_remove(chosen);
                }
            }
        }
    }
    end
}

struct Multiprocessor<'a> {
    machine: &'a Machine,
    page: &'a Page,
    /// The cycle from which each pipe of a scheduler is free.
    pipes: [[u64; PIPES]; SCHEDULERS],
    /// The cycle from which the pipe of shuffles and loads is free.
    wavefronts: u64,
    /// The cycle at which the memory has sent all bytes that were asked for.
    memory: f64,
    /// The state of the pseudo-random distances of loads.
    distance: u32,
}

impl Multiprocessor<'_> {
    /// A warp that has asked for what is prefetched of its first page.
    fn begin(&mut self, scheduler: usize, pages: u32, now: u64) -> Warp {
        let first = self.prefetch(now);
        Warp { scheduler, step: 0, pages, ready: now, fallen: [now; 6], arrived: [first; 2], last: now }
    }

    /// Asks the memory for bytes; returns the cycle at which they are in the second-level cache.
    fn fetch(&mut self, now: u64, bytes: f64) -> u64 {
        self.memory = self.memory.max(now as f64) + bytes / self.machine.share();
        self.memory as u64 + u64::from(self.machine.memory_latency)
    }

    /// Cycles of a load from the second-level cache. Its parts are at different distances, so a load takes
    /// three to five quarters of the mean. Equal times would keep warps in step.
    fn l2_latency(&mut self) -> u64 {
        self.distance = self.distance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let mean = u64::from(self.machine.l2_latency);
        mean * 3 / 4 + ((mean * u64::from(self.distance >> 16)) >> 17)
    }

    fn prefetch(&mut self, now: u64) -> u64 {
        if self.page.prefetched > 0.0 { self.fetch(now, self.page.prefetched) } else { now }
    }

    /// The first cycle in which the warp's instruction can be issued.
    fn earliest(&self, warp: &Warp) -> u64 {
        match self.page.steps[warp.step].pipe {
            Some(pipe) if pipe != MEMORY => warp.ready.max(self.pipes[warp.scheduler][pipe]),
            _ => warp.ready,
        }
    }

    fn issue(&mut self, warp: &mut Warp, now: u64) {
        if warp.step == 0 {
            let next = if warp.pages > 1 { self.prefetch(now) } else { now };
            warp.arrived = [warp.arrived[1], next];
        }
        let Step { control, pipe, cycles, wait } = self.page.steps[warp.step];
        let free = match pipe {
            Some(MEMORY) => Some(&mut self.wavefronts),
            Some(pipe) => Some(&mut self.pipes[warp.scheduler][pipe]),
            None => None,
        };
        let start = free.as_deref().copied().unwrap_or(0).max(now);
        free.into_iter().for_each(|free| *free = start + cycles);
        let done = cycles
            + match wait {
                Wait::None => start,
                Wait::Short => start + u64::from(self.machine.short_latency),
                Wait::Load { is_prefetched: true, .. } => start.max(warp.arrived[0]) + self.l2_latency(),
                Wait::Load { bytes, .. } => self.fetch(start, bytes) + self.l2_latency(),
            };
        for (scoreboard, at) in [(control.written, done), (control.read, start + cycles)] {
            if let Some(scoreboard) = scoreboard {
                let fallen = &mut warp.fallen[usize::from(scoreboard)];
                *fallen = at.max(*fallen);
            }
        }
        (warp.last, warp.ready) = (now, now + u64::from(control.stall.max(1)));
        warp.step += 1;
        if warp.step == self.page.steps.len() {
            (warp.step, warp.pages) = (0, warp.pages - 1);
        }
        let waits = self.page.steps[warp.step].control.waits;
        let fallen = (0..6).filter(|i| waits >> i & 1 == 1).map(|i| warp.fallen[i]);
        warp.ready = fallen.fold(warp.ready, u64::max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sass::Code;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        machine: Machine,
    }

    /// A machine with a clock of 1 GHz and four bytes per cycle.
    fn machine(options: &str) -> Machine {
        let basis = "m --multiprocessors 1000 --clock 1 --bandwidth 4 --l2-latency 100 --memory-latency 300";
        Line::parse_from(basis.split(' ').chain(options.split_whitespace())).machine
    }

    #[test]
    fn a_machine_that_nothing_reads_or_that_never_ends_is_refused() {
        assert_eq!(Machine::default().check(false), Ok(()));
        assert_eq!(machine("").check(true), Ok(()));
        assert!(machine("").check(false).unwrap_err().contains("expected --simulate"));
        for option in ["--clock 0", "--clock inf", "--bandwidth=-1", "--bandwidth NaN", "--multiprocessors 0"]
        {
            let line = ["m"].into_iter().chain(option.split(' '));
            let Line { machine } = Line::parse_from(line);
            assert!(machine.check(true).unwrap_err().contains("above 0"), "{option}");
        }
    }

    /// A loop over these opcodes, with the upper halves of their encodings.
    fn code(lines: &[(&str, u64)]) -> Code {
        let lines = lines.iter().chain([&("SHFL.IDX R0, R1", STALL)]).enumerate();
        let lines = lines.map(|(i, (text, upper))| format!("/*{i:04x}*/ {text} ;\n/* {upper:#018x} */\n"));
        let text = lines.collect::<String>();
        Code::parse(&format!(".L_x_1:\n{text}/*0ffe*/ BRA `(.L_x_1) ;\n/* {STALL:#018x} */\n"))
    }

    /// A stall of one cycle, without scoreboards.
    const STALL: u64 = 0x000f_c200_0000_0000;
    /// The same and the result in scoreboard 0; the next waits for it.
    const WRITES: u64 = STALL & !(7 << 46);
    const WAITS: u64 = STALL | 1 << 52;

    fn run(
        options: &str,
        lines: &[(&str, u64)],
        [bytes, prefetched]: [f64; 2],
        warps: usize,
        pages: u32,
    ) -> u64 {
        let (machine, code) = (machine(options), code(lines));
        let page = Page::new(&machine, &code.once_round(1).unwrap(), bytes, prefetched);
        let parts = [vec![pages; warps], Vec::new(), Vec::new(), Vec::new()];
        cycles(&machine, &page, &parts, warps)
    }

    #[test]
    fn issue_pipes_and_stalls_bound_the_pages() {
        let close =
            |got: u64, expected: u64| assert!(got.abs_diff(expected) <= 10 * APART, "{got} {expected}");
        let floats = [("FADD R0, R1, R2", STALL); 8];
        // Ten instructions of a page, one per cycle.
        close(run("", &floats, [0.0; 2], 1, 100), 1000);
        close(run("", &floats, [0.0; 2], 3, 100), 3000);
        let permutes = [("PRMT R0, R1, R2, R3", STALL); 10];
        close(run("", &permutes, [0.0; 2], 2, 100), 4000);
        close(run("--integer 5", &permutes, [0.0; 2], 2, 100), 10_000);
        close(run("", &[("IMMA.16832 R0, R1, R2, R0", STALL); 10], [0.0; 2], 1, 100), 8000);
        // A stall of nine cycles stops its warp alone.
        let stalls = [("FADD R0, R1, R2", STALL | 8 << 41)];
        close(run("", &stalls, [0.0; 2], 1, 100), 1100);
        assert!(run("", &stalls, [0.0; 2], 3, 100) < 2000);
    }

    #[test]
    fn loads_wait_for_latency_or_for_bytes() {
        let loads = [("LDG.E.64 R0, [R2.64]", WRITES), ("FADD R1, R0, R0", WAITS)];
        let page = |bytes: [f64; 2], warps| run("", &loads, bytes, warps, 100) / 100;
        // From memory it takes 300 cycles and a mean of 100, which other warps use.
        assert!((400..440).contains(&page([8.0, 0.0], 1)), "{}", page([8.0, 0.0], 1));
        assert!(page([8.0, 0.0], 3) < 450);
        // A prefetch one page ahead: two pages wait once for all of it.
        assert!((190..220).contains(&page([8.0, 8.0], 1)), "{}", page([8.0, 8.0], 1));
        // Three warps of 4,000 bytes at four per cycle.
        for prefetched in [0.0, 4000.0] {
            let cycles = page([4000.0, prefetched], 3);
            assert!((2980..3100).contains(&cycles), "{cycles}");
        }
    }

    #[test]
    fn parts_begin_where_others_have_ended() {
        let lines = [("FADD R0, R1, R2", STALL | 14 << 41)];
        let (machine, code) = (machine(""), code(&lines));
        let page = Page::new(&machine, &code.once_round(1).unwrap(), 0.0, 0.0);
        let of = |parts: &[u32], resident| {
            cycles(&machine, &page, &[parts.to_vec(), Vec::new(), Vec::new(), Vec::new()], resident)
        };
        let one = of(&[100], 1);
        assert!(of(&[100, 100], 2).abs_diff(one) <= 10 * APART);
        assert!(of(&[100, 100], 1).abs_diff(2 * one) <= 10 * APART);
        assert!(of(&[50, 100, 50], 2).abs_diff(one) <= 10 * APART, "the third part follows the first");
        assert_eq!(of(&[0], 1), 0);
    }
}
