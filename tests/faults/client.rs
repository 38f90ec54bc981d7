//! A client with the whole stack, over simulated connections.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connected, Connection},
    },
    rt::{TokioExecutor, TokioIo},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, sleep, timeout},
};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_reprise::{Dependencies, Policy, RetryOutcome, classify::Codes, error::BoxError, stacks};
use turmoil::net::TcpStream;

use crate::{
    ledger::{Reply, Told, Witness},
    schedule::{Operation, SERVERS, TOTAL},
    server::PORT,
};

/// A connection, in the words of hyper-util.
pub(crate) struct Wire(TcpStream);

impl Connection for Wire {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

async fn connect(server: &str) -> io::Result<TokioIo<Wire>> {
    let stream = TcpStream::connect((server, PORT)).await?;
    Ok(TokioIo::new(Wire(stream)))
}

pub(crate) fn request(operation: usize) -> http::request::Builder {
    Request::post("http://shop/payments")
        .header("authorization", "alice")
        .header("x-operation", operation)
}

/// Makes its operations, each with a task of its own. Any server will do.
pub(crate) async fn run(
    seed: u64,
    operations: Vec<Operation>,
    witness: Witness,
) -> turmoil::Result {
    let policy = Policy::http()
        .honours_keys()
        .total_timeout(TOTAL)
        .attempt_timeout(Duration::from_secs(2))
        .base(Duration::from_millis(200))
        .cap(Duration::from_secs(1))
        .codes(Codes::standard())
        .build()?;
    let deps = Dependencies::builder(policy).seed(seed).build();
    let dice = witness.clone();
    let connector = service_fn(move |_: Uri| {
        let server: &'static str = SERVERS[dice.look().random(SERVERS.len() as u64) as usize];
        Box::pin(connect(server))
    });
    let client = ServiceBuilder::new()
        .layer(stacks::client(deps))
        .service(Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(connector));
    let mut calls = Vec::new();
    for operation in operations {
        let (client, witness) = (client.clone(), witness.clone());
        calls.push(tokio::spawn(async move {
            sleep(operation.at).await;
            let mut request = request(operation.number);
            if operation.own_key {
                request = request.header("idempotency-key", format!("own-{}", operation.number));
            }
            let request = request.body(Full::from("100 EUR")).unwrap();
            let told = call(client, request).await;
            witness.look().told.insert(operation.number, told);
        }));
    }
    for call in calls {
        call.await?;
    }
    Ok(())
}

/// Calls, and takes the time up to the head of the response.
async fn call<S, B>(client: S, request: Request<Full<Bytes>>) -> Told
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = BoxError>,
    B: Body<Data = Bytes>,
{
    let started = Instant::now();
    let result = client.oneshot(request).await;
    let took = started.elapsed();
    let outcome = match &result {
        Ok(response) => RetryOutcome::of(response),
        Err(error) => RetryOutcome::of_error(&**error),
    };
    let attempts = outcome.map_or(1, RetryOutcome::attempts);
    let reply = match result {
        Ok(response) => Ok(read(response).await),
        Err(error) => Err(error.to_string()),
    };
    Told {
        took,
        attempts,
        reply,
    }
}

/// A body has no deadline, so that one is needed here.
async fn read<B: Body<Data = Bytes>>(response: Response<B>) -> Reply {
    let (status, headers) = (response.status(), response.headers());
    let replayed = headers.contains_key("idempotent-replayed");
    let body = timeout(Duration::from_secs(1), response.into_body().collect()).await;
    let body = body.ok().and_then(Result::ok);
    Reply {
        status: status.as_u16(),
        replayed,
        body: body.and_then(|body| String::from_utf8(body.to_bytes().into()).ok()),
    }
}

/// Sends one request to one server, without any layer.
pub(crate) async fn ask(server: &str, request: Request<Full<Bytes>>) -> turmoil::Result<Reply> {
    let asking = async {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(connect(server).await?).await?;
        tokio::spawn(connection);
        Ok(read(sender.send_request(request).await?).await)
    };
    timeout(Duration::from_secs(5), asking).await?
}
