//! Error codes in JSON bodies.

mod bounds;
#[cfg(feature = "serde")]
mod configured;
mod ids;
mod places;
mod tables;

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tower::{Service, ServiceBuilder, service_fn};
use tower_reprise::{
    Dependencies, IdempotencyKeyLayer, PeekLayer, Policy, RetryLayer, call::StopReason,
    classify::Codes, error::BoxError, http::BufferedBody, policy::PolicyBuilder,
};

use crate::support::{call, outcome};

pub(crate) type ReplyBody = UnsyncBoxBody<Bytes, Infallible>;
pub(crate) type Reply = Response<ReplyBody>;
pub(crate) type Peeked = Result<Response<BufferedBody<ReplyBody>>, BoxError>;

/// As many retries as a profile allows, so that only a table can say less.
pub(crate) fn policy(codes: Codes) -> PolicyBuilder {
    Policy::http()
        .max_retries(5)
        .consecutive_failures(5)
        .codes(codes)
}

pub(crate) fn said(status: u16, content_type: &str, body: impl Into<Bytes>) -> Reply {
    Response::builder()
        .status(status)
        .header("content-type", content_type)
        .body(Full::new(body.into()).boxed_unsync())
        .unwrap()
}

pub(crate) fn json(status: u16, body: impl Into<Bytes>) -> Reply {
    said(status, "application/json", body)
}

pub(crate) fn forrst(code: &str) -> String {
    format!(
        r#"{{"protocol":{{"name":"forrst","version":"0.1.0"}},"id":"req_1","result":null,"errors":[{{"code":"{code}","message":"no"}}]}}"#
    )
}

pub(crate) fn get() -> Request<Full<Bytes>> {
    Request::get("http://api.example/")
        .body(Full::default())
        .unwrap()
}

/// The result of a call, and the heads of all requests that were made for it.
pub(crate) struct Called {
    pub(crate) result: Peeked,
    pub(crate) requests: Vec<Request<()>>,
}

impl Called {
    /// Attempts, and why there were no more.
    pub(crate) fn outcome(&self) -> (usize, Option<StopReason>) {
        let told = outcome(&self.result);
        let attempts = self.requests.len();
        assert_eq!(told.map_or(1, |(n, _)| n as usize), attempts);
        (attempts, told.and_then(|(_, why)| why))
    }

    pub(crate) async fn body(self) -> Bytes {
        let body = self.result.unwrap().into_body();
        body.collect().await.unwrap().to_bytes()
    }

    pub(crate) fn header(&self, name: &str) -> Vec<Option<String>> {
        let value = |request: &Request<()>| {
            let value: &HeaderValue = request.headers().get(name)?;
            Some(value.to_str().unwrap().to_owned())
        };
        self.requests.iter().map(value).collect()
    }
}

/// Makes one call to something that replies so to each attempt; the last reply is for all others.
pub(crate) async fn run(
    policy: PolicyBuilder,
    request: Request<Full<Bytes>>,
    reply: impl Fn(usize) -> Reply,
) -> Called {
    let deps = Dependencies::new(policy.build().unwrap());
    let requests: Arc<Mutex<Vec<Request<()>>>> = Arc::default();
    let service = service_fn(|request: Request<Full<Bytes>>| {
        let mut requests = requests.lock().unwrap();
        let reply = reply(requests.len());
        requests.push(request.map(drop));
        async { Ok::<_, Infallible>(reply) }
    });
    let mut client = ServiceBuilder::new()
        .layer(IdempotencyKeyLayer::new())
        .layer(RetryLayer::new(deps.clone()))
        .layer(PeekLayer::new(deps))
        .service(CloneService(Arc::new(Mutex::new(service))));
    let result = call(&mut client, request).await;
    drop(client);
    let requests = std::mem::take(&mut *requests.lock().unwrap());
    Called { result, requests }
}

/// A closure that borrows, as a service that can be cloned.
pub(crate) struct CloneService<S>(pub(crate) Arc<Mutex<S>>);

impl<S> Clone for CloneService<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Service<Request<Full<Bytes>>>> Service<Request<Full<Bytes>>> for CloneService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.lock().unwrap().poll_ready(cx)
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> S::Future {
        self.0.lock().unwrap().call(request)
    }
}

/// Returns the number of attempts for a reply that never changes.
pub(crate) async fn attempts(codes: Codes, reply: impl Fn() -> Reply) -> usize {
    run(policy(codes), get(), |_| reply()).await.outcome().0
}
