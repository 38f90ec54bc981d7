//! Servers on loopback, each on a thread of its own, and the clients of hyper-util and tonic.

use std::{convert::Infallible, hint::black_box, net::Ipv4Addr, sync::mpsc, thread};

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
use tower::{Service, ServiceBuilder, ServiceExt, timeout::Timeout};
use tower_reprise::{Dependencies, Policy, stacks};

use super::contestant::{
    BARE, Contestant, HEADERS, KEYED, Kind, LIMIT, PATH, STACK, TIMEOUT, deps,
};

/// Serves on a thread of its own as long as the process lives, and says where.
fn serve<F>(server: impl FnOnce(TcpListener) -> F + Send + 'static) -> String
where
    F: Future<Output = ()>,
{
    let (sender, address) = mpsc::channel();
    thread::spawn(move || {
        super::timing::runtime().block_on(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
            let listener = listener.expect("a port");
            let _ = sender.send(listener.local_addr().expect("an address"));
            server(listener).await;
        });
    });
    format!("http://{}", address.recv().expect("a server"))
}

/// Answers every request with a few bytes.
pub(super) fn http_server() -> String {
    serve(|listener| async move {
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
    })
}

pub(super) fn hyper(server: &str) -> Vec<Contestant> {
    let client = || Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let layered = move || {
        let layers = ServiceBuilder::new().layer(stacks::client(deps()));
        layers.service(client())
    };
    let url = format!("{server}{PATH}");
    let (limited, target) = (url.clone(), url.clone());
    vec![
        Contestant::new(
            Kind::Hyper,
            BARE,
            "client without",
            client,
            async move |client: &mut _| get(client, &url).await,
        ),
        Contestant::new(
            Kind::Hyper,
            TIMEOUT,
            "tower's Timeout around it",
            move || Timeout::new(client(), LIMIT),
            async move |client: &mut _| get(client, &limited).await,
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

pub(super) fn tonic() -> Vec<Contestant> {
    let url = serve(|listener| async {
        let (_reporter, health) = tonic_health::server::health_reporter();
        let server = Server::builder().add_service(health);
        let incoming = TcpListenerStream::new(listener);
        let _ = server.serve_with_incoming(incoming).await;
    });
    let channel = Channel::from_shared(url).expect("a URI");
    let connect = || channel.connect_lazy();
    let layered = |declared: &[&str]| {
        let policy = Policy::grpc_unary().service("bench");
        let policy = policy.idempotent_methods(declared.iter().copied()).build();
        let deps = Dependencies::named("health", policy.expect("in range"));
        ServiceBuilder::new()
            .layer(stacks::tonic::client(deps))
            .service(connect())
    };
    vec![
        Contestant::new(
            Kind::Tonic,
            BARE,
            "client without",
            || HealthClient::new(connect()),
            async |client: &mut HealthClient<_>| {
                let reply = client.check(HealthCheckRequest::default()).await;
                black_box(reply.expect("a reply"));
            },
        ),
        Contestant::new(
            Kind::Tonic,
            TIMEOUT,
            "tower's Timeout around it",
            || HealthClient::new(Timeout::new(connect(), LIMIT)),
            async |client: &mut HealthClient<_>| {
                let reply = client.check(HealthCheckRequest::default()).await;
                black_box(reply.expect("a reply"));
            },
        ),
        Contestant::new(
            Kind::Tonic,
            STACK,
            "stacks::tonic::client around it",
            || HealthClient::new(layered(&["grpc.health.v1.Health/Check"])),
            async |client: &mut HealthClient<_>| {
                let reply = client.check(HealthCheckRequest::default()).await;
                black_box(reply.expect("a reply"));
            },
        ),
        Contestant::new(
            Kind::Tonic,
            KEYED,
            "the same, with a key on each call",
            || HealthClient::new(layered(&[])),
            async |client: &mut HealthClient<_>| {
                let reply = client.check(HealthCheckRequest::default()).await;
                black_box(reply.expect("a reply"));
            },
        ),
    ]
}
