//! Connections of clients: how many there are, and which one goes where there are too many.
//!
//! A client that sends a call at once is answered whatever others do. One that keeps the proxy waiting makes
//! room for the next, so nobody can fill the proxy with connections that say nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

/// Most connections at once. With those to llama-server they are fewer than 1,024, a usual limit of files.
pub(super) const MOST: usize = 512;
/// Time that every client has, however many come after it.
const LEAST: Duration = Duration::from_millis(50);

/// The thing that a client keeps the proxy waiting for. Those that have not said what they want go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Waits {
    Call,
    Reader,
}

/// Connections that wait for their clients, in the order in which they go, each with the way to end it.
type WaitingClients = BTreeMap<(Waits, u64), (Instant, Arc<Notify>)>;

/// The connections of a proxy.
#[derive(Debug)]
pub(super) struct Clients {
    places: Arc<Semaphore>,
    waiting: Arc<Mutex<WaitingClients>>,
    count: u64,
}

impl Clients {
    pub(super) fn new() -> Self {
        Self { places: Arc::new(Semaphore::new(MOST)), waiting: Arc::default(), count: 0 }
    }

    /// A place for a new connection. Where all are taken, the one that has waited longest for its client
    /// goes. `None` if every connection is at work.
    pub(super) async fn place(&mut self) -> Option<ClientPlace> {
        if self.places.available_permits() == 0 {
            let since = lock(&self.waiting).first_key_value().map(|(_, (since, _))| *since)?;
            sleep_until(since + LEAST).await;
        }
        if self.places.available_permits() == 0 && !self.let_go() {
            return None;
        }
        let permit = Arc::clone(&self.places).acquire_owned().await.ok()?;
        self.count += 1;
        let (number, waiting) = (self.count, Arc::clone(&self.waiting));
        let place = ClientPlace { number, waiting, gone: Arc::default(), _permit: permit };
        place.waits(Waits::Call);
        Some(place)
    }

    /// Ends the connection that has waited longest for its client, if one waits.
    pub(super) fn let_go(&self) -> bool {
        let first = lock(&self.waiting).pop_first();
        if let Some((_, (_, gone))) = &first {
            gone.notify_one();
        }
        first.is_some()
    }

    /// Ends those that have sent no call, and waits for the others, at most for this time.
    pub(super) async fn end(self, within: Duration) {
        for ((waits, _), (_, gone)) in &*lock(&self.waiting) {
            if *waits == Waits::Call {
                gone.notify_one();
            }
        }
        // A client that has no answer by then gets none.
        let _ = timeout(within, self.places.acquire_many(MOST as u32)).await;
    }
}

/// The place of one connection.
#[derive(Debug)]
pub(super) struct ClientPlace {
    number: u64,
    waiting: Arc<Mutex<WaitingClients>>,
    gone: Arc<Notify>,
    _permit: OwnedSemaphorePermit,
}

impl ClientPlace {
    /// The client has said what it wants: no other takes its place.
    pub(super) fn works(&self) {
        let mut waiting = lock(&self.waiting);
        for waits in [Waits::Call, Waits::Reader] {
            waiting.remove(&(waits, self.number));
        }
    }

    /// The answer is on its way.
    pub(super) fn answers(&self) {
        self.works();
        self.waits(Waits::Reader);
    }

    /// Returns when another needs the place.
    pub(super) async fn gone(&self) {
        self.gone.notified().await;
    }

    fn waits(&self, waits: Waits) {
        lock(&self.waiting).insert((waits, self.number), (Instant::now(), Arc::clone(&self.gone)));
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        self.works();
    }
}

fn lock(waiting: &Mutex<WaitingClients>) -> MutexGuard<'_, WaitingClients> {
    // The map is complete after every statement.
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}
