//! Servers that follow a script.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::Notify,
};

/// What an HTTP/1 server does with a connection.
#[derive(Clone)]
pub(crate) enum Act {
    /// Reads the request and says this.
    Say(String),
    /// Reads the request, says this, and when notified the rest.
    SayLater(String, Arc<Notify>, String),
    /// Closes without reading.
    Close,
    /// Reads the request and closes.
    ReadAndClose,
    /// Reads the request and resets the connection.
    Reset,
    /// Keeps the connection and never says anything.
    Stall,
}

pub(crate) fn reply(status: u16, headers: &str) -> Act {
    Act::Say(format!(
        "HTTP/1.1 {status} Whatever\r\ncontent-length: 2\r\nconnection: close\r\n{headers}\r\nok"
    ))
}

pub(crate) async fn listen() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap()
}

/// A port that nobody listens to, as long as the socket lives.
pub(crate) fn deaf() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let uri = format!("http://{}/", socket.local_addr().unwrap());
    (socket, uri)
}

/// A server that does one thing per connection, and the last thing for all that follow.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(crate) async fn start(script: Vec<Act>) -> Self {
        let listener = listen().await;
        let server = Self {
            address: listener.local_addr().unwrap(),
            connections: Arc::default(),
            requests: Arc::default(),
        };
        let (connections, requests) = (server.connections.clone(), server.requests.clone());
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let number = connections.fetch_add(1, Ordering::SeqCst);
                let act = script[number.min(script.len() - 1)].clone();
                tokio::spawn(perform(stream, act, requests.clone()));
            }
        });
        server
    }

    pub(crate) fn uri(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// The heads and bodies of all requests.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

async fn perform(mut stream: TcpStream, act: Act, requests: Arc<Mutex<Vec<String>>>) {
    if matches!(act, Act::Close) {
        return;
    }
    let Some(request) = read_request(&mut stream).await else {
        return;
    };
    requests.lock().unwrap().push(request);
    match act {
        Act::Say(text) => say(&mut stream, &text).await,
        Act::SayLater(first, notify, rest) => {
            say(&mut stream, &first).await;
            notify.notified().await;
            say(&mut stream, &rest).await;
        }
        Act::Close | Act::ReadAndClose => {}
        Act::Reset => stream.set_zero_linger().unwrap(),
        Act::Stall => std::future::pending().await,
    }
}

pub(crate) async fn say(stream: &mut (impl AsyncWrite + Unpin), text: &str) {
    // The client may be gone by now.
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.flush().await;
}

pub(crate) async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut read = Vec::new();
    loop {
        let mut byte = [0];
        if stream.read(&mut byte).await.ok()? == 0 {
            return None;
        }
        read.push(byte[0]);
        if read.ends_with(b"\r\n\r\n") {
            break;
        }
    }
    let head = String::from_utf8(read).unwrap();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(head + &String::from_utf8(body).unwrap())
}

/// A request with its body and trailers.
type Read = Request<(Bytes, Option<HeaderMap>)>;

/// An HTTP/1 and HTTP/2 server that reads requests to their end, and answers with these statuses
/// and then with 200.
pub(crate) struct Reader {
    pub(crate) uri: String,
    requests: Arc<Mutex<Vec<Read>>>,
}

impl Reader {
    pub(crate) async fn start(statuses: Vec<u16>) -> Self {
        let listener = listen().await;
        let server = Self {
            uri: format!("http://{}/", listener.local_addr().unwrap()),
            requests: Arc::default(),
        };
        let requests = server.requests.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (requests, statuses) = (requests.clone(), statuses.clone());
                let answer = service_fn(move |request: Request<Incoming>| {
                    let (requests, statuses) = (requests.clone(), statuses.clone());
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await.unwrap();
                        let trailers = body.trailers().cloned();
                        let request = Request::from_parts(head, (body.to_bytes(), trailers));
                        let mut requests = requests.lock().unwrap();
                        let status = statuses.get(requests.len()).copied().unwrap_or(200);
                        requests.push(request);
                        let response = Response::builder().status(status);
                        Ok::<_, Infallible>(response.body(Full::<Bytes>::from("ok")).unwrap())
                    }
                });
                tokio::spawn(async move {
                    let server = auto::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), answer).await;
                });
            }
        });
        server
    }

    pub(crate) fn requests(&self) -> Vec<Read> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) fn bodies(&self) -> Vec<Bytes> {
        let requests = self.requests();
        requests.into_iter().map(|r| r.into_body().0).collect()
    }
}
