//! Dependencies that are listened to.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer as _, service_fn, util::BoxCloneService};
use tower_reprise::{Dependencies, Policy, RetryLayer, error::BoxError, policy::PolicyBuilder};

use crate::support::{layers, telemetry::keep_tests_apart};

pub(crate) type Body = Full<Bytes>;
pub(crate) type Client = BoxCloneService<Request<Body>, Response<Body>, BoxError>;

pub(crate) const URI: &str = "http://stock.example:8080/items";

/// Waits of exactly the time that the server asked for, so that they can be told.
pub(crate) fn policy() -> PolicyBuilder {
    keep_tests_apart();
    Policy::http()
        .budget_floor(10)
        .service("checkout")
        .base(Duration::from_millis(1))
        .cap(Duration::from_millis(2))
        .retry_after_spread(Duration::ZERO)
}

pub(crate) fn deps() -> Dependencies {
    Dependencies::new(policy().build().unwrap())
}

pub(crate) type Reply = Result<Response<Body>, BoxError>;

pub(crate) fn reply(status: u16, headers: &[(&'static str, &str)]) -> Reply {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    Ok(response.body(Body::default()).unwrap())
}

pub(crate) fn refused() -> Reply {
    Err(io::Error::from(io::ErrorKind::ConnectionRefused).into())
}

/// A dependency that gives these replies, and 200 when they are used up.
pub(crate) fn peer(replies: impl IntoIterator<Item = Reply>) -> Client {
    let replies = Arc::new(Mutex::new(replies.into_iter().collect::<VecDeque<_>>()));
    BoxCloneService::new(service_fn(move |_: Request<Body>| {
        let next = replies.lock().unwrap().pop_front();
        std::future::ready(next.unwrap_or_else(|| reply(200, &[])))
    }))
}

pub(crate) fn stack(deps: &Dependencies, peer: Client) -> Client {
    BoxCloneService::new(layers::all(deps).layer(peer))
}

pub(crate) fn retry_only(deps: &Dependencies, peer: Client) -> Client {
    BoxCloneService::new(RetryLayer::new(deps.clone()).layer(peer))
}

pub(crate) fn get(uri: &str) -> Request<Body> {
    Request::get(uri).body(Body::default()).unwrap()
}
