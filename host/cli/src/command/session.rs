//! `tqkv session`: saved states of llama.cpp.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Subcommand;
use serde::Serialize;
use tqkv_core::CodecId;
use tqkv_session::{Layout, MAGIC, Mode, Sizes, StateSide, Summary};

use super::session_codes::CodeArgs;
use super::{session_serve, stored};
use crate::args;
use crate::error::CliError;
use crate::input;
use crate::output::{Output, Waiting, bytes, grouped, note, table};
use crate::plain::plain;
use crate::target::{Target, TargetArgs, yield_stdout};

/// Pack the saved sessions of llama.cpp and llama-server.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Session,
}

#[derive(Debug, Subcommand)]
enum Session {
    Pack(PackArgs),
    Unpack(UnpackArgs),
    #[command(name = "inspect")]
    Look(LookArgs),
    Serve(session_serve::Args),
}

/// Code the keys and values of a saved state; all other bytes are kept without loss.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: a slot that llama-server saved, and back
  llama-server -m model.gguf --slot-save-path slots
  curl -X POST 'localhost:8080/slots/0?action=save' -d '{\"filename\": \"chat.bin\"}'
  tqkv session pack --model model.gguf slots/chat.bin chat.tqs
  tqkv session unpack chat.tqs slots/chat.bin --force
  curl -X POST 'localhost:8080/slots/0?action=restore' -d '{\"filename\": \"chat.bin\"}'

Example: at about one bit per value, in a basis of the model
  tqkv basis --model model.gguf --text manual.txt model.tqb
  tqkv session pack --basis model.tqb --storage 1.1 slots/chat.bin chat.tqs
  tqkv session unpack --basis model.tqb chat.tqs slots/chat.bin --force

STATE is a file of llama_state_seq_save_file or llama_state_save_file, or a buffer of llama_state_seq_get_data or \
llama_state_get_data in a file. Its rows are f32, f16, bf16, q8_0 or q4_0. The rows of the first 4 tokens stay as they are. \
A state of which no cache is understood, as of a newer version, is packed without loss, with a note. \
The engine loads the unpacked state with the model and the cache types that it was saved with.")]
struct PackArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    codes: CodeArgs,
    /// The state.
    #[arg(value_name = "STATE")]
    input: PathBuf,
    /// The pack to write, - for standard output.
    #[arg(value_name = "OUT.tqs")]
    output: PathBuf,
}

/// Write the state that a pack holds: the same bytes on every machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tqkv session unpack chat.tqs slots/chat.bin")]
struct UnpackArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// The basis that the pack names, where it was packed with --basis.
    #[arg(long, value_name = "FILE.tqb")]
    basis: Option<PathBuf>,
    /// The pack, - for standard input.
    #[arg(value_name = "IN.tqs")]
    input: PathBuf,
    /// The state to write, - for standard output.
    #[arg(value_name = "STATE")]
    output: PathBuf,
}

/// Say what a state or a pack holds, and check the checksums of a pack.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tqkv session inspect slots/chat.bin
  tqkv session inspect chat.tqs")]
struct LookArgs {
    /// The state or the pack.
    #[arg(value_name = "FILE")]
    input: PathBuf,
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    match &args.command {
        Session::Pack(args) => pack(args, out),
        Session::Unpack(args) => unpack(args, out),
        Session::Look(args) => inspect(args, out),
        Session::Serve(args) => session_serve::run(args, out),
    }
}

#[derive(Serialize)]
struct Moved {
    input: String,
    output: String,
    state_bytes: u64,
    pack_bytes: u64,
    coded_state_bytes: u64,
    coded_pack_bytes: u64,
    seconds: f64,
}

impl Moved {
    fn new((input, output): (&Path, &Path), sizes: Sizes, start: Instant) -> Self {
        Self {
            input: input.display().to_string(),
            output: output.display().to_string(),
            state_bytes: sizes.state,
            pack_bytes: sizes.pack,
            coded_state_bytes: sizes.coded_state,
            coded_pack_bytes: sizes.coded_pack,
            seconds: start.elapsed().as_secs_f64(),
        }
    }
}

fn pack(args: &PackArgs, out: &mut Output) -> Result<(), CliError> {
    let level = args::machine_level()?;
    let codec = args.codes.codec()?;
    let mut state = open(&args.input)?;
    let mode = understood(&mut state, &args.input, args.codes.mode(codec.as_ref())?)?;
    let target = args.target.create(&args.output, &args.input)?;
    let (start, waiting) = (Instant::now(), Waiting::new("packing"));
    let mut file = BufWriter::new(target);
    let sizes = tqkv_session::pack(&mut state, &mut file, mode, level)
        .map_err(|error| CliError::session(&args.input, &error))?;
    commit(file, &args.output)?;
    waiting.end();
    yield_stdout(&[&args.output], out);
    let moved = Moved::new((&args.input, &args.output), sizes, start);
    out.print(&moved, |moved| {
        let (state, pack) = (bytes(moved.state_bytes), bytes(moved.pack_bytes));
        let factor = moved.state_bytes as f64 / moved.pack_bytes as f64;
        format!("{}: {pack} of {state}, {factor:.2} times smaller", plain(&moved.output))
    })
}

/// The mode, or that without loss for a state of which no cache is understood: a session that a newer
/// llama.cpp saved is worth more than the bytes that codes would save.
fn understood<'a>(state: &mut File, path: &Path, mode: Mode<'a>) -> Result<Mode<'a>, CliError> {
    if matches!(mode, Mode::Exact) {
        return Ok(mode);
    }
    let layout = Layout::read(state).map_err(|error| CliError::session(path, &error))?;
    let Some(why) = layout.not_understood() else { return Ok(mode) };
    note(format_args!("{}: packed without loss, because it is not understood: {why}", path.display()));
    Ok(Mode::Exact)
}

fn unpack(args: &UnpackArgs, out: &mut Output) -> Result<(), CliError> {
    let level = args::machine_level()?;
    let codec = args.basis.as_deref().map(stored::load).transpose()?.map(|(_, codec)| codec);
    let mut pack = BufReader::new(input::open(&args.input)?);
    let target = args.target.create(&args.output, &args.input)?;
    let (start, waiting) = (Instant::now(), Waiting::new("unpacking"));
    let mut file = BufWriter::new(target);
    let sizes = tqkv_session::unpack(&mut pack, &mut file, codec.as_ref(), level)
        .map_err(|error| CliError::session(&args.input, &error))?;
    commit(file, &args.output)?;
    waiting.end();
    yield_stdout(&[&args.output], out);
    let moved = Moved::new((&args.input, &args.output), sizes, start);
    out.print(&moved, |moved| format!("{}: {}", plain(&moved.output), bytes(moved.state_bytes)))
}

fn commit(file: BufWriter<Target>, output: &Path) -> Result<(), CliError> {
    let target = file.into_inner().map_err(|error| CliError::io(output, error.error()))?;
    target.commit().map(drop).map_err(|error| CliError::io(output, &error))
}

/// A state, which is read at several places.
fn open(path: &Path) -> Result<File, CliError> {
    if input::is_stdin(path) {
        return Err(CliError::bad_input("-: a state is read at several places; expected a file"));
    }
    input::open_regular(path).map_err(|error| CliError::io(path, &error))
}

fn inspect(args: &LookArgs, out: &mut Output) -> Result<(), CliError> {
    let mut file = open(&args.input)?;
    let mut first = Vec::new();
    let io = |error: std::io::Error| CliError::io(&args.input, &error);
    file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut first).map_err(io)?;
    file.rewind().map_err(io)?;
    let refused = |error| CliError::session(&args.input, &error);
    if first == MAGIC {
        let summary = tqkv_session::inspect(&mut BufReader::new(file)).map_err(refused)?;
        return out.print(&Packed::new(&args.input, &summary), Packed::human);
    }
    let layout = Layout::read(&mut file).map_err(refused)?;
    out.print(&StateReport::new(&args.input, &layout), StateReport::human)
}

/// Rows of one type.
#[derive(Serialize)]
struct RowSummary {
    side: &'static str,
    matrices: usize,
    numbers: &'static str,
    values_per_token: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    codec: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    head_dim: Option<u32>,
}

#[derive(Serialize)]
struct Packed {
    file: String,
    class: &'static str,
    state_bytes: u64,
    pack_bytes: u64,
    coded_state_bytes: u64,
    coded_pack_bytes: u64,
    crc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    basis: Option<String>,
    rows: Vec<RowSummary>,
}

impl Packed {
    fn new(path: &Path, summary: &Summary) -> Self {
        let rows = summary.groups.iter().map(|group| RowSummary {
            side: if group.is_values { StateSide::Values } else { StateSide::Keys }.name(),
            matrices: group.matrices as usize,
            numbers: group.numbers.name(),
            values_per_token: u64::from(group.head_dim) * u64::from(group.heads),
            codec: group.codec.map(CodecId::name),
            head_dim: Some(group.head_dim),
        });
        Self {
            file: path.display().to_string(),
            class: summary.class.name(),
            state_bytes: summary.sizes.state,
            pack_bytes: summary.sizes.pack,
            coded_state_bytes: summary.sizes.coded_state,
            coded_pack_bytes: summary.sizes.coded_pack,
            crc: "ok",
            basis: summary.basis.map(|id| id.to_string()),
            rows: rows.collect(),
        }
    }

    fn human(&self) -> String {
        let kept = (self.state_bytes - self.coded_state_bytes, self.pack_bytes - self.coded_pack_bytes);
        let mut rows = vec![
            ("class".to_owned(), self.class.to_owned()),
            ("state".to_owned(), bytes(self.state_bytes)),
            ("pack".to_owned(), bytes(self.pack_bytes)),
            ("kept without loss".to_owned(), format!("{} in {}", bytes(kept.0), bytes(kept.1))),
        ];
        rows.extend(self.rows.iter().map(|rows| {
            let dim = rows.head_dim.unwrap_or(0);
            let codec = rows.codec.unwrap_or("in the basis");
            let heads = rows.values_per_token / u64::from(dim.max(1));
            let shape =
                format!("{codec}, {} layers, {heads} KV heads of {dim}, {}", rows.matrices, rows.numbers);
            (rows.side.to_owned(), shape)
        }));
        rows.extend(self.basis.iter().map(|id| ("basis".to_owned(), id.clone())));
        rows.push(("CRC".to_owned(), "ok, header and every chunk".to_owned()));
        table(&["field", "value"], rows.into_iter().map(|(name, value)| vec![name, value]))
    }
}

#[derive(Serialize)]
struct StateReport {
    file: String,
    written_by: &'static str,
    version: Option<u32>,
    prompt_tokens: u32,
    state_bytes: u64,
    other_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_understood: Option<String>,
    caches: Vec<CacheReport>,
}

#[derive(Serialize)]
struct CacheReport {
    cells: u64,
    rows: Vec<RowSummary>,
}

impl StateReport {
    fn new(path: &Path, layout: &Layout) -> Self {
        let caches = layout.caches.iter().map(|cache| {
            let mut rows: Vec<RowSummary> = Vec::new();
            for own in &cache.rows {
                let (side, numbers, width) = (own.side.name(), own.numbers.name(), u64::from(own.width));
                let is_alike = |rows: &&mut RowSummary| {
                    (rows.side, rows.numbers, rows.values_per_token) == (side, numbers, width)
                };
                match rows.iter_mut().find(is_alike) {
                    Some(rows) => rows.matrices += 1,
                    None => rows.push(RowSummary {
                        side,
                        matrices: 1,
                        numbers,
                        values_per_token: width,
                        codec: None,
                        head_dim: None,
                    }),
                }
            }
            CacheReport { cells: cache.cells, rows }
        });
        Self {
            file: path.display().to_string(),
            written_by: layout.origin.name(),
            version: layout.version,
            prompt_tokens: layout.tokens,
            state_bytes: layout.bytes,
            other_bytes: layout.unread_bytes,
            not_understood: layout.not_understood().map(str::to_owned),
            caches: caches.collect(),
        }
    }

    fn human(&self) -> String {
        let version = self.version.map_or("none".to_owned(), |version| version.to_string());
        let mut rows = vec![
            ("written by".to_owned(), self.written_by.to_owned()),
            ("version".to_owned(), version),
            ("tokens of the prompt".to_owned(), grouped(self.prompt_tokens.into())),
            ("state".to_owned(), bytes(self.state_bytes)),
        ];
        for (i, cache) in self.caches.iter().enumerate() {
            rows.push((format!("cache {}", i + 1), format!("{} tokens", grouped(cache.cells))));
            rows.extend(cache.rows.iter().map(|rows| {
                let RowSummary { matrices, numbers, values_per_token, .. } = rows;
                let shape = format!("{matrices} layers, {values_per_token} values per token, {numbers}");
                (format!("  {}", rows.side), shape)
            }));
        }
        rows.push(("not read".to_owned(), bytes(self.other_bytes)));
        rows.extend(self.not_understood.iter().map(|why| ("because".to_owned(), why.clone())));
        table(&["field", "value"], rows.into_iter().map(|(name, value)| vec![name, value]))
    }
}
