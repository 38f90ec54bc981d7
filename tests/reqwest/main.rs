//! The stack over a real reqwest client, as a service and as a middleware, against real servers
//! that misbehave on purpose.
#![cfg(feature = "reqwest-middleware")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

mod bodies;
mod chain;
mod faults;
mod hedges;
mod reader;
mod tls;

#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use http::Request;
use reqwest::{Body, Client, ClientBuilder, Response};
use tower::{ServiceBuilder, ServiceExt};
use tower_reprise::{
    Dependencies, RetryOutcome,
    call::{Cause, StopReason},
    error::BoxError,
    stacks::{
        self,
        reqwest::{HttpClient, TowerMiddleware},
    },
};

use support::{deps, find, quick, verdict};

/// The way in which the layers are put on a client.
#[derive(Debug, Clone, Copy)]
enum Form {
    /// The client is the innermost service.
    Service,
    /// The layers are a middleware.
    Middleware,
}

impl Form {
    const BOTH: [Self; 2] = [Self::Service, Self::Middleware];

    async fn call(
        self,
        deps: &Dependencies,
        client: &Client,
        request: Request<Body>,
    ) -> Result<Response, BoxError> {
        let layers = stacks::client(deps.clone());
        match self {
            Self::Service => {
                let client = HttpClient::new(client.clone());
                let stack = ServiceBuilder::new().layer(layers).service(client);
                stack.oneshot(request).await
            }
            Self::Middleware => {
                let client = reqwest_middleware::ClientBuilder::new(client.clone());
                let client = client.with(TowerMiddleware::new(layers)).build();
                Ok(client.execute(request.try_into()?).await?)
            }
        }
    }
}

/// Attempts that stall are given up soon; the whole call has time enough.
fn impatient() -> Dependencies {
    deps(quick().attempt_timeout(Duration::from_millis(150)))
}

/// A client that connects anew for each attempt and repeats nothing by itself, so that what the
/// server sees is what the layers did.
fn builder() -> ClientBuilder {
    // The other tests of this process may have been first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .no_proxy()
        .pool_max_idle_per_host(0)
        .retry(reqwest::retry::never())
}

fn client() -> Client {
    builder().build().unwrap()
}

fn get(uri: &str) -> Request<Body> {
    Request::get(uri).body(Body::default()).unwrap()
}

fn post(uri: &str) -> Request<Body> {
    Request::post(uri).body(Body::from("pay")).unwrap()
}

/// Attempts, and why there were no more.
fn outcome(response: &Response) -> (u32, Option<StopReason>) {
    let outcome = response.extensions().get::<RetryOutcome>();
    outcome.map_or((1, None), |o| (o.attempts(), o.stop_reason()))
}

fn cause(error: &BoxError) -> Cause {
    verdict(error).cause
}

/// The error that reqwest made, which nobody has put another in the place of.
fn original(error: &BoxError) -> &reqwest::Error {
    find(&**error).expect("reqwest's own error")
}
