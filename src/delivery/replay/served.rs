//! Whether a request was served, by its reply or error.

use std::{any::Any, error::Error};

use http::{Request, Response, StatusCode};
use tower::load_shed::error::Overloaded;

use super::{ReplayLater, builder::Settings, dialect::ReplayFormat};
use crate::{
    call::{Effect, ReplayKey, RetryError, RetryOutcome, Retryable, key::LONGEST_CONFIGURABLE},
    classify::{Rules, http::is_replayed, network},
    error::{BoxError, Refused, find},
    http::digest::Digest,
    server::idempotency::HandlerOutcome,
};

pub(super) const UNAVAILABLE: &str = "SERVICE_UNAVAILABLE";
const OVERLOADED: &str = "OVERLOADED";
const DEPENDENCY: &str = "DEPENDENCY_UNAVAILABLE";

/// Returns why a request was not served, if its response says so and it may be served later: the
/// service is unavailable, or the handler asks for a replay.
pub(super) fn cannot_serve<R>(response: &Response<R>) -> Option<&'static str> {
    if let Some(ReplayLater(reason)) = response.extensions().get() {
        return Some(reason);
    }
    let unavailable = response.status() == StatusCode::SERVICE_UNAVAILABLE;
    (unavailable && !is_final(response)).then_some(UNAVAILABLE)
}

/// Returns whether a reply decides its request whatever its status: one of an idempotency store,
/// and one after an attempt that may have been served.
fn is_final<R>(response: &Response<R>) -> bool {
    // Attempts that got a 503 too are as good as this one.
    let before = || RetryOutcome::of(response).map(RetryOutcome::before);
    let served = || before().is_some_and(|effect| effect > Effect::Unproven);
    is_replayed(response.headers()) || served()
}

/// Returns why a request is to be journaled: it was not served, or the limits of the service, or of
/// what that calls, kept it from having any effect.
pub(super) fn is_journaled<R>(settings: &Settings, response: &Response<R>) -> Option<&'static str> {
    let (status, extensions) = (response.status(), response.extensions());
    if extensions.get::<ReplayLater>().is_none() && !settings.statuses.contains(&status) {
        return None;
    }
    cannot_serve(response).or_else(|| {
        let known = extensions.get::<HandlerOutcome>();
        let known = known.map(|outcome| *outcome == HandlerOutcome::NoEffect);
        let known = known.or_else(|| Some(*extensions.get::<Effect>()? == Effect::None));
        let busy = status == StatusCode::TOO_MANY_REQUESTS;
        let code = if busy { OVERLOADED } else { DEPENDENCY };
        (known.unwrap_or(busy) && !is_final(response)).then_some(code)
    })
}

/// Returns why there is no response, if the error says that the request was not served.
pub(super) fn cannot_call(error: &dyn Any) -> Option<&'static str> {
    let error: &BoxError = error.downcast_ref()?;
    let retried = find::<RetryError>(&**error);
    if retried.is_some_and(|retried| retried.outcome().before() > Effect::Unproven) {
        return None;
    }
    if Refused::find(&**error).is_some() {
        return Some(DEPENDENCY);
    }
    if find::<Overloaded>(&**error).is_some() {
        return Some(OVERLOADED);
    }
    // There was no connection, and one may be possible later.
    let last = retried.and_then(Error::source).unwrap_or(&**error);
    let verdict = network::classify(&Rules::standard(), last);
    let later = verdict.never_sent && verdict.retry != Retryable::Never;
    later.then_some(DEPENDENCY)
}

/// Returns the key by which the attempts of a request know each other: that of its operation, so
/// that a repeat of the request has the same, or the entry's id if it has no key.
pub(super) fn replay_key(
    dialect: &dyn ReplayFormat,
    head: &Request<()>,
    body: &[u8],
    owner: &str,
) -> Option<ReplayKey> {
    let mut digest = Digest::new("replay");
    digest.part(owner);
    // As the journal keeps it, without what other layers put on the request.
    let mut kept = Request::new(());
    *kept.method_mut() = head.method().clone();
    *kept.uri_mut() = head.uri().clone();
    *kept.headers_mut() = head.headers().clone();
    let id = dialect.identify(&kept, body, LONGEST_CONFIGURABLE, digest);
    let key = id.ok()??.key;
    key.as_bytes().first_chunk().copied()
}
