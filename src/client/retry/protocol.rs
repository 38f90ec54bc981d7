use crate::call::attempt_headers::{Origin, TIMEOUT, origin_of};
use std::time::Duration;

use http::{HeaderName, Request};
use tower_http::request_id::RequestId;

use super::{
    ReplayBody, ReplayLimits,
    snapshot::{Copied, Head},
};
use crate::call::{
    Attempt, RetryOutcome, RetryOverride,
    budget_mark::{Counted, Marks},
};
use crate::{
    call::IdempotencyKey,
    classify::Rules,
    http::{
        grpc::{grpc_timeout, is_grpc},
        response::ResponseHead,
    },
    telemetry::Labels,
};

/// What the retry loop has to know of a kind of request and response. [`Http`] is for HTTP and
/// gRPC, [`Cloned`] for anything that can be cloned.
#[diagnostic::on_unimplemented(
    message = "a `{Req}` that is answered by a `{Res}` cannot be retried by `{Self}`",
    note = "`RetryLayer::new` is for `http::Request` and `http::Response`; for any other request that \
            is `Clone` use `RetryLayer::new(deps).cloning()`, and tell the registry what failures mean \
            and where calls go: `with_classifier`, `with_locate`",
    note = "a request whose body can be sent again has one that is `ReplayBody`"
)]
pub trait Protocol<Req, Res>: Clone + sealed::Sealed {
    /// What is kept of a request for a retry.
    type Snapshot;

    #[doc(hidden)]
    fn marks(&self, request: &Req) -> Marks;
    #[doc(hidden)]
    fn wish<'a>(&self, request: &'a Req, marks: Marks) -> Option<&'a RetryOverride>;
    #[doc(hidden)]
    fn snapshot(
        &self,
        request: &mut Req,
        marks: Marks,
        room: &ReplayLimits<'_>,
    ) -> Option<Self::Snapshot>;
    /// The time that the request itself gives the call.
    #[doc(hidden)]
    fn limit(&self, _request: &Req, _snapshot: Option<&Self::Snapshot>) -> Option<Duration> {
        None
    }
    #[doc(hidden)]
    fn is_original(&self, request: &Req, marks: Marks, snapshot: Option<&Self::Snapshot>) -> bool;
    #[doc(hidden)]
    fn mark_counted(&self, request: &mut Req);
    #[doc(hidden)]
    fn is_whole(&self, snapshot: &Self::Snapshot) -> bool;
    #[doc(hidden)]
    fn rebuild(
        &self,
        snapshot: &mut Option<Self::Snapshot>,
        attempt: Attempt,
        last: bool,
        rules: &Rules,
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

impl<B: ReplayBody, R: ResponseHead> Protocol<Request<B>, R> for Http {
    type Snapshot = HttpSnapshot<B::Recording>;

    fn marks(&self, request: &Request<B>) -> Marks {
        Marks::on(request.extensions())
    }

    fn wish<'a>(&self, request: &'a Request<B>, marks: Marks) -> Option<&'a RetryOverride> {
        match marks {
            Marks::Others => request.extensions().get(),
            _ => None,
        }
    }

    #[inline(always)]
    fn snapshot(
        &self,
        request: &mut Request<B>,
        marks: Marks,
        room: &ReplayLimits<'_>,
    ) -> Option<Self::Snapshot> {
        let head = Head::of(request, marks, room.limit())?;
        let body = Some(request.body_mut().record(room)?);
        Some(HttpSnapshot { head, body })
    }

    #[inline]
    fn limit(&self, request: &Request<B>, snapshot: Option<&Self::Snapshot>) -> Option<Duration> {
        let limit = match snapshot {
            Some(snapshot) => snapshot.head.get()?.grpc_timeout(),
            None => grpc_timeout(request.headers().get(TIMEOUT)?.as_bytes()),
        };
        // To anybody else it is a header like any other.
        limit.filter(|_| is_grpc(request.headers()))
    }

    #[inline(always)]
    fn is_original(
        &self,
        request: &Request<B>,
        marks: Marks,
        snapshot: Option<&Self::Snapshot>,
    ) -> bool {
        let told = snapshot.and_then(|snapshot| Some(snapshot.head.get()?.told()));
        origin_of(request, marks, told) == Origin::Original
    }

    fn mark_counted(&self, request: &mut Request<B>) {
        request.extensions_mut().insert(Counted);
    }

    fn is_whole(&self, snapshot: &Self::Snapshot) -> bool {
        snapshot.body.as_ref().is_some_and(B::is_whole)
    }

    fn rebuild(
        &self,
        snapshot: &mut Option<Self::Snapshot>,
        attempt: Attempt,
        last: bool,
        rules: &Rules,
    ) -> Option<Request<B>> {
        let snapshot = snapshot.as_mut()?;
        let parts = snapshot.head.get()?.rebuild()?;
        let body = match last {
            true => B::replay_last(snapshot.body.take()?)?,
            false => B::replay(snapshot.body.as_ref()?)?,
        };
        let mut request = Request::from_parts(parts, body);
        if attempt.wants_fresh_id() {
            renew_id(&mut request, &rules.request_id_header);
        }
        attempt.mark(&mut request, rules.send_attempt_count);
        Some(request)
    }

    fn admit_prepared(
        &self,
        snapshot: Option<&Self::Snapshot>,
        mut prepared: Request<B>,
        attempt: Attempt,
        rules: &Rules,
    ) -> Option<Request<B>> {
        let head = snapshot?.head.get()?;
        if !head.is_as_trusted(&prepared, &rules.key_header) {
            return None;
        }
        attempt.mark(&mut prepared, rules.send_attempt_count);
        Some(prepared)
    }

    fn labels<'a>(&self, snapshot: Option<&'a Self::Snapshot>, rules: &Rules) -> Labels<'a> {
        let head = snapshot.and_then(|snapshot| snapshot.head.get());
        Labels {
            correlation_id: head.and_then(Copied::correlation_id),
            idempotency_key: head.and_then(|head| head.text(&rules.key_header)),
        }
    }

    fn annotate(&self, response: &mut R, outcome: RetryOutcome) {
        response.extensions_mut().insert(outcome);
    }
}

/// Anything that can be cloned: events, messages, jobs. Per-call overrides and the marks that
/// layers leave for each other live in HTTP extensions, so there are none here.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cloned;

impl<Req: Clone, Res> Protocol<Req, Res> for Cloned {
    type Snapshot = Req;

    fn marks(&self, _request: &Req) -> Marks {
        Marks::Nothing
    }

    fn wish<'a>(&self, _request: &'a Req, _marks: Marks) -> Option<&'a RetryOverride> {
        None
    }

    fn snapshot(&self, request: &mut Req, _marks: Marks, _room: &ReplayLimits<'_>) -> Option<Req> {
        Some(request.clone())
    }

    fn is_original(&self, _request: &Req, _marks: Marks, _snapshot: Option<&Req>) -> bool {
        true
    }

    fn mark_counted(&self, _request: &mut Req) {}

    fn is_whole(&self, _snapshot: &Req) -> bool {
        true
    }

    fn rebuild(
        &self,
        snapshot: &mut Option<Req>,
        _attempt: Attempt,
        last: bool,
        _rules: &Rules,
    ) -> Option<Req> {
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

/// Gives a request another id than the one that was refused.
fn renew_id<B>(request: &mut Request<B>, header: &HeaderName) {
    let id = IdempotencyKey::random().into_header(false);
    if let Some(known) = request.extensions_mut().get_mut::<RequestId>() {
        *known = RequestId::new(id.clone());
    }
    request.headers_mut().insert(header, id);
}
