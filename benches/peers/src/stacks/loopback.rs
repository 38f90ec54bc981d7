//! Servers on loopback, and the clients of hyper-util and tonic.
//!
//! Servers run on the thread of their clients, so that a call costs no switch from one thread to
//! another. That makes it cheap, and what the layers add to it large.

use std::{convert::Infallible, hint::black_box, net::Ipv4Addr};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Server};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_reprise::{Dependencies, Policy, stacks};

use super::contestant::{BARE, Contestant, HEADERS, Kind, PATH, STACK, deps};

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let listener = listener.expect("a port");
    let address = listener.local_addr().expect("an address");
    (listener, format!("http://{address}"))
}

/// Answers every request with a few bytes.
pub(super) async fn http_server() -> String {
    let (listener, url) = listen().await;
    tokio::spawn(async move {
        let answer = |_: Request<Incoming>| async {
            let body = Full::new(Bytes::from_static(b"{\"name\":\"nail\",\"price\":1}"));
            let response = Response::builder().header("content-type", "application/json");
            Ok::<_, Infallible>(response.body(body).expect("a response"))
        };
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let connection =
                http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
            tokio::spawn(connection);
        }
    });
    url
}

pub(super) fn hyper(server: &str) -> Vec<Contestant> {
    let client = || Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let layered = ServiceBuilder::new()
        .layer(stacks::client(deps()))
        .service(client());
    let url = format!("{server}{PATH}");
    let target = url.clone();
    vec![
        Contestant::new(
            Kind::Hyper,
            BARE,
            "client without",
            client(),
            async move |client: &mut _| get(client, &url).await,
        ),
        Contestant::new(
            Kind::Hyper,
            STACK,
            "stacks::client around it",
            layered,
            async move |client: &mut _| get(client, &target).await,
        ),
    ]
}

async fn get<S, B>(client: &mut S, url: &str)
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>>,
    S::Error: std::fmt::Debug,
    B: BodyExt,
    B::Error: std::fmt::Debug,
{
    let headers = HEADERS.into_iter();
    let request = headers.fold(Request::get(url), |r, (name, value)| r.header(name, value));
    let request = request.body(Full::default()).expect("a request");
    let client = client.ready().await.expect("a ready client");
    let response = client.call(request).await.expect("a response");
    assert_eq!(response.status(), 200);
    black_box(response.into_body().collect().await.expect("a body"));
}

pub(super) async fn tonic() -> Vec<Contestant> {
    let (listener, url) = listen().await;
    let (_, health) = tonic_health::server::health_reporter();
    let incoming = TcpListenerStream::new(listener);
    tokio::spawn(
        Server::builder()
            .add_service(health)
            .serve_with_incoming(incoming),
    );
    let channel = Channel::from_shared(url).expect("a URI");
    let connect = || channel.connect_lazy();
    let policy = Policy::grpc_unary()
        .service("bench")
        .idempotent_methods(["grpc.health.v1.Health/Check"])
        .build();
    let policy = policy.expect("in range");
    let layered = ServiceBuilder::new()
        .layer(stacks::tonic::client(
            Dependencies::builder(policy).named("health").build(),
        ))
        .service(connect());
    vec![
        Contestant::new(
            Kind::Tonic,
            BARE,
            "client without",
            HealthClient::new(connect()),
            async |client: &mut HealthClient<_>| {
                let reply = client.check(HealthCheckRequest::default()).await;
                black_box(reply.expect("a reply"));
            },
        ),
        Contestant::new(
            Kind::Tonic,
            STACK,
            "stacks::tonic::client around it",
            HealthClient::new(layered),
            async |client: &mut HealthClient<_>| {
                let reply = client.check(HealthCheckRequest::default()).await;
                black_box(reply.expect("a reply"));
            },
        ),
    ]
}
