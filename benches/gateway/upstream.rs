//! A service that answers at once, and remembers which keys it saw.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

type Seen = Arc<Mutex<HashMap<Vec<u8>, usize>>>;

pub(crate) struct Upstream {
    address: SocketAddr,
    seen: Seen,
}

impl Upstream {
    /// On a thread of its own.
    pub(crate) fn start() -> Self {
        let seen = Seen::default();
        let (told, tell) = std::sync::mpsc::channel();
        let remembers = Arc::clone(&seen);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                told.send(listener.local_addr().unwrap()).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    stream.set_nodelay(true).unwrap();
                    let seen = Arc::clone(&remembers);
                    let service = service_fn(move |request| answer(request, Arc::clone(&seen)));
                    let serving =
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    tokio::spawn(serving);
                }
            });
        });
        let address = tell.recv().unwrap();
        Self { address, seen }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the number of executed POSTs, and of their distinct keys.
    pub(crate) fn executions(&self) -> (usize, usize) {
        let seen = self.seen.lock().unwrap();
        (seen.values().sum(), seen.len())
    }

    pub(crate) fn forget(&self) {
        self.seen.lock().unwrap().clear();
    }
}

async fn answer(
    request: Request<Incoming>,
    seen: Seen,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.method() == Method::POST {
        let key = request.headers().get("idempotency-key");
        let key = key.map(|key| key.as_bytes().to_vec()).unwrap_or_default();
        let _ = request.into_body().collect().await;
        *seen.lock().unwrap().entry(key).or_default() += 1;
    }
    Ok(Response::new(Full::from(
        "a reply of some thirty-odd bytes",
    )))
}
