//! The layers, as a user makes them.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, StatusCode};
use tower_http::{
    auth::AddAuthorizationLayer,
    metrics::{InFlightRequestsLayer, in_flight_requests::InFlightRequestsCounter},
    propagate_header::PropagateHeaderLayer,
    request_id::{MakeRequestUuid, SetRequestIdLayer},
    set_header::{SetRequestHeaderLayer, SetResponseHeaderLayer},
    set_status::SetStatusLayer,
    timeout::TimeoutLayer,
};
use tower_reprise::{
    DeadlineLayer, Dependencies, IdempotencyLayer, InboundBudgetLayer, Policy, ReplayLayer,
    WebhookVerifyLayer,
    delivery::{
        replay::Replay,
        webhooks::{MessageId, Signer, verify::Verifier},
    },
    dependency::Named,
    server::dialect::Scope,
    store::{CrashPolicy, MemoryStore},
};

pub(crate) const MINUTE: Duration = Duration::from_secs(60);
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const HEADER: HeaderName = HeaderName::from_static("x-set");

pub(crate) fn deps() -> Dependencies {
    Dependencies::new(Policy::http().build().unwrap())
}

pub(crate) fn channel() -> Dependencies<tower_reprise::classify::Standard, Named> {
    let policy = Policy::grpc_unary().build().unwrap();
    Dependencies::builder(policy).named("peer").build()
}

pub(crate) fn inbound() -> InboundBudgetLayer<tower_reprise::classify::Standard, Named> {
    InboundBudgetLayer::new(deps())
}

pub(crate) fn deadline() -> DeadlineLayer {
    DeadlineLayer::new()
        .trust_callers()
        .default_deadline(MINUTE)
        .unwrap()
}

pub(crate) fn idempotency() -> IdempotencyLayer<MemoryStore> {
    IdempotencyLayer::builder(MemoryStore::new())
        .scope(Scope::new(|_| Some("all")))
        .crash_policy(CrashPolicy::Reexecute)
        .build()
        .unwrap()
}

pub(crate) fn replay() -> ReplayLayer<MemoryStore> {
    let replay = Replay::builder(MemoryStore::new(), Scope::new(|_| Some("all")));
    replay.build().unwrap().layer()
}

pub(crate) fn verify() -> WebhookVerifyLayer {
    WebhookVerifyLayer::new(Verifier::new(SECRET).unwrap())
}

/// Makes a request that all layers let through, signed and with a key.
pub(crate) fn signed<B>(
    uri: &str,
    data: &'static [u8],
    body: impl FnOnce(Bytes) -> B,
) -> Request<B> {
    let mut request = Request::post(uri)
        .header(
            "idempotency-key",
            uuid::Uuid::from_u128(rand::random()).to_string(),
        )
        .body(body(Bytes::from_static(data)))
        .unwrap();
    let now = std::time::SystemTime::now();
    let signer = Signer::new(SECRET).unwrap();
    let signed = signer.sign(&MessageId::new("1").unwrap(), now, data);
    signed.apply(request.headers_mut());
    request
}

pub(crate) fn authorization() -> AddAuthorizationLayer {
    AddAuthorizationLayer::bearer("token")
}

pub(crate) fn in_flight() -> InFlightRequestsLayer {
    InFlightRequestsLayer::new(InFlightRequestsCounter::new())
}

pub(crate) fn propagate() -> PropagateHeaderLayer {
    PropagateHeaderLayer::new(HEADER)
}

pub(crate) fn request_id() -> SetRequestIdLayer<MakeRequestUuid> {
    SetRequestIdLayer::x_request_id(MakeRequestUuid)
}

pub(crate) fn request_header() -> SetRequestHeaderLayer<HeaderValue> {
    SetRequestHeaderLayer::overriding(HEADER, HeaderValue::from_static("1"))
}

pub(crate) fn response_header() -> SetResponseHeaderLayer<HeaderValue> {
    SetResponseHeaderLayer::overriding(HEADER, HeaderValue::from_static("1"))
}

pub(crate) fn status() -> SetStatusLayer {
    SetStatusLayer::new(StatusCode::OK)
}

pub(crate) fn timeout() -> TimeoutLayer {
    TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, MINUTE)
}

/// `Ok` for the status of a reply of the service.
pub(crate) fn expect_ok(status: StatusCode) -> Result<(), String> {
    match status {
        StatusCode::OK => Ok(()),
        other => Err(other.to_string()),
    }
}

pub(crate) fn never(never: Infallible) -> ! {
    match never {}
}
