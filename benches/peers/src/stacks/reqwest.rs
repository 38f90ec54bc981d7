//! reqwest, with and without a network.

use std::hint::black_box;

use async_trait::async_trait;
use http::Extensions;
use reqwest::{Body, Client, Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use reqwest_retry::{RetryTransientMiddleware, policies::ExponentialBackoff};
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_reprise::{
    RetryLayer,
    stacks::{
        self,
        reqwest::{HttpClient, TowerMiddleware},
    },
};

use super::contestant::{
    BARE, Contestant, HEADERS, Kind, MIDDLEWARE, PATH, REQWEST_RETRY, RETRY, STACK, deps,
};

/// The end of a chain: answers at once.
struct Answer;

#[async_trait]
impl Middleware for Answer {
    async fn handle(
        &self,
        request: Request,
        _extensions: &mut Extensions,
        _next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        drop(black_box(request));
        Ok(http::Response::new(Body::default()).into())
    }
}

#[inline(never)]
fn get(client: &Client, url: &str) -> Request {
    let headers = HEADERS.into_iter();
    let request = headers.fold(client.get(url), |r, (name, value)| r.header(name, value));
    request.build().expect("a request")
}

fn reqwest_retry() -> RetryTransientMiddleware<ExponentialBackoff> {
    let policy = ExponentialBackoff::builder().build_with_max_retries(3);
    RetryTransientMiddleware::new_with_policy(policy)
}

pub(super) fn without_network() -> Vec<Contestant> {
    let url = format!("https://stock.example{PATH}");
    let answering = |name, title, chain: ClientBuilder| {
        let client = || chain.with(Answer).build();
        over(Kind::NoNetwork, name, title, client, url.clone())
    };
    let chain = || ClientBuilder::new(Client::new());
    vec![
        answering(BARE, "chain without", chain()),
        answering(
            RETRY,
            "our RetryLayer",
            chain().with(TowerMiddleware::new(RetryLayer::new(deps()))),
        ),
        answering(
            STACK,
            "stacks::client",
            chain().with(TowerMiddleware::new(stacks::client(deps()))),
        ),
        answering(
            REQWEST_RETRY,
            "reqwest-retry",
            chain().with(reqwest_retry()),
        ),
    ]
}

fn over(
    kind: Kind,
    name: &'static str,
    title: &'static str,
    client: impl FnOnce() -> ClientWithMiddleware,
    url: String,
) -> Contestant {
    let call = async move |client: &mut ClientWithMiddleware| {
        let request = get(client.as_ref(), &url);
        let response = client.execute(request).await.expect("a response");
        read(response).await;
    };
    Contestant::new(kind, name, title, client, call)
}

async fn read(response: Response) {
    assert_eq!(response.status(), 200);
    black_box(response.bytes().await.expect("a body"));
}

/// All over connections to the same server, which each keeps open.
pub(super) fn over_loopback(server: &str) -> Vec<Contestant> {
    let url = format!("{server}{PATH}");
    let chain = |name, title, chain: ClientBuilder| {
        over(Kind::Reqwest, name, title, || chain.build(), url.clone())
    };
    let start = || ClientBuilder::new(Client::new());
    let service = || {
        let layers = ServiceBuilder::new().layer(stacks::client(deps()));
        layers.service(HttpClient::new(Client::new()))
    };
    let target = url.clone();
    let through = async move |service: &mut _| call(service, &target).await;
    vec![
        chain(BARE, "client without", start()),
        chain(
            RETRY,
            "our RetryLayer, as a middleware",
            start().with(TowerMiddleware::new(RetryLayer::new(deps()))),
        ),
        chain(
            MIDDLEWARE,
            "stacks::client, as a middleware",
            start().with(TowerMiddleware::new(stacks::client(deps()))),
        ),
        Contestant::new(
            Kind::Reqwest,
            STACK,
            "stacks::client around the client",
            service,
            through,
        ),
        chain(
            REQWEST_RETRY,
            "reqwest-retry",
            start().with(reqwest_retry()),
        ),
    ]
}

async fn call<S>(service: &mut S, url: &str)
where
    S: Service<http::Request<Body>, Response = Response>,
    S::Error: std::fmt::Debug,
{
    let headers = HEADERS.into_iter();
    let request = headers.fold(http::Request::get(url), |r, (name, value)| {
        r.header(name, value)
    });
    let request = request.body(Body::default()).expect("a request");
    let service = service.ready().await.expect("a ready service");
    read(service.call(request).await.expect("a response")).await;
}
