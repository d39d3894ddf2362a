//! The work of the proxy for a call.
//!
//! A restore names a file, and llama-server reads it at once, so the file must be there before the call. The
//! proxy unpacks it, passes the call on, and removes the copy. All other calls of `/slots` pass as they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{HeaderMap, Method, Response, StatusCode};
use rayon::{ThreadPool, ThreadPoolBuilder};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tqkv_session::SessionError;

use super::copy::Copy;
use super::folder::Folder;
use super::request::{Call, FileUse, Refused};
use super::upstream::Upstream;
use crate::error::CliError;
use crate::output::note;

/// Calls that are worked on at once. llama-server works on one after the other.
const CALLS: usize = 32;
/// Copies that lie in the folder at once.
const COPIES: usize = 4;
/// Time in which a call is answered, with unpacking and the wait for other calls of its name. A long prompt
/// may keep llama-server for minutes.
const ANSWER: Duration = Duration::from_secs(600);

/// The calls that are worked on.
#[derive(Debug)]
pub(super) struct Calls {
    upstream: Upstream,
    folder: Arc<Folder>,
    threads: ThreadPool,
    places: Arc<Semaphore>,
    copies: Semaphore,
    restored: AtomicUsize,
}

impl Calls {
    pub(super) fn new(upstream: Upstream, folder: Arc<Folder>) -> Result<Self, CliError> {
        // Packing holds the command's own pool for minutes; a restore does not wait for it.
        let threads = ThreadPoolBuilder::new().num_threads(rayon::current_num_threads()).build();
        let threads = threads.map_err(|error| CliError::failure(format_args!("no thread: {error}")))?;
        let (places, copies) = (Arc::new(Semaphore::new(CALLS)), Semaphore::new(COPIES));
        Ok(Self { upstream, folder, threads, places, copies, restored: AtomicUsize::new(0) })
    }

    pub(super) fn restored(&self) -> usize {
        self.restored.load(Ordering::Relaxed)
    }

    /// Answers a call. It goes to its end also if the client is gone, as llama-server's work does.
    ///
    /// # Errors
    /// 500 for a pack that is not unpacked, 502 to 504 for llama-server and for calls that are too many.
    pub(super) async fn answer(
        calls: &Arc<Self>,
        call: Call,
        key: HeaderMap,
    ) -> Result<Response<Incoming>, Refused> {
        let place = Arc::clone(&calls.places).try_acquire_owned();
        let place =
            place.map_err(|_| Refused::new(503, format!("{CALLS} calls are at work: try again later")))?;
        let calls = Arc::clone(calls);
        let work = tokio::spawn(async move {
            let _place = place;
            timeout(ANSWER, calls.work(call, key)).await
        });
        let late =
            |_| Refused::new(504, format!("llama-server did not answer within {} s", ANSWER.as_secs()));
        work.await.map_err(|error| Refused::new(500, error.to_string()))?.map_err(late)?
    }

    async fn work(self: Arc<Self>, call: Call, key: HeaderMap) -> Result<Response<Incoming>, Refused> {
        let Call { method, target, body, work } = call;
        let send = self.upstream.send(method, &target, &key, body);
        match work {
            FileUse::Pass => send.await,
            FileUse::Save(name) => {
                let _taken = self.folder.take(&name).await;
                let answer = send.await?;
                if answer.status().is_success() {
                    self.folder.saved(&name);
                }
                Ok(answer)
            }
            FileUse::Restore(name) => self.restore(name, &key, send).await,
        }
    }

    async fn restore(
        self: &Arc<Self>,
        name: String,
        key: &HeaderMap,
        send: impl Future<Output = Result<Response<Incoming>, Refused>>,
    ) -> Result<Response<Incoming>, Refused> {
        let taken = self.folder.take(&name).await;
        let (folder, own) = (Arc::clone(&self.folder), name.clone());
        if !files(&name, move || folder.is_packed(&own)).await? {
            return send.await;
        }
        // llama-server alone knows the keys. Without one, nothing is unpacked.
        let asked = self.upstream.send(Method::GET, "/slots", key, Vec::new()).await?;
        if [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&asked.status()) {
            return Ok(asked);
        }
        drop(asked);
        let _place = self.copies.acquire().await;
        let calls = Arc::clone(self);
        let copy: Copy = files(&name, move || calls.threads.install(|| calls.folder.give(taken))).await?;
        self.restored.fetch_add(1, Ordering::Relaxed);
        let answer = send.await;
        // Removing a large file takes time.
        files(&name, move || {
            drop(copy);
            Ok(())
        })
        .await?;
        answer
    }
}

/// Works on files while another thread answers. It goes to its end also if nobody waits for it.
async fn files<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> Result<T, SessionError> + Send + 'static,
) -> Result<T, Refused> {
    let done = spawn_blocking(work).await.map_err(|error| Refused::new(500, error.to_string()))?;
    done.map_err(|error| {
        note(format_args!("{name}: not restored: {error}"));
        Refused::new(500, format!("{name}: {error}"))
    })
}
