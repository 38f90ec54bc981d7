//! Request bodies that stream: what is recorded of them, and when they can be sent again.

mod any;
mod lost;
mod replayed;
mod room;

use std::{
    collections::VecDeque,
    future::pending,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, combinators::BoxBody};
use tokio::time::sleep;
use tower::{Layer, util::BoxCloneService};
use tower_reprise::{
    Dependencies, Policy, RetryLayer, call::StopReason, client::retry::ReplayBody, error::BoxError,
    policy::PolicyBuilder,
};

use crate::support::{
    call,
    pieces::{Broken, Piece, Pieces, all_data, data, read},
};

pub(crate) type Boxed = BoxBody<Bytes, Broken>;
pub(crate) type Client<B> = BoxCloneService<Request<B>, Response<()>, BoxError>;
pub(crate) type Outcome = Result<Response<()>, BoxError>;

pub(crate) const LOST: Option<(u32, Option<StopReason>)> =
    Some((1, Some(StopReason::NotReplayable)));
pub(crate) const SECOND: Option<(u32, Option<StopReason>)> = Some((2, None));

/// A server's way of reading the body of an attempt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Reader {
    /// Drops it.
    Nothing,
    /// Asks for its size and whether it is at its end.
    Hints,
    /// Reads so many frames and drops it.
    Frames(usize),
    /// Reads so many frames and keeps it.
    Holds(usize),
    /// Reads until it is said to be over, or is.
    Announced,
    /// Reads until there is nothing more.
    All,
    /// Reads so many bytes and drops it, as a transport does that was told the size.
    Bytes(usize),
}

/// A server's last action on an attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Then {
    Status(u16),
    /// The connection was refused.
    Refused,
    /// The connection was reset.
    Reset,
    Later(u64, u16),
    Never,
}

/// A body, as a server saw it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) hint: (u64, Option<u64>),
    pub(crate) ended: bool,
    pub(crate) pieces: Vec<Piece>,
}

impl Seen {
    pub(crate) fn data(&self) -> Vec<u8> {
        all_data(&self.pieces)
    }

    pub(crate) fn trailers(&self) -> Option<&HeaderMap> {
        match self.pieces.last() {
            Some(Piece::Trailers(trailers)) => Some(trailers),
            _ => None,
        }
    }
}

/// Does what its script says, attempt by attempt, and answers 200 after that.
pub(crate) struct Server<B> {
    pub(crate) script: Arc<Mutex<VecDeque<(Reader, Then)>>>,
    pub(crate) seen: Arc<Mutex<Vec<Seen>>>,
    pub(crate) held: Arc<Mutex<Vec<B>>>,
}

impl<B> Clone for Server<B> {
    fn clone(&self) -> Self {
        Self {
            script: Arc::clone(&self.script),
            seen: Arc::clone(&self.seen),
            held: Arc::clone(&self.held),
        }
    }
}

impl<B> Server<B>
where
    B: Body<Data = Bytes> + ReplayBody<Recording: Send> + Unpin + Send + 'static,
{
    pub(crate) fn new(script: impl IntoIterator<Item = (Reader, Then)>) -> Self {
        Self {
            script: Arc::new(Mutex::new(script.into_iter().collect())),
            seen: Arc::default(),
            held: Arc::default(),
        }
    }

    pub(crate) fn then(&self, script: impl IntoIterator<Item = (Reader, Then)>) {
        self.script.lock().unwrap().extend(script);
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn held(&self) -> B {
        self.held.lock().unwrap().pop().unwrap()
    }

    pub(crate) async fn serve(self, mut body: B) -> Result<Response<()>, BoxError> {
        let next = self.script.lock().unwrap().pop_front();
        let (reader, then) = next.unwrap_or((Reader::All, Then::Status(200)));
        let hint = body.size_hint();
        let mut seen = Seen {
            hint: (hint.lower(), hint.upper()),
            ended: body.is_end_stream(),
            pieces: Vec::new(),
        };
        match reader {
            Reader::Nothing | Reader::Hints => {}
            Reader::Frames(most) | Reader::Holds(most) => seen.pieces = read(&mut body, most).await,
            Reader::All => seen.pieces = read(&mut body, usize::MAX).await,
            Reader::Announced | Reader::Bytes(_) => {
                let enough = |seen: &Seen| match reader {
                    Reader::Bytes(length) => seen.data().len() >= length,
                    _ => false,
                };
                while !body.is_end_stream() && !enough(&seen) {
                    let more = read(&mut body, 1).await;
                    if more.is_empty() || more == [Piece::Fail] {
                        break;
                    }
                    seen.pieces.extend(more);
                }
            }
        }
        match reader {
            Reader::Holds(_) => self.held.lock().unwrap().push(body),
            _ => drop(body),
        }
        self.seen.lock().unwrap().push(seen);
        let status = match then {
            Then::Status(status) => status,
            Then::Refused => return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()),
            Then::Reset => return Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
            Then::Later(seconds, status) => {
                sleep(Duration::from_secs(seconds)).await;
                status
            }
            Then::Never => pending().await,
        };
        Ok(Response::builder().status(status).body(()).unwrap())
    }

    pub(crate) fn client(&self, policy: PolicyBuilder) -> Client<B> {
        let deps = Dependencies::new(policy.build().unwrap());
        let server = self.clone();
        let service =
            tower::service_fn(move |request: Request<B>| server.clone().serve(request.into_body()));
        BoxCloneService::new(RetryLayer::new(deps).layer(service))
    }
}

pub(crate) fn policy() -> PolicyBuilder {
    Policy::http()
}

pub(crate) fn put<B>(body: B) -> Request<B> {
    Request::put("http://a.example/").body(body).unwrap()
}

pub(crate) fn boxed(pieces: impl IntoIterator<Item = Piece>) -> Boxed {
    Pieces::new(pieces).boxed()
}

/// One call with this body to a server that first does this.
pub(crate) async fn once(
    policy: PolicyBuilder,
    body: Boxed,
    script: &[(Reader, Then)],
) -> (Outcome, Vec<Seen>) {
    let server = Server::new(script.iter().copied());
    let result = call(&mut server.client(policy), put(body)).await;
    (result, server.seen())
}

/// Of this many bytes, cut unevenly.
pub(crate) fn cut(length: usize) -> Vec<Piece> {
    let bytes: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
    bytes
        .chunks(999)
        .map(|chunk| data(chunk.to_vec()))
        .collect()
}

/// Not there yet when it is asked for.
pub(crate) fn soon() -> Piece {
    Piece::Wait(Duration::ZERO)
}
