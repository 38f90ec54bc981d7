//! A service that knows nothing of gateways, but that can be told to fail or to take its time.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::support::database::eventually;

/// A request that came.
#[derive(Debug, Clone)]
pub(crate) struct Came {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
    /// Whether something was done for it.
    pub(crate) took_effect: bool,
}

impl Came {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(crate) fn key(&self) -> &str {
        self.header("idempotency-key").unwrap_or("none")
    }
}

/// The shop's answer to a request, after its effect.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Gets {
    Status(StatusCode),
    /// The connection is reset.
    Nothing,
}

impl From<StatusCode> for Gets {
    fn from(status: StatusCode) -> Self {
        Self::Status(status)
    }
}

/// The shop's answer to a request, by the number of requests before it.
type Does = dyn Fn(usize) -> Gets + Send + Sync;

struct Shared {
    came: Mutex<Vec<Came>>,
    does: Mutex<Arc<Does>>,
    honours_keys: AtomicBool,
    connections: AtomicUsize,
    /// The number of requests that may be answered.
    answers: watch::Sender<usize>,
}

#[derive(Clone)]
pub(crate) struct Shop {
    shared: Arc<Shared>,
    pub(crate) address: SocketAddr,
}

impl Shop {
    pub(crate) async fn open() -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(crate) fn on(listener: TcpListener) -> Self {
        let shop = Self {
            shared: Arc::new(Shared {
                came: Mutex::default(),
                does: Mutex::new(Arc::new(|_| StatusCode::OK.into())),
                honours_keys: AtomicBool::new(false),
                connections: AtomicUsize::new(0),
                answers: watch::channel(usize::MAX).0,
            }),
            address: listener.local_addr().unwrap(),
        };
        let serves = shop.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serves.clone().connection(stream));
            }
        });
        shop
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn does<G: Into<Gets>>(&self, does: impl Fn(usize) -> G + Send + Sync + 'static) {
        *self.shared.does.lock().unwrap() = Arc::new(move |before| does(before).into());
    }

    /// From here on a request with a key that it knows has no effect.
    pub(crate) fn honours_keys(&self) {
        self.shared.honours_keys.store(true, Ordering::SeqCst);
    }

    /// Answers so many from its opening on, and lets the others wait.
    pub(crate) fn answers(&self, most: usize) {
        self.shared.answers.send_replace(most);
    }

    pub(crate) fn came(&self) -> Vec<Came> {
        self.shared.came.lock().unwrap().clone()
    }

    /// Returns the number of connections that are open.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Waits until so many came.
    pub(crate) async fn has(&self, many: usize) {
        eventually(&format!("{many} came"), async || self.came().len() >= many).await;
    }

    /// Returns the number of requests with each key.
    pub(crate) fn keys(&self) -> BTreeMap<String, usize> {
        let mut keys = BTreeMap::new();
        for came in self.came() {
            *keys.entry(came.key().to_owned()).or_default() += 1;
        }
        keys
    }

    /// The bodies of what took effect, each as often as it did.
    pub(crate) fn effects(&self) -> Vec<String> {
        let effects = self.came().into_iter().filter(|came| came.took_effect);
        let mut bodies: Vec<_> = effects.map(|came| came.body).collect();
        bodies.sort_unstable();
        bodies
    }

    async fn connection(self, stream: TcpStream) {
        // Another name for the same socket, to reset it by.
        let stream = stream.into_std().unwrap();
        let socket = TcpStream::from_std(stream.try_clone().unwrap()).unwrap();
        let socket = Arc::new(socket);
        let open = Arc::clone(&self.shared);
        open.connections.fetch_add(1, Ordering::SeqCst);
        let service = service_fn(move |request| self.clone().serve(request, Arc::clone(&socket)));
        let io = TokioIo::new(TcpStream::from_std(stream).unwrap());
        let _ = http1::Builder::new().serve_connection(io, service).await;
        open.connections.fetch_sub(1, Ordering::SeqCst);
    }

    async fn serve(
        self,
        request: Request<Incoming>,
        socket: Arc<TcpStream>,
    ) -> io::Result<Response<Full<Bytes>>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let number = self.take(&head, &body);
        let mut answers = self.shared.answers.subscribe();
        let _ = answers.wait_for(|most| *most >= number).await;
        let does = Arc::clone(&self.shared.does.lock().unwrap());
        match does(number - 1) {
            Gets::Status(status) => {
                let mut response = Response::new(Full::from(number.to_string()));
                *response.status_mut() = status;
                Ok(response)
            }
            Gets::Nothing => {
                socket.set_zero_linger()?;
                Err(io::ErrorKind::ConnectionReset.into())
            }
        }
    }

    /// Does what a request asks for, and says which it was.
    fn take(&self, head: &http::request::Parts, body: &[u8]) -> usize {
        let path = head.uri.path_and_query().map_or("", |path| path.as_str());
        let mut all = self.shared.came.lock().unwrap();
        let mut came = Came {
            path: path.to_owned(),
            headers: head.headers.clone(),
            body: String::from_utf8_lossy(body).into_owned(),
            took_effect: true,
        };
        if self.shared.honours_keys.load(Ordering::SeqCst) {
            let known: BTreeSet<_> = all.iter().map(Came::key).collect();
            came.took_effect = came.key() == "none" || !known.contains(came.key());
        }
        all.push(came);
        all.len()
    }
}
