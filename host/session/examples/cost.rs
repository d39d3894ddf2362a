//! Time and memory of packing a state: a file that llama.cpp wrote, or a synthetic one of a model of 8B.
//!
//! `cargo run --release -p tqkv-session --example cost -- FOLDER TOKENS|STATE [CODEC ..]`. Without codecs:
//! exact, s4, t4 and t2. `FILE.tqb@1.1` is a basis at 1.1 bits. `RAYON_NUM_THREADS` says how many threads
//! work.

use std::fs::File;
use std::io::{BufReader, BufWriter, Result, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use half::f16;
use tqkv_core::CodecId;
use tqkv_session::{Basis, BasisCoder, Budget, Codecs, Mode, StorageCodec, pack, unpack};
use tqkv_simd::Level;

const LAYERS: u32 = 32;
/// 8 KV heads of 128.
const WIDTH: usize = 1024;

/// Writes the state of a sequence of `tokens` tokens.
fn synthetic(path: &Path, tokens: u32) -> Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    let mut put = |words: &[u32]| words.iter().try_for_each(|word| out.write_all(&word.to_le_bytes()));
    put(&[0x6767_7371, 3, 0, 1, tokens])?;
    (0..tokens).try_for_each(|position| put(&[position, 1, 0]))?;
    put(&[0, LAYERS])?;
    let mut random = fastrand::Rng::with_seed(1);
    let number = |random: &mut fastrand::Rng| (0..6).map(|_| random.f32() - 0.5).sum::<f32>();
    // One run of numbers, from another place for each row.
    let numbers: Vec<u8> =
        (0..1 << 20).flat_map(|_| f16::from_f32(number(&mut random)).to_le_bytes()).collect();
    for _ in 0..2 * LAYERS {
        [1, 2 * WIDTH as u32, 0].iter().try_for_each(|word: &u32| out.write_all(&word.to_le_bytes()))?;
        for _ in 0..tokens {
            let at = 2 * random.usize(..numbers.len() / 2 - WIDTH);
            out.write_all(&numbers[at..at + 2 * WIDTH])?;
        }
    }
    out.flush()
}

/// Megabytes that were resident at most.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? >> 10)
}

/// A basis and its bits per value, from `FILE.tqb@BITS`.
fn basis(name: &str) -> std::result::Result<Option<(StorageCodec, Budget)>, Box<dyn std::error::Error>> {
    let Some((path, bits)) = name.split_once('@') else { return Ok(None) };
    let basis = Arc::new(Basis::load(Path::new(path))?);
    let codec = StorageCodec::new(basis.shape().clone(), Some(basis))?;
    Ok(Some((codec, Budget::new(bits.parse()?)?)))
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, which, codecs @ ..] = &arguments[..] else {
        return Err("FOLDER TOKENS|STATE [CODEC ..]".into());
    };
    let folder = Path::new(folder);
    let state = match which.parse() {
        Ok(tokens) => {
            let path = folder.join(format!("state-{tokens}"));
            if !path.exists() {
                synthetic(&path, tokens)?;
            }
            path
        }
        Err(_) => which.into(),
    };
    let level = Level::detect()?;
    let all = ["exact", "s4", "t4", "t2"].map(String::from);
    for name in if codecs.is_empty() { &all[..] } else { codecs } {
        let codec = basis(name)?;
        let mode = match (CodecId::from_name(name), &codec) {
            (Some(id), _) => Mode::Coded(Codecs { key: id, value: id, ..Codecs::DEFAULT }),
            (_, Some((codec, budget))) => Mode::Stored(BasisCoder::new(codec, *budget)?),
            _ if name == "exact" => Mode::Exact,
            _ => return Err(format!("no codec {name}").into()),
        };
        let codec = codec.as_ref().map(|(codec, _)| codec);
        let name = name.rsplit('/').next().unwrap_or(name);
        let (packed, back) = (folder.join("cost.tqs"), folder.join(format!("cost-{name}.state")));
        let start = Instant::now();
        let mut out = BufWriter::new(File::create(&packed)?);
        let sizes = pack(&mut File::open(&state)?, &mut out, mode, level)?;
        let packing = start.elapsed().as_secs_f64();
        let start = Instant::now();
        unpack(&mut BufReader::new(File::open(&packed)?), &mut File::create(&back)?, codec, level)?;
        let unpacking = start.elapsed().as_secs_f64();
        let gigabytes = sizes.state as f64 * 1e-9;
        println!(
            "{name}: {} to {} bytes ({:.2}), pack {:.0} ms ({:.3} GB/s), unpack {:.0} ms ({:.3} GB/s), {} threads, {:?} MiB",
            sizes.state,
            sizes.pack,
            sizes.state as f64 / sizes.pack as f64,
            1e3 * packing,
            gigabytes / packing,
            1e3 * unpacking,
            gigabytes / unpacking,
            rayon::current_num_threads(),
            peak().unwrap_or(0),
        );
    }
    Ok(())
}
