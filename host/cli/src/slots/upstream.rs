//! Calls to llama-server.

use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::request::Refused;
use crate::error::CliError;

/// Time in which llama-server takes a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Headers of a call that are passed on: its key.
const PASSED: [HeaderName; 2] = [AUTHORIZATION, HeaderName::from_static("x-api-key")];

/// The address of llama-server.
#[derive(Debug)]
pub(super) struct Upstream {
    host: String,
    port: u16,
    authority: String,
    /// The path before each path: `--api-prefix`.
    prefix: String,
}

impl Upstream {
    /// Reads an address.
    ///
    /// # Errors
    /// Any but `http://HOST:PORT`, with a path or without.
    pub(super) fn read(to: &str) -> Result<Self, CliError> {
        let uri =
            to.parse::<Uri>().ok().filter(|uri| uri.scheme_str() == Some("http") && uri.query().is_none());
        let Some((authority, uri)) = uri.as_ref().and_then(|uri| Some((uri.authority()?, uri))) else {
            return Err(CliError::bad_input(format_args!(
                "--server {to} is not valid: expected http://HOST:PORT"
            )));
        };
        Ok(Self {
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: authority.to_string(),
            prefix: uri.path().trim_end_matches('/').to_owned(),
        })
    }

    /// The key of a call.
    pub(super) fn key(headers: &HeaderMap) -> HeaderMap {
        let of = |name: &HeaderName| headers.get(name).map(|value| (name.clone(), value.clone()));
        PASSED.iter().filter_map(of).collect()
    }

    /// Sends a call on a connection of its own. Returns when llama-server has begun to answer: its work is
    /// done then. Waits for that without a limit.
    ///
    /// # Errors
    /// 502 where llama-server is not there.
    pub(super) async fn send(
        &self,
        method: Method,
        target: &str,
        key: &HeaderMap,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>, Refused> {
        let failed = |why: &dyn std::fmt::Display| {
            Refused::new(502, format!("llama-server at http://{}: {why}", self.authority))
        };
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = method;
        *request.uri_mut() = format!("{}{target}", self.prefix).parse().map_err(|error| failed(&error))?;
        *request.headers_mut() = key.clone();
        let host = self.authority.parse().map_err(|error| failed(&error))?;
        request.headers_mut().insert(HOST, host);
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let connected = timeout(CONNECT, TcpStream::connect((&*self.host, self.port))).await;
        let stream =
            connected.map_err(|_| failed(&"no connection in 10 s"))?.map_err(|error| failed(&error))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        // It ends with the answer's body, or when nobody waits for an answer any more.
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(|error| failed(&error))
    }
}
