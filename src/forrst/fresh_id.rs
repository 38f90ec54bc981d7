use std::{
    future::{Future, ready},
    pin::Pin,
};

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body::Body;
use http_body_util::BodyExt;

use super::{LIMIT, may_be_envelope, splice};
use crate::{
    call::{Attempt, IdempotencyKey},
    client::retry::PrepareAttempt,
    error::BoxError,
    http::headers::resize,
};

/// A per-attempt hook that gives each retry its own `id`, while the idempotency key stays.
///
/// Replies are matched with requests by `id`, so a reply to a retry has the id of the retry. The hook
/// rewrites envelopes of up to 64 KiB; larger bodies, bodies of unknown size and other requests pass
/// unchanged.
///
/// ```
/// use tower_reprise::{Dependencies, Policy, RetryLayer, classify::Codes, forrst::FreshId};
///
/// let policy = Policy::http().codes(Codes::forrst()).build()?;
/// let retry = RetryLayer::new(Dependencies::new(policy)).with_prepare(FreshId);
/// # let _ = retry;
/// # Ok::<(), tower_reprise::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct FreshId;

impl<B> PrepareAttempt<Request<B>> for FreshId
where
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Future = Pin<Box<dyn Future<Output = Result<Request<B>, BoxError>> + Send>>;

    fn prepare(&self, request: Request<B>, _attempt: Attempt) -> Self::Future {
        if !is_readable(&request, LIMIT) {
            return Box::pin(ready(Ok(request)));
        }
        Box::pin(async {
            let (mut head, envelope) = read(request).await?;
            let id = IdempotencyKey::random();
            let changed = super::Request::parse(&envelope)
                .ok()
                .and_then(|_| splice::with_id(&envelope, Some(id.as_str())));
            let body = changed.map_or(envelope, |changed| resized(&mut head.headers, changed));
            Ok(Request::from_parts(head, body.into()))
        })
    }
}

/// Whether a request may be an envelope, of a known size within this limit.
pub(super) fn is_readable<B: Body>(request: &Request<B>, limit: usize) -> bool {
    let most = request.body().size_hint().upper();
    may_be_envelope(request.headers()) && most.is_some_and(|most| most <= limit as u64)
}

/// Reads the whole body of a request.
pub(super) async fn read<B>(request: Request<B>) -> Result<(http::request::Parts, Bytes), BoxError>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    let (head, body) = request.into_parts();
    let read = body.collect().await.map_err(Into::into)?;
    Ok((head, read.to_bytes()))
}

/// Returns a new body, and corrects the `Content-Length` of its message.
pub(super) fn resized(headers: &mut HeaderMap, body: Vec<u8>) -> Bytes {
    resize(headers, body.len());
    body.into()
}
