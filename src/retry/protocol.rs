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
    fn snapshot(&self, request: &mut Req, limit: usize) -> Option<Self::Snapshot>;
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
    fn admit_prepared(
        &self,
        snapshot: Option<&Self::Snapshot>,
        prepared: Req,
        attempt: Attempt,
        rules: &Rules,
    ) -> Option<Req>;
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

    fn snapshot(&self, request: &mut Request<B>, limit: usize) -> Option<Self::Snapshot> {
        let head = Head::of(request, limit)?;
        let body = Some(request.body_mut().record(limit)?);
        Some(HttpSnapshot { head, body })
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
        let parts = snapshot.head.rebuild()?;
        let body = match last {
            true => B::replay_last(snapshot.body.take()?)?,
            false => B::replay(snapshot.body.as_ref()?)?,
        };
        let mut request = Request::from_parts(parts, body);
        attempt.mark(&mut request);
        Some(request)
    }

    fn admit_prepared(
        &self,
        snapshot: Option<&Self::Snapshot>,
        mut prepared: Request<B>,
        attempt: Attempt,
        rules: &Rules,
    ) -> Option<Request<B>> {
        let head = &snapshot?.head;
        if !head.is_as_trusted(&prepared, &rules.key_header) {
            return None;
        }
        attempt.mark(&mut prepared);
        Some(prepared)
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

    fn snapshot(&self, request: &mut Req, _limit: usize) -> Option<Req> {
        Some(request.clone())
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

    fn admit_prepared(
        &self,
        _snapshot: Option<&Req>,
        prepared: Req,
        _attempt: Attempt,
        _rules: &Rules,
    ) -> Option<Req> {
        Some(prepared)
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
    /// Sent again, and charged by a layer above.
    Charged,
    /// Sent again after so many attempts by a retry loop that is not ours.
    Repeated(u32),
}

pub(crate) fn origin<B>(request: &Request<B>) -> Origin {
    let extensions = request.extensions();
    let attempt = extensions.get::<Attempt>();
    if attempt.is_some_and(|attempt| attempt.charged) {
        return Origin::Charged;
    }
    match attempt
        .map_or(0, Attempt::previous)
        .max(told(request.headers()))
    {
        0 if extensions.get::<Counted>().is_some() => Origin::Counted,
        0 => Origin::Original,
        previous => Origin::Repeated(previous),
    }
}

/// How many attempts were made before this one, by headers of other retry loops. One pass that
/// compares lengths is cheaper than two look-ups, which hash.
fn told(headers: &HeaderMap) -> u32 {
    const GRPC: &str = "grpc-previous-rpc-attempts";
    const ENVOY: &str = "x-envoy-attempt-count";
    let mut told = 0;
    for (name, value) in headers {
        let first = match name.as_str() {
            GRPC => 0,
            ENVOY => 1,
            _ => continue,
        };
        let number = value
            .to_str()
            .ok()
            .and_then(|value| value.parse::<u32>().ok());
        told = told.max(number.unwrap_or_default().saturating_sub(first));
    }
    told
}
