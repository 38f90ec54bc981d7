//! Clients with a retry layer over a scripted service.

use std::{error::Error, fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header::CONTENT_TYPE};
use tower::{Layer, util::BoxCloneService};
use tower_reprise::{
    Dependencies, Policy, RetryLayer, client::retry::Retry, error::BoxError, error::Rule,
    policy::PolicyBuilder,
};

use crate::support::{deps, scripted::Server};

pub(crate) const HOST: &str = "a.example";
pub(crate) const MILLISECOND: Duration = Duration::from_millis(1);

/// A fixed wait takes an approval.
pub(crate) fn policy() -> PolicyBuilder {
    Policy::http()
        .budget_floor(10)
        .approve(Rule::R1, "waits that can be foreseen")
}

pub(crate) fn client<B>(
    policy: PolicyBuilder,
    server: &Server<B>,
) -> (Dependencies, Retry<Server<B>>) {
    let deps = deps(policy);
    let client = RetryLayer::new(deps.clone()).layer(server.clone());
    (deps, client)
}

pub(crate) fn request(method: Method) -> Request<()> {
    let uri = "http://a.example/items?page=2";
    let request = Request::builder().method(method).uri(uri);
    request.body(()).unwrap()
}

pub(crate) fn get() -> Request<()> {
    request(Method::GET)
}

/// An error that can be told from its equals.
#[derive(Debug)]
pub(crate) struct Marked(pub(crate) BoxError);

impl fmt::Display for Marked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("marked")
    }
}

impl Error for Marked {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

pub(crate) type Client = BoxCloneService<Request<()>, Response<Bytes>, BoxError>;

pub(crate) fn grpc(key: bool) -> Request<()> {
    let mut request = request(Method::POST);
    let headers = request.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/grpc+proto"),
    );
    if key {
        headers.insert("idempotency-key", HeaderValue::from_static("k"));
    }
    request
}
