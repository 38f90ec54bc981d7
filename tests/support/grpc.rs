//! gRPC servers that do what a script says.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use h2::{PingPong, Reason, RecvStream, SendStream, server::SendResponse};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Notify, mpsc},
};
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::{authority::Identity, ports::listen};

/// A message of two bytes: a `HealthCheckResponse` that says SERVING.
const SERVING: &[u8] = &[0, 0, 0, 0, 2, 8, 1];

type Fields = &'static [(&'static str, &'static str)];

/// A server's action on a call, after it has read the request to its end.
#[derive(Clone)]
pub(crate) enum Act {
    /// Head, message, trailers.
    Serve,
    /// Head; the rest when notified.
    ServeWhen(Arc<Notify>),
    /// The status in the head.
    Fail { code: u8, with: Fields },
    /// UNAVAILABLE in the head, when notified.
    FailWhen(Arc<Notify>),
    /// The same at once, and notifies.
    FailAnd(Arc<Notify>),
    /// The status in the head, without reading the request.
    EarlyFail(u8),
    /// The same, after so many bytes of the request, of which no more are read.
    FailAfter(usize, u8),
    /// The same, and the stream is closed. A server that begins so lets clients send nothing of a
    /// request but its head until it does something else.
    EarlyEnd(u8),
    /// Head; the status in trailers once the client has seen the head, or when notified.
    LateFail {
        code: u8,
        with: Fields,
        gate: Option<Arc<Notify>>,
    },
    /// Head, message, and a status that is not good.
    MessageThenFail(u8),
    /// A status of HTTP's, as a proxy says it.
    Http(u16),
    /// Nothing.
    Stall,
}

impl Act {
    pub(crate) fn fail(code: u8) -> Self {
        Self::fail_with(code, &[])
    }

    pub(crate) fn fail_with(code: u8, with: Fields) -> Self {
        Self::Fail { code, with }
    }

    pub(crate) fn late(code: u8, with: Fields) -> Self {
        let gate = None;
        Self::LateFail { code, with, gate }
    }
}

/// A request that came in.
#[derive(Clone)]
pub(crate) struct Seen {
    headers: HeaderMap,
    body: Vec<u8>,
}

/// A server that does one thing per call, over however many connections, and the last thing for
/// all that follow.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    script: Arc<Vec<Act>>,
    calls: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    pub(crate) async fn start(script: Vec<Act>) -> Self {
        let listener = listen().await;
        Self::on(listener, script)
    }

    pub(crate) fn on(listener: TcpListener, script: Vec<Act>) -> Self {
        let server = Self {
            address: listener.local_addr().unwrap(),
            script: Arc::new(script),
            calls: Arc::default(),
            seen: Arc::default(),
        };
        let started = server.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(server.clone().converse(stream));
            }
        });
        started
    }

    async fn converse(self, stream: TcpStream) -> Result<(), h2::Error> {
        let mut builder = h2::server::Builder::new();
        let mut heads_only = matches!(self.script[0], Act::EarlyEnd(_));
        if heads_only {
            builder.initial_window_size(0);
        }
        let mut connection = builder.handshake(stream).await?;
        let pings = Arc::new(tokio::sync::Mutex::new(connection.ping_pong().unwrap()));
        while let Some(call) = connection.accept().await {
            let (request, respond) = call?;
            let number = self.calls.fetch_add(1, Ordering::SeqCst);
            let act = self.script[number.min(self.script.len() - 1)].clone();
            if heads_only && !matches!(act, Act::EarlyEnd(_)) {
                heads_only = false;
                connection.set_initial_window_size(64 * 1024)?;
            }
            let seen = self.seen.clone();
            let pings = pings.clone();
            tokio::spawn(async move {
                // The client may be gone by now.
                let _ = perform(act, request, respond, &seen, &pings).await;
            });
        }
        Ok(())
    }

    pub(crate) fn requests(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn bodies(&self) -> Vec<Vec<u8>> {
        self.requests().into_iter().map(|seen| seen.body).collect()
    }

    /// This header of all requests.
    pub(crate) fn header(&self, name: &str) -> Vec<Option<String>> {
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        let requests = self.requests();
        let headers = requests.iter().map(|seen| seen.headers.get(name).map(text));
        headers.collect()
    }
}

async fn perform(
    act: Act,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    seen: &Mutex<Vec<Seen>>,
    pings: &tokio::sync::Mutex<PingPong>,
) -> Result<(), h2::Error> {
    let (head, mut incoming) = request.into_parts();
    let mut body = Vec::new();
    let most = match act {
        Act::EarlyFail(_) | Act::EarlyEnd(_) => 0,
        Act::FailAfter(most, _) => most,
        _ => usize::MAX,
    };
    while body.len() < most
        && let Some(data) = incoming.data().await
    {
        let data = data?;
        let _ = incoming.flow_control().release_capacity(data.len());
        body.extend_from_slice(&data);
    }
    let headers = head.headers;
    seen.lock().unwrap().push(Seen { headers, body });
    match act {
        Act::Serve => {
            let mut stream = begin(&mut respond)?;
            stream.send_data(Bytes::from_static(SERVING), false)?;
            stream.send_trailers(trailers(0, &[("x-last", "word")]))?;
        }
        Act::ServeWhen(gate) => {
            let mut stream = begin(&mut respond)?;
            gate.notified().await;
            stream.send_data(Bytes::from_static(SERVING), false)?;
            stream.send_trailers(trailers(0, &[("x-last", "word")]))?;
        }
        Act::Fail { code, with } => {
            let mut response = head_of(200);
            response.headers_mut().extend(trailers(code, with));
            respond.send_response(response, true)?;
        }
        Act::FailWhen(gate) => {
            gate.notified().await;
            let mut response = head_of(200);
            response.headers_mut().extend(trailers(14, &[]));
            respond.send_response(response, true)?;
        }
        Act::FailAnd(gate) => {
            let mut response = head_of(200);
            response.headers_mut().extend(trailers(14, &[]));
            respond.send_response(response, true)?;
            gate.notify_one();
        }
        Act::EarlyEnd(code) | Act::FailAfter(_, code) => {
            let mut response = head_of(200);
            response.headers_mut().extend(trailers(code, &[]));
            respond.send_response(response, true)?;
        }
        Act::EarlyFail(code) => {
            let mut response = head_of(200);
            response.headers_mut().extend(trailers(code, &[]));
            respond.send_response(response, true)?;
            // The client is not told to stop sending.
            incoming.data().await;
            std::future::pending::<()>().await;
        }
        Act::LateFail { code, with, gate } => {
            let mut stream = begin(&mut respond)?;
            match gate {
                Some(gate) => gate.notified().await,
                None => {
                    pings.lock().await.ping(h2::Ping::opaque()).await?;
                }
            }
            stream.send_trailers(trailers(code, with))?;
        }
        Act::MessageThenFail(code) => {
            let mut stream = begin(&mut respond)?;
            stream.send_data(Bytes::from_static(SERVING), false)?;
            stream.send_trailers(trailers(code, &[]))?;
        }
        Act::Http(status) => {
            let mut response = head_of(status);
            response.headers_mut().clear();
            respond.send_response(response, true)?;
        }
        Act::Stall => std::future::pending().await,
    }
    Ok(())
}

fn head_of(status: u16) -> Response<()> {
    Response::builder()
        .status(status)
        .header("content-type", "application/grpc")
        .body(())
        .unwrap()
}

fn begin(respond: &mut SendResponse<Bytes>) -> Result<SendStream<Bytes>, h2::Error> {
    respond.send_response(head_of(200), false)
}

fn trailers(code: u8, with: Fields) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", u16::from(code).into());
    if code != 0 {
        let message = HeaderValue::from_static("by the script");
        trailers.insert("grpc-message", message);
    }
    for (name, value) in with {
        let name = HeaderName::from_static(name);
        trailers.insert(name, HeaderValue::from_static(value));
    }
    trailers
}

/// Connections for a server of tonic's, counted.
pub(crate) async fn incoming() -> (
    UnboundedReceiverStream<io::Result<TcpStream>>,
    SocketAddr,
    Arc<AtomicUsize>,
) {
    let listener = listen().await;
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    let (send, receive) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            counted.fetch_add(1, Ordering::SeqCst);
            if send.send(accepted).is_err() {
                return;
            }
        }
    });
    (UnboundedReceiverStream::new(receive), address, connections)
}

/// A server that agrees to TLS, and to no protocol above it.
pub(crate) async fn tls_without_http2(identity: Identity) -> (SocketAddr, Arc<AtomicUsize>) {
    let acceptor = identity.acceptor(&[]);
    let (mut incoming, address, connections) = incoming().await;
    tokio::spawn(async move {
        while let Some(Ok(stream)) = tokio_stream::StreamExt::next(&mut incoming).await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                }
            });
        }
    });
    (address, connections)
}

// ---- frames by hand, for what no library does

/// A server's action on a call that it has read to its end.
#[derive(Debug, Clone, Copy)]
pub(crate) enum HandAct {
    /// Resets the stream.
    Reset(Reason),
    /// Goes away, having processed nothing.
    GoAway,
    /// Closes the connection.
    Close,
}

/// A server that does one thing per call, and says `OK` without a message to the rest.
pub(crate) struct ByHand {
    pub(crate) address: SocketAddr,
    requests: Arc<AtomicUsize>,
}

impl ByHand {
    pub(crate) async fn start(script: Vec<HandAct>) -> Self {
        let listener = listen().await;
        let server = Self {
            address: listener.local_addr().unwrap(),
            requests: Arc::default(),
        };
        let requests = server.requests.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (script, requests) = (script.clone(), requests.clone());
                tokio::spawn(async move {
                    let _ = by_hand(stream, &script, &requests).await;
                });
            }
        });
        server
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The head of a reply, `:status: 200` and two fields that are not compressed.
fn ok_head() -> Vec<u8> {
    let mut head = vec![0x88];
    for field in [("content-type", "application/grpc"), ("grpc-status", "0")] {
        head.push(0);
        for text in [field.0, field.1] {
            head.push(u8::try_from(text.len()).unwrap());
            head.extend(text.as_bytes());
        }
    }
    head
}

async fn by_hand(
    mut stream: TcpStream,
    script: &[HandAct],
    requests: &AtomicUsize,
) -> io::Result<()> {
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const RESET: u8 = 3;
    const SETTINGS: u8 = 4;
    const GO_AWAY: u8 = 7;
    stream.read_exact(&mut [0; 24]).await?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        stream.read_exact(&mut vec![0; length as usize]).await?;
        let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        match (head[3], head[4]) {
            (SETTINGS, 0) => stream.write_all(&frame(SETTINGS, 1, 0, &[])).await?,
            (DATA | HEADERS, flags) if flags & END_STREAM != 0 => {
                let number = requests.fetch_add(1, Ordering::SeqCst);
                let (reply, close) = match script.get(number) {
                    None => {
                        let flags = END_HEADERS | END_STREAM;
                        (frame(HEADERS, flags, id, &ok_head()), false)
                    }
                    Some(HandAct::Reset(reason)) => {
                        let reason = u32::from(*reason).to_be_bytes();
                        (frame(RESET, 0, id, &reason), false)
                    }
                    Some(HandAct::GoAway) => (frame(GO_AWAY, 0, 0, &[0; 8]), true),
                    Some(HandAct::Close) => (Vec::new(), true),
                };
                stream.write_all(&reply).await?;
                if close {
                    // In order: what is still on its way is read, not answered by a reset.
                    stream.shutdown().await?;
                    stream.read_to_end(&mut Vec::new()).await?;
                    return Ok(());
                }
            }
            _ => {}
        }
    }
}
