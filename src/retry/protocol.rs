use http::{HeaderMap, Request, Response};

use super::{Attempt, ReplayBody, RetryOutcome, RetryOverride, attempt::Counted, snapshot::Head};
use crate::{classify::Rules, telemetry::Labels};

/// What the retry loop has to know of a kind of request and response. [`Http`] is for HTTP and
/// gRPC, [`Cloned`] for anything that can be cloned.
pub trait Protocol<Req, Res>: Clone + sealed::Sealed {
    /// What is kept of a request for a retry.
    type Snapshot;

    #[doc(hidden)]
    fn wish<'a>(&self, request: &'a Req) -> Option<&'a RetryOverride>;
    #[doc(hidden)]
    fn is_original(&self, request: &Req) -> bool;
    #[doc(hidden)]
    fn mark_counted(&self, request: &mut Req);
    #[doc(hidden)]
    fn snapshot(&self, request: Req, limit: usize) -> (Req, Option<Self::Snapshot>);
    #[doc(hidden)]
    fn is_whole(&self, snapshot: &Self::Snapshot) -> bool;
    #[doc(hidden)]
    fn rebuild(
        &self,
        snapshot: &mut Option<Self::Snapshot>,
        attempt: Attempt,
        last: bool,
    ) -> Option<Req>;
    #[doc(hidden)]
    fn is_as_trusted(&self, snapshot: Option<&Self::Snapshot>, prepared: &Req) -> bool;
    #[doc(hidden)]
    fn labels<'a>(&self, snapshot: Option<&'a Self::Snapshot>, rules: &Rules) -> Labels<'a>;
    #[doc(hidden)]
    fn annotate(&self, response: &mut Res, outcome: RetryOutcome);
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Http {}
    impl Sealed for super::Cloned {}
}

/// HTTP and gRPC: the head is kept in a recycled buffer, the body by its [`ReplayBody`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Http;

/// What is kept of an HTTP request.
#[derive(Debug)]
pub struct HttpSnapshot<R> {
    head: Head,
    body: Option<R>,
}

impl<B: ReplayBody, R> Protocol<Request<B>, Response<R>> for Http {
    type Snapshot = HttpSnapshot<B::Recording>;

    fn wish<'a>(&self, request: &'a Request<B>) -> Option<&'a RetryOverride> {
        request.extensions().get()
    }

    fn is_original(&self, request: &Request<B>) -> bool {
        origin(request) == Origin::Original
    }

    fn mark_counted(&self, request: &mut Request<B>) {
        request.extensions_mut().insert(Counted);
    }

    fn snapshot(&self, request: Request<B>, limit: usize) -> (Request<B>, Option<Self::Snapshot>) {
        let Some(head) = Head::of(&request, limit) else {
            return (request, None);
        };
        let (parts, body) = request.into_parts();
        let (body, recording) = body.record(limit);
        let request = Request::from_parts(parts, body);
        let snapshot = recording.map(|body| HttpSnapshot {
            head,
            body: Some(body),
        });
        (request, snapshot)
    }

    fn is_whole(&self, snapshot: &Self::Snapshot) -> bool {
        snapshot.body.as_ref().is_some_and(B::is_whole)
    }

    fn rebuild(
        &self,
        snapshot: &mut Option<Self::Snapshot>,
        attempt: Attempt,
        last: bool,
    ) -> Option<Request<B>> {
        let snapshot = snapshot.as_mut()?;
        let parts = snapshot.head.rebuild(attempt)?;
        let body = match last {
            true => B::replay_last(snapshot.body.take()?)?,
            false => B::replay(snapshot.body.as_ref()?)?,
        };
        Some(Request::from_parts(parts, body))
    }

    fn is_as_trusted(&self, snapshot: Option<&Self::Snapshot>, prepared: &Request<B>) -> bool {
        snapshot.is_some_and(|snapshot| snapshot.head.is_as_trusted(prepared.headers()))
    }

    fn labels<'a>(&self, snapshot: Option<&'a Self::Snapshot>, rules: &Rules) -> Labels<'a> {
        let head = snapshot.map(|snapshot| &snapshot.head);
        Labels {
            correlation_id: head.and_then(Head::correlation_id),
            idempotency_key: head.and_then(|head| head.text(&rules.key_header)),
        }
    }

    fn annotate(&self, response: &mut Response<R>, outcome: RetryOutcome) {
        response.extensions_mut().insert(outcome);
    }
}

/// Anything that can be cloned: events, messages, jobs. Per-call overrides and the marks that
/// layers leave for each other live in HTTP extensions, so there are none here.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cloned;

impl<Req: Clone, Res> Protocol<Req, Res> for Cloned {
    type Snapshot = Req;

    fn wish<'a>(&self, _request: &'a Req) -> Option<&'a RetryOverride> {
        None
    }

    fn is_original(&self, _request: &Req) -> bool {
        true
    }

    fn mark_counted(&self, _request: &mut Req) {}

    fn snapshot(&self, request: Req, _limit: usize) -> (Req, Option<Req>) {
        let snapshot = request.clone();
        (request, Some(snapshot))
    }

    fn is_whole(&self, _snapshot: &Req) -> bool {
        true
    }

    fn rebuild(&self, snapshot: &mut Option<Req>, _attempt: Attempt, last: bool) -> Option<Req> {
        if last {
            snapshot.take()
        } else {
            snapshot.clone()
        }
    }

    fn is_as_trusted(&self, _snapshot: Option<&Req>, _prepared: &Req) -> bool {
        true
    }

    fn labels<'a>(&self, _snapshot: Option<&'a Req>, _rules: &Rules) -> Labels<'a> {
        Labels::default()
    }

    fn annotate(&self, _response: &mut Res, _outcome: RetryOutcome) {}
}

/// Where a request comes from, as far as it can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Sent for the first time, and not counted yet.
    Original,
    /// Sent for the first time, and counted by a layer above.
    Counted,
    /// Sent again by us, and charged.
    Charged,
    /// Sent again by somebody else.
    Repeated,
}

pub(crate) fn origin<B>(request: &Request<B>) -> Origin {
    let extensions = request.extensions();
    if !extensions.is_empty() {
        if let Some(attempt) = extensions.get::<Attempt>() {
            return if attempt.charged {
                Origin::Charged
            } else {
                Origin::Repeated
            };
        }
        if extensions.get::<Counted>().is_some() {
            return Origin::Counted;
        }
    }
    let more_than = |name, first: u64| number(request.headers(), name).is_some_and(|n| n > first);
    if more_than("grpc-previous-rpc-attempts", 0) || more_than("x-envoy-attempt-count", 1) {
        return Origin::Repeated;
    }
    Origin::Original
}

fn number(headers: &HeaderMap, name: &'static str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}
