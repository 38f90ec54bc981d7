//! Clients made of tonic, and their outcomes.

use std::{net::SocketAddr, time::Duration};

use http::{Request as HttpRequest, Response as HttpResponse};
use tonic::{
    Response, Status,
    body::Body,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::HealthCheckRequest;
use tower::{Service, ServiceBuilder, util::BoxCloneService};
use tower_reprise::{
    CircuitBreakerLayer, Dependencies, PeekLayer, Policy, RetryAfterLayer, RetryBudgetLayer,
    RetryLayer, RetryOutcome,
    call::{StopReason, Verdict},
    classify::{Classify, Rules, Standard},
    client::peek::PeekBody,
    dependency::Named,
    error::BoxError,
    policy::PolicyBuilder,
    stacks::{self, tonic::StatusLayer},
};

pub(crate) const CHECK: &str = "grpc.health.v1.Health/Check";
pub(crate) const WATCH: &str = "grpc.health.v1.Health/Watch";

pub(crate) type Deps = Dependencies<Standard, Named>;
pub(crate) type Stack<B> = BoxCloneService<HttpRequest<Body>, HttpResponse<B>, Status>;

/// A policy for which `Check` is safe to repeat, and `Watch` is not.
pub(crate) fn policy() -> PolicyBuilder {
    Policy::grpc_unary()
        .base(Duration::from_millis(1))
        .cap(Duration::from_millis(2))
        .idempotent_methods([CHECK])
}

pub(crate) fn named(policy: PolicyBuilder) -> Deps {
    Dependencies::named("ledger", policy.build().unwrap())
}

pub(crate) fn channel(address: SocketAddr) -> Channel {
    endpoint(address).connect_lazy()
}

pub(crate) fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint::from_shared(format!("http://{address}")).unwrap()
}

/// All layers, as a user has them.
pub(crate) fn full(deps: &Deps, channel: Channel) -> Stack<PeekBody<Body>> {
    BoxCloneService::new(
        ServiceBuilder::new()
            .layer(stacks::tonic::client(deps.clone()))
            .service(channel),
    )
}

/// All but the one that stamps keys, around anything.
pub(crate) fn keyless<S, B>(deps: &Deps, inner: S) -> Stack<PeekBody<B>>
where
    S: Service<HttpRequest<Body>, Response = HttpResponse<B>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: http_body::Body<Data = bytes::Bytes> + Unpin + Send + 'static,
    B::Error: Send,
{
    BoxCloneService::new(
        ServiceBuilder::new()
            .layer(StatusLayer::new())
            .layer(RetryBudgetLayer::new(deps.clone()))
            .layer(RetryLayer::new(deps.clone()))
            .layer(RetryAfterLayer::new(deps.clone()))
            .layer(CircuitBreakerLayer::new(deps.clone()))
            .layer(PeekLayer::new(deps.clone()))
            .service(inner),
    )
}

pub(crate) fn check() -> HealthCheckRequest {
    HealthCheckRequest::default()
}

pub(crate) fn served<T>(response: &Response<T>) -> u32 {
    let outcome = response.extensions().get::<RetryOutcome>();
    outcome.map_or(1, RetryOutcome::attempts)
}

/// Attempts, and why there were no more, from a status alone.
pub(crate) fn outcome(status: &Status) -> (u32, Option<StopReason>) {
    let outcome = RetryOutcome::of_error(status).expect("an outcome in the source");
    (outcome.attempts(), outcome.stop_reason())
}

pub(crate) fn verdict(status: &Status) -> Verdict {
    let rules = Rules::standard();
    let source = std::error::Error::source(status).expect("a source");
    Classify::<HttpRequest<()>, HttpResponse<()>>::classify(&Standard, &rules, Err(source))
}
