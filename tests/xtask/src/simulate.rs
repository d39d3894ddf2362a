//! Expected times of attention on a GPU: the host's cut into parts, and a scheduler that works them off.

use crate::disassemble::{Kernel, Source};
use crate::timing::{self, Machine, Page, SCHEDULERS};
use tqkv_core::CodecId::{self, I8, S2, S3, S4, T2, T4};
use tqkv_gpu::unstable::attention::{Limits, ahead, parts};
use tqkv_gpu::{HEAD_DIMS, page_format};
use tqkv_gpu_kernels::attend::PARTIAL_HEADER;
use tqkv_gpu_kernels::page;

const CODECS: [CodecId; 6] = [S4, S3, S2, I8, T2, T4];
/// Query heads per KV head, and their names in the table: trellis codes, then the others.
const SPLIT: [(u32, &str); 3] = [(1, "1"), (4, "4"), (8, "8")];
const SHARED: [(u32, &str); 2] = [(4, "1, 4"), (8, "8")];
const KV_HEADS: usize = 8;
const SLOTS: usize = page::SLOTS as usize;
/// Registers of a multiprocessor, and threads of a block.
const REGISTERS: u32 = 65_536;
const THREADS: u32 = 128;
/// Seconds of a layer outside its pages: three launches, rounding of queries, merge. MEASURED.md, M14, has
/// 13.4 us for one sequence of 4k tokens over `s2`, and the model has the rest of them for its pages.
const FIXED: f64 = 12e-6;

/// Most pages of a part that are run one by one. A longer part has the pace of the second half of them.
const PAGES: u32 = 32;

/// Latencies of the second-level cache in the columns of equal lengths.
const LATENCIES: [u32; 3] = [250, 400, 600];

/// The table as Markdown: picoseconds per token and KV head.
pub(crate) fn table(source: &Source<'_>, machine: &Machine) -> Result<String, String> {
    let [low, middle, high] = LATENCIES;
    let mut text = format!(
        "| keys and values | D | heads | bytes, ps | 64 x 32k, latency {low} | {middle} | {high} | 63 x 1k and 1 x 32k | 1 x 32k |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
    );
    let batches = [vec![32_768; 64], [vec![1024; 63], vec![32_768]].concat(), vec![32_768]];
    for (codec, dim) in CODECS.into_iter().flat_map(|codec| HEAD_DIMS.map(|dim| (codec, dim))) {
        // Up to four heads of a scalar code take as long as one.
        let groups: &[(u32, &str)] = if is_trellis(codec) { &SPLIT } else { &SHARED };
        for &(group, heads) in groups {
            let kernel = source.kernel(codec, group, dim)?;
            let shape = Shape { codec, dim, group };
            let of = |machine: &Machine, lengths: &[usize]| -> Result<f64, String> {
                let seconds = shape.layer_seconds(machine, &kernel, lengths)?;
                Ok(1e12 * seconds / (KV_HEADS * lengths.iter().sum::<usize>()) as f64)
            };
            text += &format!(
                "| {} | {dim} | {heads} | {:.1} |",
                codec.name(),
                shape.page_bytes() / (machine.bandwidth * SLOTS as f64)
            );
            for l2_latency in LATENCIES {
                text += &format!(" {:.1} |", of(&Machine { l2_latency, ..machine.clone() }, &batches[0])?);
            }
            text += &format!(" {:.0} | {:.0} |\n", of(machine, &batches[1])?, of(machine, &batches[2])?);
        }
    }
    Ok(text)
}

fn is_trellis(codec: CodecId) -> bool {
    page::is_trellis(page_format(codec))
}

#[derive(Clone, Copy)]
struct Shape {
    codec: CodecId,
    dim: usize,
    group: u32,
}

impl Shape {
    /// Bytes of the keys and values of a page.
    fn page_bytes(self) -> f64 {
        2.0 * self.head_bytes() as f64
    }

    fn head_bytes(self) -> usize {
        page::head_bytes(self.dim as u32, self.codec.bits()) as usize
    }

    /// Rounds of the inner loop of a page: of the tiles on tensor cores, or of the steps on plain cores.
    fn rounds(self) -> usize {
        if self.group == 1 && is_trellis(self.codec) { self.dim / 16 } else { SLOTS / 16 }
    }

    /// Seconds of one layer for sequences of these lengths.
    fn layer_seconds(self, machine: &Machine, kernel: &Kernel, lengths: &[usize]) -> Result<f64, String> {
        let round = kernel.code.once_round(self.rounds());
        let round = round.ok_or(format!("{}: no loop over pages", self.codec.name()))?;
        let resident = (REGISTERS / (kernel.registers.next_multiple_of(8) * THREADS)) as usize;
        let limits = Limits {
            multiprocessors: machine.multiprocessors as u32,
            blocks: resident as u32,
            warps: KV_HEADS as u32 * self.group.div_ceil(kernel.heads),
            stride: 4 * KV_HEADS as u32 * self.group * (PARTIAL_HEADER + self.dim as u32),
        };
        let rule = ahead(limits.resident() as usize, [self.head_bytes(); 2], machine.l2_bytes);
        let prefetched = match machine.ahead.unwrap_or(rule) {
            0 => 0.0,
            // On plain cores nothing is prefetched.
            _ if is_trellis(self.codec) && self.group == 1 => 0.0,
            pools => f64::from(pools) * self.head_bytes() as f64,
        };
        let page = Page::new(machine, &round, self.page_bytes(), prefetched);
        let parts = busiest(limits, lengths);
        Ok(FIXED + machine.seconds(cycles(machine, &page, &parts, resident)))
    }
}

/// Pages of the parts of the multiprocessor with the most pages, by scheduler. Blocks go to the
/// multiprocessors in turn.
fn busiest(limits: Limits, lengths: &[usize]) -> [Vec<u32>; SCHEDULERS] {
    let rows: Vec<_> = lengths.iter().map(|&length| 0..length).collect();
    let pages: Vec<u32> = parts(limits, &rows, 0, false, None).pages(lengths.len()).collect();
    let blocks =
        std::iter::repeat_n(&pages, limits.warps as usize).flat_map(|pages| pages.chunks(SCHEDULERS));
    let mut all = vec![[const { Vec::new() }; SCHEDULERS]; limits.multiprocessors as usize];
    for (block, pages) in blocks.enumerate() {
        let schedulers = &mut all[block % limits.multiprocessors as usize];
        schedulers.iter_mut().zip(pages).for_each(|(parts, &pages)| parts.push(pages));
    }
    let pages = |parts: &[Vec<u32>; SCHEDULERS]| parts.iter().flatten().sum::<u32>();
    all.into_iter().max_by_key(pages).unwrap_or_default()
}

/// The cycles of [`timing::cycles`]. Parts of one turn are cut off, and the rest of them has the same pace.
fn cycles(machine: &Machine, page: &Page, parts: &[Vec<u32>; SCHEDULERS], resident: usize) -> f64 {
    let of = |most: u32| {
        let parts = parts.each_ref().map(|parts| parts.iter().map(|&pages| pages.min(most)).collect());
        timing::cycles(machine, page, &parts, resident) as f64
    };
    let longest = parts.iter().flatten().copied().max().unwrap_or(0);
    if longest <= PAGES || parts.iter().any(|parts| parts.len() > resident) {
        return of(longest);
    }
    let (half, all) = (of(PAGES / 2), of(PAGES));
    all + (all - half) / f64::from(PAGES / 2) * f64::from(longest - PAGES)
}
