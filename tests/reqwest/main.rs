//! The stack over a real reqwest client, as a service and as a middleware, against real servers
//! that misbehave on purpose.
#![cfg(feature = "reqwest-middleware")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the helpers are tests too"
)]

#[path = "../support/authority.rs"]
mod authority;
mod bodies;
mod chain;
mod faults;
mod server;
mod tls;

use std::{error::Error, time::Duration};

use http::Request;
use reqwest::{Body, Client, ClientBuilder, Response};
use tower::{ServiceBuilder, ServiceExt};
use tower_reprise::{
    Dependencies, Policy, RetryOutcome,
    call::{Cause, StopReason, Verdict},
    classify::{Classify, Rules, Standard},
    error::BoxError,
    policy::PolicyBuilder,
    stacks::{
        self,
        reqwest::{HttpClient, TowerMiddleware},
    },
};

/// How the layers are put on a client.
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

fn policy() -> PolicyBuilder {
    Policy::synchronous()
        .base(Duration::from_millis(1))
        .cap(Duration::from_millis(2))
}

fn deps() -> Dependencies {
    Dependencies::new(policy().build().unwrap())
}

/// Attempts that stall are given up soon; the whole call has time enough.
fn impatient() -> Dependencies {
    let policy = policy().attempt_timeout(Duration::from_millis(150));
    Dependencies::new(policy.build().unwrap())
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

fn outcome_of(error: &BoxError) -> (u32, Option<StopReason>) {
    let outcome = RetryOutcome::of_error(&**error).expect("an outcome in the chain");
    (outcome.attempts(), outcome.stop_reason())
}

fn verdict(error: &BoxError) -> Verdict {
    let rules = Rules::standard();
    Classify::<Request<()>, http::Response<()>>::classify(&Standard, &rules, Err(&**error))
}

fn cause(error: &BoxError) -> Cause {
    verdict(error).cause
}

/// Walks the sources alone, as a caller would.
fn source<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut link = Some(error);
    while let Some(error) = link {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        link = error.source();
    }
    None
}

/// The error that reqwest made, which nobody has put another in the place of.
fn original(error: &BoxError) -> &reqwest::Error {
    source(&**error).expect("reqwest's own error")
}
