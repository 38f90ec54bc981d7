//! Stacks of layers over a scripted service.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response};
use tower::{Layer, util::BoxCloneService};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, HedgeLayer, IdempotencyKeyLayer, Policy, RetryAfterLayer,
    RetryBudgetLayer, RetryLayer,
    error::{BoxError, Rule},
    policy::PolicyBuilder,
};

use crate::support::{
    Fixed,
    scripted::{Server, status},
    secs,
};

pub(crate) const HOST: &str = "a.example";

pub(crate) type Client = BoxCloneService<Request<()>, Response<Bytes>, BoxError>;

pub(crate) fn busy(code: u16, seconds: u64) -> Response<Bytes> {
    let mut response = status(code);
    response.headers_mut().insert("retry-after", seconds.into());
    response
}

pub(crate) fn request(method: Method, host: &str) -> Request<()> {
    let uri = format!("http://{host}/items");
    Request::builder().method(method).uri(uri).body(()).unwrap()
}

pub(crate) fn get() -> Request<()> {
    request(Method::GET, HOST)
}

pub(crate) fn post() -> Request<()> {
    request(Method::POST, HOST)
}

pub(crate) fn numbered(mut request: Request<()>, call: usize) -> Request<()> {
    request.headers_mut().insert("x-call", call.into());
    request
}

pub(crate) fn with<T: Clone + Send + Sync + 'static>(
    mut request: Request<()>,
    extension: T,
) -> Request<()> {
    request.extensions_mut().insert(extension);
    request
}

pub(crate) fn with_header(
    mut request: Request<()>,
    name: &'static str,
    value: &'static str,
) -> Request<()> {
    request
        .headers_mut()
        .insert(name, HeaderValue::from_static(value));
    request
}

pub(crate) fn grpc() -> Request<()> {
    with_header(post(), "content-type", "application/grpc")
}

pub(crate) fn policy() -> PolicyBuilder {
    Policy::http()
        .budget_floor(10)
        .approve(Rule::R1, "test")
        .backoff(Fixed(secs(1)))
}

/// A budget and a breaker that never say no.
pub(crate) fn lenient() -> PolicyBuilder {
    Policy::http()
        .backoff(Fixed(Duration::from_millis(1)))
        .approve(Rule::R1, "test")
        .approve(Rule::R7, "test")
        .budget_floor(10_000)
        .consecutive_failures(10_000)
        .failure_rate(1.0, 10_000, secs(30))
}

/// Originals and retries that the dependency counted.
pub(crate) fn counted<C, L>(deps: &Dependencies<C, L>) -> (u64, u64) {
    let status = deps.get(HOST).status();
    (status.originals, status.retries)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    Key,
    Budget,
    Retry,
    After,
    Breaker,
    Hedge,
}

/// The recommended order, from the caller inwards, without a hedge.
pub(crate) const PARTS: [Part; 5] = [
    Part::Key,
    Part::Budget,
    Part::Retry,
    Part::After,
    Part::Breaker,
];

pub(crate) fn stack(parts: &[Part], deps: &Dependencies, server: &Server) -> Client {
    let deps = || deps.clone();
    let innermost: Client = BoxCloneService::new(server.clone());
    parts
        .iter()
        .rev()
        .fold(innermost, |inner, part| match part {
            Part::Key => BoxCloneService::new(IdempotencyKeyLayer::new().layer(inner)),
            Part::Budget => BoxCloneService::new(RetryBudgetLayer::new(deps()).layer(inner)),
            Part::Retry => BoxCloneService::new(RetryLayer::new(deps()).layer(inner)),
            Part::After => BoxCloneService::new(RetryAfterLayer::new(deps()).layer(inner)),
            Part::Breaker => BoxCloneService::new(CircuitBreakerLayer::new(deps()).layer(inner)),
            Part::Hedge => BoxCloneService::new(HedgeLayer::new(deps()).layer(inner)),
        })
}

/// All orders of all subsets: 326 for five parts, the empty one included.
pub(crate) fn arrangements(parts: &[Part]) -> Vec<Vec<Part>> {
    let mut all = vec![Vec::new()];
    for first in parts {
        let rest: Vec<_> = parts.iter().copied().filter(|part| part != first).collect();
        for mut arrangement in arrangements(&rest) {
            arrangement.insert(0, *first);
            all.push(arrangement);
        }
    }
    all
}
