//! A server on loopback some of whose replies never come.

use std::{
    convert::Infallible,
    future::pending,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::sync::Semaphore;

use super::ports::listen;

/// Answers every request but first attempts with an `x-straggler` header, over HTTP/1 and HTTP/2.
/// Further attempts are known by their `x-envoy-attempt-count`.
#[derive(Clone)]
pub(crate) struct Stragglers {
    pub(crate) address: SocketAddr,
    requests: Arc<AtomicUsize>,
    /// A permit for each first attempt that was called off.
    cancelled: Arc<Semaphore>,
}

struct CalledOff(Arc<Semaphore>);

impl Drop for CalledOff {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

impl Stragglers {
    pub(crate) async fn start() -> Self {
        let listener = listen().await;
        let server = Self {
            address: listener.local_addr().unwrap(),
            requests: Arc::default(),
            cancelled: Arc::new(Semaphore::new(0)),
        };
        let started = server.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let server = server.clone();
                tokio::spawn(async move {
                    let answer = service_fn(move |request| server.clone().answer(request));
                    let builder = auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), answer).await;
                });
            }
        });
        started
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let again = request.headers().contains_key("x-envoy-attempt-count");
        if request.headers().contains_key("x-straggler") && !again {
            let _called_off = CalledOff(Arc::clone(&self.cancelled));
            pending::<()>().await;
        }
        Ok(Response::new(Full::from("ok")))
    }

    pub(crate) fn uri(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed) as u64
    }

    /// Waits until so many first attempts were called off.
    pub(crate) async fn cancelled(&self, attempts: u32) {
        let permits = self.cancelled.acquire_many(attempts).await;
        permits.unwrap().forget();
    }
}
