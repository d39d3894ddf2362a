//! Counts the instructions of attention on tensor cores in the machine code, and computes the expected times.
//!
//! Each count is of the kernel that the driver gets, with the formats of keys and values as constants. It is
//! one round of the loop over pages, for a full page of 64 tokens that does not change the maximum. Nothing
//! here is measured. The second table follows from the first by the figures of [`H200`]. The kernel of one
//! head over trellis codes has other loops and no products, so only `--simulate` has it.

use crate::disassemble::Source;
use crate::sass::{Pipe, pipe};
use tqkv_core::CodecId;
use tqkv_gpu::{CODECS, HEAD_DIMS};

/// Query heads per KV head of the tables.
const GROUPS: [u32; 3] = [1, 4, 8];

/// Tiles of a page, which is the number of rounds of the loops over tiles.
const TILES: usize = 4;

/// Work of a GPU per second.
struct Gpu {
    /// Bytes that a copy moves, counted once for reading and once for writing.
    bytes: f64,
    /// Instructions issued: multiprocessors times four schedulers times clock.
    issue: f64,
}

const H200: Gpu = Gpu { bytes: 4.3e12, issue: 132.0 * 4.0 * 1.755e9 };

/// Cycles for which an instruction occupies the integer pipe of a scheduler; the next is for the tensor
/// cores.
const INTEGER_CYCLES: f64 = 2.0;
const TENSOR_CYCLES: f64 = 8.0;

/// The cost of a page for all query heads of a KV head. If they are more than a warp has, several warps read
/// the page.
struct Page {
    codec: CodecId,
    dim: usize,
    group: u32,
    registers: u32,
    issue: usize,
    integer: usize,
    products: usize,
}

/// The tables as Markdown.
pub(crate) fn tables(source: &Source<'_>) -> Result<String, String> {
    let mut pages: Vec<Page> = CODECS
        .into_iter()
        .flat_map(|id| HEAD_DIMS.map(|dim| (id, dim)))
        .flat_map(|(id, dim)| GROUPS.map(|group| count(source, id, dim, group)))
        .collect::<Result<_, _>>()?;
    pages.retain(|page| page.products > 0);
    Ok(counts(source.architecture(), &pages) + "\n" + &expectations(&pages))
}

fn counts(architecture: &str, pages: &[Page]) -> String {
    let mut text = format!(
        "| page of 64 tokens, {architecture} | head dim | heads | registers | issue | of it integer pipe | products |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n"
    );
    for Page { codec, dim, group, registers, issue, integer, products } in pages {
        text += &format!(
            "| {} | {dim} | {group} | {registers} | {issue} | {integer} | {products} |\n",
            codec.name()
        );
    }
    text
}

fn expectations(pages: &[Page]) -> String {
    let picoseconds = |share: f64, bytes: f64| 1e12 * bytes / (share * H200.bytes);
    let mut text = "| keys and values | head dim | heads | bytes per token | bandwidth, ps | issue, ps | integer pipe, ps | tensor cores, ps | \
                    times f16, both at 92 % of copy | at 80 % |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for page in pages {
        let half = 4.0 * page.dim as f64;
        let bytes = 2.0 * (page.dim as f64 * f64::from(page.codec.bits()) / 8.0 + 2.0);
        let cycles = |cycles: f64| 1e12 * cycles / 64.0 / H200.issue;
        let issue = cycles(page.issue as f64);
        let integer = cycles(INTEGER_CYCLES * page.integer as f64);
        let tensor = cycles(TENSOR_CYCLES * page.products as f64);
        let ratio = |share| {
            picoseconds(0.92, half)
                / [picoseconds(share, bytes), issue, integer, tensor].into_iter().fold(0.0, f64::max)
        };
        text += &format!(
            "| {} | {} | {} | {bytes} | {:.1} | {issue:.1} | {integer:.1} | {tensor:.1} | {:.1} | {:.1} |\n",
            page.codec.name(),
            page.dim,
            page.group,
            picoseconds(1.0, bytes),
            ratio(0.92),
            ratio(0.8)
        );
    }
    text
}

/// Counts one page of the kernel for keys and values of one codec.
fn count(source: &Source<'_>, codec: CodecId, dim: usize, group: u32) -> Result<Page, String> {
    let kernel = source.kernel(codec, group, dim)?;
    let page = kernel.code.once_round(TILES).ok_or(format!("{}: no loop over pages", codec.name()))?;
    let warps = group.div_ceil(kernel.heads) as usize;
    let of = |wanted| warps * page.iter().filter(|instruction| pipe(&instruction.opcode) == wanted).count();
    Ok(Page {
        codec,
        dim,
        group,
        registers: kernel.registers,
        issue: warps * page.len(),
        integer: of(Pipe::Integer),
        products: of(Pipe::Tensor),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_longest_bounds_the_expectation() {
        let page = |issue, integer, products| Page {
            codec: CodecId::S4,
            dim: 128,
            group: 4,
            registers: 0,
            issue,
            integer,
            products,
        };
        let row = |page: Page| expectations(&[page]).lines().nth(2).unwrap().to_owned();
        // The codes take 132 bytes at 4.3 TB/s, and f16 takes 512 bytes at 92 % of that.
        assert_eq!(row(page(593, 59, 8)), "| s4 | 128 | 4 | 132 | 30.7 | 10.0 | 2.0 | 1.1 | 3.9 | 3.4 |");
        assert_eq!(row(page(5930, 59, 8)), "| s4 | 128 | 4 | 132 | 30.7 | 100.0 | 2.0 | 1.1 | 1.3 | 1.3 |");
        assert_eq!(
            row(page(5930, 5930, 8)),
            "| s4 | 128 | 4 | 132 | 30.7 | 100.0 | 200.0 | 1.1 | 0.6 | 0.6 |"
        );
    }
}
