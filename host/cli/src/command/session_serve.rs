//! `tqkv session serve`: packs in the slot folder of llama-server.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::session_codes::CodeArgs;
use crate::args;
use crate::error::CliError;
use crate::output::{Output, bytes, grouped, note};
use crate::plain::plain;
use crate::plan::parse_size;
use crate::signals;
use crate::slots::{Folder, Keeper, PackCodes, Proxy};

/// Keep the slot folder of llama-server packed, and unpack what a restore asks for.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: two lines around llama-server
  llama-server -m model.gguf --slot-save-path slots --port 8080
  tqkv session serve --model model.gguf --limit 10GB slots

Send the calls of /slots to port 8081 then, and all others to llama-server as before:
  curl -X POST 'localhost:8081/slots/0?action=save' -d '{\"filename\": \"chat.bin\"}'
  curl -X POST 'localhost:8081/slots/0?action=restore' -d '{\"filename\": \"chat.bin\"}'

A state that a call of port 8081 saved is packed at once as NAME.tqs, one that appears otherwise when it rests. The state \
goes when its pack is on the disk. A restore through port 8081 unpacks the pack, lets llama-server read it and removes the \
copy. Files that are no complete state stay as they are. Run it as the user that llama-server runs as. Ctrl-C or SIGTERM ends \
it; the next start goes on where it stopped, also after a kill.")]
pub(super) struct Args {
    #[command(flatten)]
    codes: CodeArgs,
    /// Address of llama-server.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: String,
    /// Address for the calls of /slots; port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8081")]
    listen: String,
    /// Most bytes of all packs, with a unit: 10GB, 8GiB. Those used longest ago are removed; the last used
    /// one stays.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    limit: Option<u64>,
    /// Seconds without a change until a state is packed that no call announced.
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    quiet: u32,
    /// Pack what is there, and end; no calls are taken.
    #[arg(long, conflicts_with_all = ["server", "listen"])]
    once: bool,
    /// The folder that --slot-save-path names.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

#[derive(Serialize)]
struct Served {
    folder: String,
    packed: usize,
    restored: usize,
    forgotten: usize,
    packs: usize,
    pack_bytes: u64,
}

impl Served {
    fn human(&self) -> String {
        let [packed, restored, forgotten, packs] =
            [self.packed, self.restored, self.forgotten, self.packs].map(|count| grouped(count as u64));
        let (folder, size) = (plain(&self.folder), bytes(self.pack_bytes));
        format!(
            "{folder}: {packed} packed, {restored} restored, {forgotten} forgotten; {packs} packs of {size}"
        )
    }
}

pub(super) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    // Calls use both until the process ends.
    let options = &*Box::leak(Box::new(args.codes.clone()));
    let basis = options.codec()?.map(|codec| &*Box::leak(Box::new(codec)));
    let codes = PackCodes { mode: options.mode(basis)?, basis, level: args::machine_level()? };
    let io = |error: std::io::Error| CliError::io(&args.folder, &error);
    let folder = Arc::new(Folder::open(&args.folder, codes).map_err(io)?);
    let open = || Proxy::open(&args.listen, &args.server, Arc::clone(&folder));
    let proxy = if args.once { None } else { Some(open()?) };
    signals::serve();
    let mut keeper = Keeper::new(&folder, Duration::from_secs(args.quiet.into()), args.limit);
    let lost =
        |why: &dyn std::fmt::Display| CliError::failure(format_args!("--listen {}: {why}", args.listen));
    thread::scope(|scope| {
        let answers = match &proxy {
            None => None,
            Some(proxy) => {
                let address = proxy.address().map_err(|error| lost(&error))?;
                note(format_args!("calls of /slots at http://{address} go to {}", args.server));
                Some(scope.spawn(|| {
                    // The keeper ends with the calls, whatever ended them, and they with it.
                    let _end = EndBoth;
                    proxy.answer()
                }))
            }
        };
        let kept = keeper.keep(args.once);
        signals::end();
        let answered = answers.map_or(Ok(Ok(())), |answers| answers.join());
        answered.map_err(|_| lost(&"its thread has ended"))?.map_err(|error| lost(&error))?;
        kept.map_err(io)
    })?;
    let (packs, pack_bytes) = folder.packs().map_err(io)?;
    let served = Served {
        folder: args.folder.display().to_string(),
        packed: keeper.packed,
        restored: proxy.as_ref().map_or(0, Proxy::restored),
        forgotten: keeper.forgotten,
        packs,
        pack_bytes,
    };
    out.print(&served, Served::human)
}

/// Ends the command when it is dropped, also by a panic.
struct EndBoth;

impl Drop for EndBoth {
    fn drop(&mut self) {
        signals::end();
    }
}
