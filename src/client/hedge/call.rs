//! The state of one call, and the steps that its [future](super::future) takes with it.

use std::{
    cell::RefCell,
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    thread::LocalKey,
    time::Duration,
};

use http::Request;
use tokio::time::Instant;
use tower::Service;

use super::{
    decide,
    second::{Second, Sent},
};
use crate::{
    call::{
        Attempt, Verdict,
        hedged::mark_hedged,
        hop::{Hop, refresh_deadline},
    },
    classify::Classify,
    client::{
        pool::{Pool, Pooled, Reuse},
        retry::{HttpRequests, HttpSnapshot, ReplayBody, ReplayRequests},
        timer::Timer,
    },
    dependency::{Dependency, Event, Latency, Route},
    error::BoxError,
    http::ResponseHead,
    telemetry::{self, Hedged, Unhedged},
};

/// A call whose latency is measured, and that may get a second attempt.
pub(super) struct Call<S, C, B>
where
    S: Service<Request<B>>,
    B: ReplayBody,
{
    route: Arc<Route<S>>,
    classifier: C,
    requests: HttpRequests,
    plan: Plan<HttpSnapshot<B::Recording>>,
    watched: Pooled<Watched>,
    /// Boxed, so that calls without one are small.
    second: Option<BoxedSecond<S, B>>,
    /// The attempt that failed first, while the other one is out.
    failed: Option<Box<Failed<S::Response>>>,
}

type BoxedSecond<S, B> = Pin<Box<Second<S, Request<B>>>>;

/// The plan for a call that is late.
pub(super) enum Plan<Snapshot> {
    /// A hedge, made of this.
    Hedge(Snapshot),
    /// No hedge, for this reason.
    Never(Unhedged),
    /// Nothing: it was late already, or it is not known when it is.
    Done,
}

/// The part of a call that is the same for all types of requests. In a box of a pool: within the future
/// it would make every call of a client larger, hedged or not.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// The slot of the budget that this layer counted the original in.
    pub(super) counted: Option<u64>,
    /// The time after which it is late, if that was known when it began.
    pub(super) delay: Option<Duration>,
    /// The limits of its hedge, if one is planned.
    pub(super) limits: HedgeLimits,
    watch: Watch,
    timer: Timer,
}

impl Watched {
    /// Begins with a call that is late after this delay.
    #[inline]
    pub(super) fn begin(&mut self, delay: Option<Duration>) {
        (self.counted, self.delay, self.watch) = (None, delay, Watch::New);
    }
}

thread_local! {
    static POOL: Pool<Watched> = const { RefCell::new(Vec::new()) };
}

impl Reuse for Watched {
    fn pool() -> &'static LocalKey<Pool<Self>> {
        &POOL
    }

    #[inline]
    fn clear(self: Pin<&mut Self>) {
        self.get_mut().timer.unset();
    }
}

/// The limits of a hedge.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HedgeLimits {
    /// The attempt that the call is itself, if it is a retry.
    pub(super) previous: Option<Attempt>,
    /// The end of the call's time, if a layer above or the caller has set it.
    pub(super) deadline: Option<Instant>,
    /// The time of the call by its policy, which begins with the first poll.
    pub(super) total: Duration,
    pub(super) hop: Hop,
}

/// The measurement of the first attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Watch {
    /// It was not pending yet. One that is ready at once needs no clock.
    #[default]
    New,
    Since(Instant),
    Ended,
}

impl Watch {
    fn began(self) -> Instant {
        match self {
            Self::Since(began) => began,
            Self::New | Self::Ended => unreachable!("the first attempt is out when a call is late"),
        }
    }
}

struct Failed<Res> {
    result: Result<Res, BoxError>,
    verdict: Verdict,
}

impl<S, C, B> Call<S, C, B>
where
    S: Service<Request<B>>,
    B: ReplayBody,
{
    pub(super) fn new(
        route: Arc<Route<S>>,
        classifier: C,
        requests: HttpRequests,
        plan: Plan<HttpSnapshot<B::Recording>>,
        watched: Pooled<Watched>,
    ) -> Self {
        Self {
            route,
            classifier,
            requests,
            plan,
            watched,
            second: None,
            failed: None,
        }
    }

    pub(super) fn dependency(&self) -> &Arc<Dependency> {
        &self.route.dependency
    }

    /// Waits until a call that is pending is late. Never ready if no hedge is planned.
    pub(super) fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let watched = &mut *self.watched;
        if watched.watch == Watch::New {
            watched.watch = Watch::Since(Instant::now());
        }
        let late_at = match (&self.plan, watched.watch, watched.delay) {
            (Plan::Hedge(_), Watch::Since(began), Some(delay)) => began + delay,
            _ => return Poll::Pending,
        };
        ready!(watched.timer.poll_until(late_at, cx));
        watched.timer.unset();
        Poll::Ready(())
    }

    pub(super) fn is_hedged(&self) -> bool {
        self.second.as_ref().is_some_and(|second| second.is_sent())
    }

    pub(super) fn has_second(&self) -> bool {
        self.second.is_some()
    }

    /// Records how long the first attempt was out, and whether it was answered. Failures are often quick,
    /// and no answers.
    #[inline(always)]
    fn record(&mut self, answered: bool) {
        let took = match mem::replace(&mut self.watched.watch, Watch::Ended) {
            Watch::Since(began) => Some(began.elapsed()),
            Watch::New if answered => None,
            Watch::New | Watch::Ended => return,
        };
        let dependency = self.dependency();
        dependency.record_latency(took, answered);
        let late = took.zip(self.watched.delay);
        if let Plan::Never(reason) = self.plan
            && late.is_some_and(|(took, delay)| took >= delay)
        {
            telemetry::not_hedged(dependency.target(), reason);
        }
    }

    /// Settles the original, if this layer counted it.
    #[inline(always)]
    fn settle(&mut self, verdict: &Verdict) {
        let Some(slot) = self.watched.counted.take() else {
            return;
        };
        if verdict.is_success() {
            self.dependency().earn();
        } else if verdict.refusal().is_some() {
            self.dependency().uncount_original(slot);
        }
    }

    /// Drops the second attempt, if there is one.
    #[inline(always)]
    fn end_second(&mut self, result: Hedged) {
        if let Some(second) = self.second.take() {
            self.called_off(second, result);
        }
    }

    #[cold]
    fn called_off(&self, mut second: BoxedSecond<S, B>, result: Hedged) {
        match second.as_mut().sent() {
            Some(sent) => sent.ended(result),
            None => telemetry::not_hedged(self.dependency().target(), Unhedged::NotReady),
        }
    }
}

impl<S, C, B> Call<S, C, B>
where
    S: Service<Request<B>> + Clone,
    S::Response: ResponseHead,
    S::Error: Into<BoxError>,
    C: Classify<Request<B>, S::Response>,
    B: ReplayBody,
{
    /// Records the result of the first attempt. Returns its verdict, unless it ends the call.
    #[inline(always)]
    pub(super) fn first_ended(
        &mut self,
        result: Result<&mut S::Response, &mut BoxError>,
    ) -> Option<Verdict> {
        let answered = result.is_ok();
        let verdict = self.dependency().classify_for_all(&self.classifier, result);
        let is_final = decide::is_final(&verdict, answered);
        self.record(is_final);
        if !is_final && (self.is_hedged() || self.failed.is_some()) {
            return Some(verdict);
        }
        self.end_second(Hedged::Lost);
        self.settle(&verdict);
        None
    }

    /// Takes the result of an attempt that failed. Returns the result of the call, unless the other
    /// attempt may still succeed.
    pub(super) fn failed(
        &mut self,
        result: Result<S::Response, BoxError>,
        verdict: Verdict,
        other_is_out: bool,
    ) -> Option<Result<S::Response, BoxError>> {
        let failed = Failed { result, verdict };
        if other_is_out {
            // If the other one succeeds, no layer above sees what this one asked for.
            if let Some(asked) = verdict.not_before() {
                self.dependency().stay_away(asked);
            }
            self.failed = Some(Box::new(failed));
            return None;
        }
        let earlier = self.failed.take();
        let both_failed = earlier.is_some();
        let failed = match earlier {
            Some(earlier) if !decide::outweighs(&verdict, &earlier.verdict) => *earlier,
            _ => failed,
        };
        self.settle(&failed.verdict);
        let policy = self.dependency().policy().hedge();
        Some(
            match both_failed && policy.is_some_and(|hedge| hedge.counted) {
                true => mark_hedged(failed.result),
                false => failed.result,
            },
        )
    }

    /// Makes the second attempt of a call that is late, if there is to be one.
    pub(super) fn begin_second(&mut self) {
        let Plan::Hedge(snapshot) = mem::replace(&mut self.plan, Plan::Done) else {
            return;
        };
        match self.second_of(snapshot) {
            Ok(second) => self.second = Some(Box::pin(second)),
            Err(reason) => telemetry::not_hedged(self.dependency().target(), reason),
        }
    }

    fn second_of(
        &self,
        snapshot: HttpSnapshot<B::Recording>,
    ) -> Result<Second<S, Request<B>>, Unhedged> {
        let dependency = &self.route.dependency;
        if dependency.latency().is_none_or(Latency::is_one_of_many) {
            return Err(Unhedged::Slow);
        }
        if let Some(reason) = dependency.forbids_hedges() {
            return Err(reason);
        }
        let limits = self.watched.limits;
        let by_policy = self.watched.watch.began() + limits.total;
        let deadline = limits.deadline.map_or(by_policy, |at| at.min(by_policy));
        let attempt =
            Attempt::of_hedge(limits.previous, dependency.registry(), deadline, limits.hop);
        let requests = &self.requests;
        if !ReplayRequests::<Request<B>, S::Response>::is_complete(requests, &snapshot) {
            return Err(Unhedged::NotReplayable);
        }
        let rules = dependency.policy().rules();
        let mut snapshot = Some(snapshot);
        let rebuilt = ReplayRequests::<Request<B>, S::Response>::rebuild(
            requests,
            &mut snapshot,
            attempt,
            true,
            rules,
        );
        let request = rebuilt.ok_or(Unhedged::NotReplayable)?;
        Ok(Second::new(self.route.service(), request, deadline))
    }

    /// Polls the second attempt. Returns the result of the call if it is known, and `None` if the
    /// first attempt goes on alone.
    pub(super) fn poll_second(
        &mut self,
        first_is_out: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<S::Response, BoxError>>> {
        let Some(second) = self.second.as_mut() else {
            return Poll::Pending;
        };
        let (dependency, watch) = (&self.route.dependency, self.watched.watch);
        let admit = |request: &mut Request<B>, deadline| {
            let sent = admit(dependency, watch, deadline)?;
            let header = &dependency.policy().rules().deadline_header;
            refresh_deadline(request, header);
            Ok(sent)
        };
        let result = match ready!(second.as_mut().poll(cx, admit)) {
            Ok(result) => result,
            Err(reason) => {
                telemetry::not_hedged(dependency.target(), reason);
                self.second = None;
                return Poll::Ready(None);
            }
        };
        let mut result = result.map_err(Into::into);
        let verdict = dependency.classify_for_all(&self.classifier, result.as_mut());
        if verdict.refusal().is_some()
            && let Some(sent) = second.as_mut().sent()
        {
            sent.refused();
        }
        Poll::Ready(match decide::is_final(&verdict, result.is_ok()) {
            true => {
                self.record(false);
                self.end_second(Hedged::Won);
                self.settle(&verdict);
                Some(result)
            }
            false => {
                self.end_second(Hedged::Failed);
                self.failed(result, verdict, first_is_out)
            }
        })
    }
}

/// Lets a hedge go out whose service is ready, if it still may. The charge comes last, as it stays
/// even if the hedge fails.
fn admit(dependency: &Arc<Dependency>, watch: Watch, deadline: Instant) -> Result<Sent, Unhedged> {
    let now = Instant::now();
    if now >= deadline {
        return Err(Unhedged::Deadline);
    }
    if let Some(reason) = dependency.forbids_hedges() {
        return Err(reason);
    }
    let charge = dependency.charge_hedge().ok_or(Unhedged::Budget)?;
    let after = now.saturating_duration_since(watch.began());
    telemetry::hedge_sent(dependency.target(), after);
    dependency.happened(&Event::Hedge {
        dependency: dependency.name(),
        after,
    });
    Ok(Sent::new(Arc::clone(dependency), charge))
}

impl<S, C, B> Drop for Call<S, C, B>
where
    S: Service<Request<B>>,
    B: ReplayBody,
{
    #[inline]
    fn drop(&mut self) {
        self.record(false);
    }
}

impl<S, C, B> fmt::Debug for Call<S, C, B>
where
    S: Service<Request<B>>,
    B: ReplayBody,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("dependency", &self.dependency().name())
            .field("hedged", &self.is_hedged())
            .finish_non_exhaustive()
    }
}
