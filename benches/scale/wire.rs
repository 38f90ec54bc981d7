//! A server on loopback, on a thread of its own, and one connection to it.

use std::{convert::Infallible, net::TcpListener, thread};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{
    body::Incoming, client::conn::http2::handshake, server::conn::http2, service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tower::Service;

use crate::requests::{Call, runtime};

/// Connects, by HTTP/2, so that clones share the connection.
pub(crate) async fn connect()
-> impl Service<Call, Response = Response<Incoming>, Error = hyper::Error> + Clone {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || runtime().block_on(serve(listener)));
    let stream = TcpStream::connect(address).await.expect("a connection");
    stream.set_nodelay(true).expect("an option");
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .expect("a handshake");
    tokio::spawn(connection);
    tower::service_fn(move |call| sender.clone().send_request(call))
}

/// Answers until the other side is gone.
async fn serve(listener: TcpListener) {
    let (stream, _) = listener.accept().expect("a connection");
    stream.set_nonblocking(true).expect("an option");
    stream.set_nodelay(true).expect("an option");
    let stream = TcpStream::from_std(stream).expect("a stream");
    let answer = service_fn(|_: Request<Incoming>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let _ = http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}
