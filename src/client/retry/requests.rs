use std::{marker::PhantomData, sync::Arc, time::Duration};

use http::{HeaderName, Request};
use tokio::time::Instant;
use tower_http::request_id::RequestId;

use super::{ReplayBody, ReplayLimits, head_snapshot::HeadSnapshot};
use crate::{
    call::{
        Attempt, CallDeadline, CallerContext, FailedAttempts, IdempotencyKey, PrepareError,
        RetryOutcome,
        attempt_headers::{AttemptHeaders, Origin, TIMEOUT, origin_of},
        budget_mark::{BudgetMark, ExtensionsKind},
        caller::NestedFailure,
        hedged::is_hedged,
        hop::{Hop, refresh_deadline},
    },
    classify::{KeysHonoured, Rules},
    client::pool::Pooled,
    dependency::Dependency,
    http::{
        UnreadBody,
        grpc::{grpc_timeout, is_grpc},
        response::ResponseHead,
    },
    policy::{CallLimits, Policy},
    telemetry::Labels,
};

/// A sort of request that the retry loop can send again: [`HttpRequests`] for HTTP and gRPC,
/// [`ClonedRequests`] for anything that is `Clone`.
#[diagnostic::on_unimplemented(
    message = "a `{Req}` that is answered by a `{Res}` cannot be retried by `{Self}`",
    note = "`RetryLayer::new` is for `http::Request` and `http::Response`; for any other request that \
            is `Clone` use `RetryLayer::new(deps).cloning()`, and tell the registry what failures mean \
            and where calls go: `with_classifier`, `with_locate_message`",
    note = "a request whose body can be sent again has one that is `ReplayBody`"
)]
pub trait ReplayRequests<Req, Res>: Clone + sealed::Sealed {
    /// The copy of a request from which retries are made.
    type Snapshot;

    /// Reads the limits of a new call, and takes a snapshot unless it is never retried.
    #[doc(hidden)]
    fn open(
        &self,
        request: &mut Req,
        policy: &Policy,
        replay: &ReplayLimits<'_>,
    ) -> Opened<Self::Snapshot>;

    /// Returns whether a request is safe to repeat, as far as its kind tells, or else how it was
    /// located.
    #[doc(hidden)]
    fn repeatable(&self, request: &Req, rules: &Rules, located: impl FnOnce() -> bool) -> bool;

    /// Notes on a request that it was counted as an original of this dependency.
    #[doc(hidden)]
    fn mark_counted(&self, request: &mut Req, by: &Dependency);

    /// Notes on a request that it was charged as a repeat, after so many attempts.
    #[doc(hidden)]
    fn mark_charged(&self, request: &mut Req, by: &Dependency, previous: u32);

    /// Notes on a first attempt what the layers below and the next hop have to know about its call.
    #[doc(hidden)]
    fn mark_first(&self, request: &mut Req, first: FirstAttempt, rules: &Rules);

    /// Tells the next hop how much time is left, right before a retry goes out.
    #[doc(hidden)]
    fn refresh(&self, request: &mut Req, rules: &Rules);

    /// Returns whether a hedge can be made of a snapshot, for which the rest of a body may be read.
    #[doc(hidden)]
    fn is_complete(&self, snapshot: &Self::Snapshot) -> bool;

    /// Returns whether a retry can be made of a snapshot, whose body may still be to come.
    #[doc(hidden)]
    fn is_replayable(&self, snapshot: &Self::Snapshot) -> bool {
        self.is_complete(snapshot)
    }

    /// Makes the request of a retry. The last one may consume the body.
    #[doc(hidden)]
    fn rebuild(
        &self,
        snapshot: &mut Option<Self::Snapshot>,
        attempt: Attempt,
        last: bool,
        rules: &Rules,
    ) -> Option<Req>;

    /// Returns the request that a hook prepared, unless it lost credentials or its key.
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
    fn annotate(
        &self,
        response: &mut Res,
        outcome: RetryOutcome,
        prepare: Option<PrepareError>,
        failed: Option<FailedAttempts>,
    );

    /// Returns whether a response keeps its connection, since its body goes on.
    #[doc(hidden)]
    fn is_unread(&self, response: &Res) -> bool;

    /// Returns whether a hedge went out for a response that failed, and is counted.
    #[doc(hidden)]
    fn is_hedged(&self, _response: &Res) -> bool {
        false
    }
}

/// A call that is about to begin.
#[derive(Debug)]
pub struct Opened<Snapshot> {
    pub(super) limits: CallLimits,
    pub(super) snapshot: Option<Snapshot>,
    pub(super) origin: Origin,
    pub(super) caller: OfCaller,
}

/// The part of a call that its caller decides, if that is known.
#[derive(Debug, Default)]
pub(super) struct OfCaller {
    /// The time at which the limits were set by the caller's deadline.
    pub(super) began: Option<Instant>,
    /// The caller's deadline has passed.
    pub(super) is_late: bool,
    /// Where the caller's server layer wants to know that the call failed for good.
    pub(super) nested: Option<Arc<NestedFailure>>,
}

impl OfCaller {
    /// Keeps a call within the limits of its caller.
    #[inline(always)]
    fn limit(caller: Option<CallerContext>, limits: &mut CallLimits, policy: &Policy) -> Self {
        match caller {
            Some(caller) => Self::limit_by(&caller, limits, policy),
            None => Self::default(),
        }
    }

    #[cold]
    fn limit_by(caller: &CallerContext, limits: &mut CallLimits, policy: &Policy) -> Self {
        let (now, total) = (Instant::now(), limits.total);
        Self {
            is_late: limits.keep_within(policy, caller, now).is_err(),
            // The policy's own time begins with the first poll.
            began: (limits.total < total).then_some(now),
            nested: caller.nested().cloned(),
        }
    }
}

/// The call of a first attempt.
#[derive(Debug, Clone, Copy)]
pub struct FirstAttempt {
    /// The end of the call's time, if it has one.
    pub(super) deadline: Option<Instant>,
    pub(super) hop: Hop,
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::HttpRequests {}
    impl<I> Sealed for super::ClonedRequests<I> {}
}

/// HTTP and gRPC: the head is copied into a recycled buffer, the body by its [`ReplayBody`].
#[derive(Debug, Clone, Copy, Default)]
pub struct HttpRequests {
    pub(crate) keys: KeysHonoured,
}

/// The snapshot of an HTTP request.
#[derive(Debug)]
pub struct HttpSnapshot<R> {
    head: Pooled<HeadSnapshot>,
    body: Option<R>,
}

impl<B: ReplayBody, R: ResponseHead> ReplayRequests<Request<B>, R> for HttpRequests {
    type Snapshot = HttpSnapshot<B::Recording>;

    #[inline(always)]
    fn open(
        &self,
        request: &mut Request<B>,
        policy: &Policy,
        replay: &ReplayLimits<'_>,
    ) -> Opened<Self::Snapshot> {
        let kind = ExtensionsKind::of(request.extensions());
        let overrides = match kind {
            ExtensionsKind::Other => request.extensions().get(),
            _ => None,
        };
        let mut limits = CallLimits::of(policy, overrides);
        let caller = CallerContext::of(match kind {
            ExtensionsKind::Other => Some(request.extensions()),
            _ => None,
        });
        let caller = OfCaller::limit(caller, &mut limits, policy);
        let snapshot = match limits.max_retries {
            0 => None,
            _ => snapshot(request, kind, replay),
        };
        let headers = snapshot.as_ref().map(|snapshot| snapshot.head.attempt);
        let timeout = match headers {
            Some(headers) => headers.timeout,
            None => timeout_of(request),
        };
        // Outside of gRPC it is a header like any other.
        if let Some(timeout) = timeout
            && is_grpc(request.headers())
        {
            limits.total = limits.total.min(timeout);
        }
        Opened {
            limits,
            origin: origin_of(
                request,
                replay.dependency().registry(),
                kind,
                headers.map(|headers| headers.previous),
            ),
            snapshot,
            caller,
        }
    }

    #[inline]
    fn repeatable(&self, request: &Request<B>, rules: &Rules, _: impl FnOnce() -> bool) -> bool {
        // No locator forbids what these rules allow.
        rules.repeatable(request, self.keys)
    }

    fn mark_counted(&self, request: &mut Request<B>, by: &Dependency) {
        request.extensions_mut().insert(BudgetMark(by.registry()));
    }

    #[cold]
    fn mark_charged(&self, request: &mut Request<B>, by: &Dependency, previous: u32) {
        let mut charged = Attempt::charged_elsewhere(previous, by.registry());
        if let Some(&CallDeadline { at, hop }) = request.extensions().get() {
            charged = charged.within(at, hop);
        }
        request.extensions_mut().insert(charged);
    }

    #[cold]
    fn mark_first(&self, request: &mut Request<B>, first: FirstAttempt, rules: &Rules) {
        let FirstAttempt { deadline, hop } = first;
        if hop.passes_on {
            hop.write_attempt(request, 0, rules.send_attempt_count);
            hop.write_deadline(request, deadline, &rules.deadline_header);
        }
        if let Some(at) = deadline {
            request.extensions_mut().insert(CallDeadline { at, hop });
        }
    }

    fn refresh(&self, request: &mut Request<B>, rules: &Rules) {
        refresh_deadline(request, &rules.deadline_header);
    }

    fn is_complete(&self, snapshot: &Self::Snapshot) -> bool {
        snapshot.body.as_ref().is_some_and(B::is_complete)
    }

    fn is_replayable(&self, snapshot: &Self::Snapshot) -> bool {
        snapshot.body.as_ref().is_some_and(B::is_replayable)
    }

    fn rebuild(
        &self,
        snapshot: &mut Option<Self::Snapshot>,
        attempt: Attempt,
        last: bool,
        rules: &Rules,
    ) -> Option<Request<B>> {
        let snapshot = snapshot.as_mut()?;
        let parts = snapshot.head.rebuild()?;
        let body = match last {
            true => B::replay_last(snapshot.body.take()?)?,
            false => B::replay(snapshot.body.as_ref()?)?,
        };
        let mut request = Request::from_parts(parts, body);
        if attempt.wants_fresh_id() {
            renew_id(&mut request, &rules.request_id_header);
        }
        attempt.mark(
            &mut request,
            rules.send_attempt_count,
            &rules.deadline_header,
        );
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
        attempt.mark(
            &mut prepared,
            rules.send_attempt_count,
            &rules.deadline_header,
        );
        Some(prepared)
    }

    fn labels<'a>(&self, snapshot: Option<&'a Self::Snapshot>, rules: &Rules) -> Labels<'a> {
        let Some(head) = snapshot.map(|snapshot| &snapshot.head) else {
            return Labels::default();
        };
        Labels {
            correlation_id: head.correlation_id(),
            idempotency_key: head.text(&rules.key_header),
        }
    }

    fn annotate(
        &self,
        response: &mut R,
        outcome: RetryOutcome,
        prepare: Option<PrepareError>,
        failed: Option<FailedAttempts>,
    ) {
        let extensions = response.extensions_mut();
        extensions.insert(outcome);
        if let Some(failed) = failed {
            extensions.insert(failed);
        }
        if let Some(prepare) = prepare {
            extensions.insert(prepare);
        }
    }

    fn is_unread(&self, response: &R) -> bool {
        response.extensions().get::<UnreadBody>().is_some()
    }

    fn is_hedged(&self, response: &R) -> bool {
        is_hedged(response)
    }
}

impl<R> HttpSnapshot<R> {
    /// Returns its headers about attempts. Outside of gRPC a `grpc-timeout` is a header like any other.
    #[inline]
    pub(crate) fn attempt(&self) -> AttemptHeaders {
        self.head.attempt
    }
}

/// Takes a snapshot of a request, if it can be sent again.
#[inline(always)]
pub(crate) fn snapshot<B: ReplayBody>(
    request: &mut Request<B>,
    kind: ExtensionsKind,
    replay: &ReplayLimits<'_>,
) -> Option<HttpSnapshot<B::Recording>> {
    let head = HeadSnapshot::of(request, kind)?;
    let body = Some(request.body_mut().record(replay)?);
    Some(HttpSnapshot { head, body })
}

fn timeout_of<B>(request: &Request<B>) -> Option<Duration> {
    grpc_timeout(request.headers().get(TIMEOUT)?.as_bytes())
}

/// Replaces a request id that was refused.
fn renew_id<B>(request: &mut Request<B>, header: &HeaderName) {
    let id = IdempotencyKey::random().into_header(false);
    if let Some(known) = request.extensions_mut().get_mut::<RequestId>() {
        *known = RequestId::new(id.clone());
    }
    request.headers_mut().insert(header, id);
}

/// Anything that is `Clone`: events, messages, jobs. Overrides for one call and the marks that
/// layers leave for each other are HTTP extensions, so there are none here.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClonedRequests<I = WithoutIds> {
    ids: PhantomData<I>,
}

/// The ids of a request that is not HTTP's, for the logs of its retries, and its attempts, for the
/// service that it goes to.
pub trait RequestIds {
    /// Returns the id that ties the request to others.
    fn correlation_id(&self) -> Option<&str> {
        None
    }

    /// Returns the key under which all attempts are one operation, such as the id of an event.
    fn idempotency_key(&self) -> Option<&str> {
        None
    }

    /// Tells a request which attempt it is about to be, from the first retry on: for a header of a
    /// message broker, or for the handler's logs. The first attempt is not told.
    fn set_attempt(&mut self, _attempt: Attempt) {}
}

/// The ids of no request.
#[derive(Debug, Clone, Copy, Default)]
pub struct WithoutIds;

/// The ids that a request has as [`RequestIds`].
#[derive(Debug, Clone, Copy, Default)]
pub struct WithIds;

/// Reads the labels of a request.
trait ReadIds<Req>: Copy {
    fn labels(request: &Req) -> Labels<'_>;

    /// Tells a request which attempt it is.
    fn set_attempt(_: &mut Req, _: Attempt) {}
}

impl<Req> ReadIds<Req> for WithoutIds {
    fn labels(_: &Req) -> Labels<'_> {
        Labels::default()
    }
}

impl<Req: RequestIds> ReadIds<Req> for WithIds {
    fn labels(request: &Req) -> Labels<'_> {
        Labels {
            correlation_id: request.correlation_id(),
            idempotency_key: request.idempotency_key(),
        }
    }

    fn set_attempt(request: &mut Req, attempt: Attempt) {
        request.set_attempt(attempt);
    }
}

#[allow(private_bounds, reason = "the ids are sealed")]
impl<Req: Clone, Res, I: ReadIds<Req>> ReplayRequests<Req, Res> for ClonedRequests<I> {
    type Snapshot = Req;

    fn open(&self, request: &mut Req, policy: &Policy, _: &ReplayLimits<'_>) -> Opened<Req> {
        let mut limits = CallLimits::of(policy, None);
        let caller = OfCaller::limit(CallerContext::of(None), &mut limits, policy);
        Opened {
            limits,
            caller,
            snapshot: (limits.max_retries > 0).then(|| request.clone()),
            origin: Origin::Original,
        }
    }

    fn repeatable(&self, _: &Req, _: &Rules, located: impl FnOnce() -> bool) -> bool {
        located()
    }

    fn mark_counted(&self, _: &mut Req, _: &Dependency) {}

    fn mark_charged(&self, _: &mut Req, _: &Dependency, _: u32) {}

    fn mark_first(&self, _: &mut Req, _: FirstAttempt, _: &Rules) {}

    fn refresh(&self, _: &mut Req, _: &Rules) {}

    fn is_complete(&self, _: &Req) -> bool {
        true
    }

    fn rebuild(
        &self,
        snapshot: &mut Option<Req>,
        attempt: Attempt,
        _: bool,
        _: &Rules,
    ) -> Option<Req> {
        // The last one too leaves the ids for the logs.
        let mut request = snapshot.clone()?;
        I::set_attempt(&mut request, attempt);
        Some(request)
    }

    fn admit_prepared(&self, _: Option<&Req>, prepared: Req, _: Attempt, _: &Rules) -> Option<Req> {
        Some(prepared)
    }

    fn labels<'a>(&self, snapshot: Option<&'a Req>, _: &Rules) -> Labels<'a> {
        snapshot.map_or_else(Labels::default, I::labels)
    }

    fn annotate(
        &self,
        _: &mut Res,
        _: RetryOutcome,
        _: Option<PrepareError>,
        _: Option<FailedAttempts>,
    ) {
    }

    fn is_unread(&self, _: &Res) -> bool {
        false
    }
}
