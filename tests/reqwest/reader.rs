//! A server that reads requests to their end.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};

use crate::support::ports::listen;

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
