//! Connections to the endpoints of an upstream.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::{
    Uri,
    uri::{Authority, InvalidUri, Scheme},
};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use tower::Service;

type Connector = HttpsConnector<HttpConnector>;

/// Connects to endpoints that have a [number for an authority](short_authority).
#[derive(Debug, Clone)]
pub(crate) struct Dial {
    connector: Connector,
    endpoints: Arc<[Uri]>,
}

impl Dial {
    pub(super) fn new(connector: Connector, endpoints: &[Uri]) -> Self {
        Self {
            connector,
            endpoints: endpoints.into(),
        }
    }
}

/// Returns the number of an endpoint at http:// as its authority: the pool of connections hashes
/// authorities byte by byte, three times a request, which takes 2,600 instructions more for an address
/// (callgrind). Only for HTTP/1.1, whose requests do not hold it.
pub(super) fn short_authority(endpoint: usize) -> Result<Authority, InvalidUri> {
    endpoint.to_string().parse()
}

impl Service<Uri> for Dial {
    type Response = <Connector as Service<Uri>>::Response;
    type Error = <Connector as Service<Uri>>::Error;
    type Future = <Connector as Service<Uri>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.connector.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let number = match uri.scheme() == Some(&Scheme::HTTP) {
            true => uri.authority().and_then(|it| it.as_str().parse().ok()),
            false => None,
        };
        let endpoint = number.and_then(|number: usize| self.endpoints.get(number));
        self.connector.call(endpoint.cloned().unwrap_or(uri))
    }
}
