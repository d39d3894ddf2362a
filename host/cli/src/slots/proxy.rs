//! The proxy in front of llama-server's slot calls: its connections, and their limits.
//!
//! A connection brings one call and is closed. Each wait for a client has a limit of time, and so has
//! llama-server's work. The bytes of a client have a limit too. Nothing here waits for a client at the end.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Either, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::calls::Calls;
use super::clients::{ClientPlace, Clients};
use super::folder::Folder;
use super::request::{Call, CallHead, Refused};
use super::upstream::Upstream;
use crate::error::CliError;
use crate::signals;

/// Time in which a client sends the first line and the headers, and again the body.
const READ: Duration = Duration::from_secs(10);
/// Time in which a client takes its answer.
const WRITE: Duration = Duration::from_secs(60);
/// Time in which a client whose call was refused unread stops sending.
const LINGER: Duration = Duration::from_secs(1);
/// Time that calls under way have at the end.
const END: Duration = Duration::from_secs(1);
/// Time that work on files has after it. All of it is short, or ends by itself at a signal.
const FILES: Duration = Duration::from_secs(5);
/// Pause where no connection can be taken, as where the process has no files left.
const PAUSE: Duration = Duration::from_millis(50);
/// Time between two looks at a signal.
const LOOK: Duration = Duration::from_millis(100);
/// Longest first line with all headers, in bytes.
const LONGEST_HEAD: usize = 16 << 10;
/// Longest body of a call: a file name.
const LONGEST_BODY: usize = 64 << 10;
const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");

/// The body of an answer: one of the proxy, or llama-server's as it comes.
type Answer = Response<Either<Full<Bytes>, Incoming>>;

/// A listening proxy.
pub(crate) struct Proxy {
    listener: TcpListener,
    /// The host that `--listen` names.
    host: String,
    calls: Arc<Calls>,
}

impl Proxy {
    /// Listens at `listen` in front of the server at the address `to`.
    ///
    /// # Errors
    /// An address that is not valid, or in use.
    pub(crate) fn open(listen: &str, to: &str, folder: Arc<Folder>) -> Result<Self, CliError> {
        let refused = |error: io::Error| CliError::bad_input(format_args!("--listen {listen}: {error}"));
        let listener = TcpListener::bind(listen).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let host = listen.rsplit_once(':').map_or(listen, |(host, _)| host);
        let host = host.trim_matches(['[', ']']).to_owned();
        Ok(Self { listener, host, calls: Arc::new(Calls::new(Upstream::read(to)?, folder)?) })
    }

    /// The address with its port.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn address(&self) -> io::Result<String> {
        Ok(self.listener.local_addr()?.to_string())
    }

    /// Number of restores from a pack.
    pub(crate) fn restored(&self) -> usize {
        self.calls.restored()
    }

    /// Answers calls until a signal.
    ///
    /// # Errors
    /// The listener is gone, or there are no threads.
    pub(crate) fn answer(&self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ended = runtime.block_on(self.accept());
        runtime.shutdown_timeout(FILES);
        ended
    }

    async fn accept(&self) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener.try_clone()?)?;
        let mut clients = Clients::new();
        let mut ended = pin!(ended());
        loop {
            let accepted = tokio::select! {
                () = &mut ended => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => match clients.place().await {
                    Some(place) => {
                        drop(tokio::spawn(serve(stream, place, self.host.clone(), Arc::clone(&self.calls))))
                    }
                    None => turn_away(&stream),
                },
                Err(error) if is_lack(&error) => {
                    clients.let_go();
                    sleep(PAUSE).await;
                }
                Err(error) if is_of_client(&error) => {}
                Err(error) => return Err(error),
            }
            // Each connection is read once before the next is taken.
            tokio::task::yield_now().await;
        }
        drop(listener);
        clients.end(END).await;
        Ok(())
    }
}

/// Returns after a signal.
async fn ended() {
    while !signals::interrupted() {
        sleep(LOOK).await;
    }
}

/// Returns true for an error of one client.
fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::ConnectionAborted
            | Kind::ConnectionReset
            | Kind::ConnectionRefused
            | Kind::Interrupted
            | Kind::TimedOut
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
            | Kind::PermissionDenied
    )
}

/// Returns true where the process or the system has no files or no memory left for now.
pub(super) fn is_lack(error: &io::Error) -> bool {
    #[cfg(unix)]
    const LACKS: [i32; 3] = [23, 24, if cfg!(target_os = "linux") { 105 } else { 55 }];
    #[cfg(not(unix))]
    const LACKS: [i32; 2] = [10024, 10055];
    error.kind() == io::ErrorKind::OutOfMemory
        || error.raw_os_error().is_some_and(|code| LACKS.contains(&code))
}

/// Says that every place is taken. A client that does not read it at once sees a closed connection.
fn turn_away(stream: &TcpStream) {
    let _ = stream
        .try_write(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
}

/// Answers the one call of a connection.
async fn serve(stream: TcpStream, place: ClientPlace, host: String, calls: Arc<Calls>) {
    let answered = Notify::new();
    let service = service_fn(|request| {
        Box::pin(async {
            let answer = read(request, &place, &host, &calls).await.unwrap_or_else(|refused| error(&refused));
            place.answers();
            answered.notify_one();
            Ok::<_, Infallible>(answer)
        })
    });
    let mut server = http1::Builder::new();
    server.keep_alive(false).half_close(true).max_buf_size(LONGEST_HEAD).max_header_size(LONGEST_HEAD);
    server.timer(TokioTimer::new()).header_read_timeout(READ);
    let mut connection = server.serve_connection(TokioIo::new(stream), service);
    let served = async {
        // An error of the client is answered too, where it can be.
        let _ = poll_fn(|context| connection.poll_without_shutdown(context)).await;
        linger(connection.into_parts().io.into_inner()).await;
    };
    let late = async {
        answered.notified().await;
        sleep(WRITE).await;
    };
    tokio::select! {
        () = served => {}
        () = late => {}
        () = place.gone() => {}
    }
}

/// Reads what a client still sends: closing before would take the answer away from it.
async fn linger(mut stream: TcpStream) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let rest = async {
        let mut bytes = [0; 4096];
        while stream.read(&mut bytes).await.is_ok_and(|length| length > 0) {}
    };
    // A client that sends on after that gets no more.
    let _ = timeout(LINGER, rest).await;
}

/// Reads a call and has it answered.
async fn read(
    request: Request<Incoming>,
    place: &ClientPlace,
    host: &str,
    calls: &Arc<Calls>,
) -> Result<Answer, Refused> {
    let (parts, body) = request.into_parts();
    let head = CallHead::read(&parts, host)?;
    let body = if head.has_body() { whole(body).await? } else { Bytes::new() };
    let call: Call = head.call(&body)?;
    place.works();
    Calls::answer(calls, call, Upstream::key(&parts.headers)).await.map(pass)
}

/// The whole body of a call.
async fn whole(body: Incoming) -> Result<Bytes, Refused> {
    let too_long =
        || Refused::new(413, format!("the body is not valid: expected {LONGEST_BODY} bytes at most"));
    if body.size_hint().lower() > LONGEST_BODY as u64 {
        return Err(too_long());
    }
    let read = timeout(READ, Limited::new(body, LONGEST_BODY).collect()).await;
    let read =
        read.map_err(|_| Refused::new(408, format!("no whole body came within {} s", READ.as_secs())))?;
    match read {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_long()),
        Err(error) => Err(Refused::new(400, format!("the body is not valid: {error}"))),
    }
}

/// An error in llama-server's form.
fn error(Refused { status, why }: &Refused) -> Answer {
    let body = json!({ "error": { "code": status, "message": why, "type": "tqkv" } });
    let mut answer = Response::new(Either::Left(Full::from(body.to_string())));
    *answer.status_mut() = hyper::StatusCode::from_u16(*status).unwrap_or(hyper::StatusCode::BAD_REQUEST);
    answer.headers_mut().insert(CONTENT_TYPE, JSON);
    answer
}

/// The status, the type and the body of llama-server's answer.
fn pass(from: Response<Incoming>) -> Answer {
    let (parts, body) = from.into_parts();
    let mut answer = Response::new(Either::Right(body));
    *answer.status_mut() = parts.status;
    answer.headers_mut().insert(CONTENT_TYPE, parts.headers.get(CONTENT_TYPE).cloned().unwrap_or(JSON));
    answer
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::Shutdown;

    use tqkv_session::Mode;

    use super::*;
    use crate::slots::PackCodes;

    #[test]
    fn a_listener_that_is_lost_ends_the_proxy_with_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let codes =
            PackCodes { mode: Mode::Exact, basis: None, level: crate::args::machine_level().unwrap() };
        let kept = Arc::new(Folder::open(folder.path(), codes).unwrap());
        let proxy = Proxy::open("127.0.0.1:0", "http://127.0.0.1:9", kept).unwrap();
        let (said, hears) = std::sync::mpsc::channel();
        let listener = proxy.listener.try_clone().unwrap();
        std::thread::spawn(move || said.send(proxy.answer()));
        std::thread::sleep(Duration::from_millis(200));
        socket2::SockRef::from(&listener).shutdown(Shutdown::Both).unwrap();
        let ended = hears.recv_timeout(Duration::from_secs(20)).expect("it ends");
        assert!(ended.is_err(), "{ended:?}");
    }
}
