use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::Extensions;
use pin_project_lite::pin_project;
use tokio::{task::futures::TaskLocalFuture, time::Instant};

use super::StopReason;

tokio::task_local! {
    /// The caller of the request that the task serves.
    static CURRENT: Option<CallerContext>;
}

/// A future that runs in the scope of a [`CallerContext`].
pub(crate) type InScope<F> = TaskLocalFuture<Option<CallerContext>, F>;

pin_project! {
    /// A future that runs in a scope, or as it is: a scope takes 800 instructions (callgrind).
    #[project = MaybeInScopeProj]
    pub(crate) enum MaybeInScope<F> {
        Scoped { #[pin] future: InScope<F> },
        Plain { #[pin] future: F },
    }
}

impl<F: Future> Future for MaybeInScope<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.project() {
            MaybeInScopeProj::Scoped { future } => future.poll(cx),
            MaybeInScopeProj::Plain { future } => future.poll(cx),
        }
    }
}

/// The deadline and the attempt number of the caller of a request that is being served. Client layers
/// go by it: a call ends by that deadline, tells the next hop what is left of it, and is not retried
/// if the request is a retry already.
///
/// A [`DeadlineLayer`](crate::DeadlineLayer) makes it of a request's headers. The client layers find
/// it in the extensions of the request that they send, or else in the scope of the task:
///
/// ```
/// use std::time::Duration;
/// use tower_reprise::call::CallerContext;
///
/// // By hand, where no server layer does: this call ends within 300 ms, and says so.
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(CallerContext::within(Duration::from_millis(300)));
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// // A task that a handler spawns has no scope until it is given one.
/// let caller = CallerContext::current().unwrap_or_default();
/// tokio::spawn(caller.scope(async { /* calls go by the handler's caller */ }));
/// # }
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct CallerContext {
    deadline: Option<Instant>,
    previous: u16,
    retries_repeats: bool,
    nested: Option<Arc<NestedFailure>>,
}

impl CallerContext {
    /// A caller that waits for so long from now.
    pub fn within(time: Duration) -> Self {
        // A time past the clock's end is no limit.
        Self {
            deadline: Instant::now().checked_add(time),
            ..Self::default()
        }
    }

    /// Sets the number of attempts that the caller made before the one that is being served.
    pub fn retry(mut self, previous: u32) -> Self {
        self.previous = u16::try_from(previous).unwrap_or(u16::MAX);
        self
    }

    /// Lets calls be retried even if the request that is being served is a retry.
    pub fn retry_repeats(mut self) -> Self {
        self.retries_repeats = true;
        self
    }

    /// Has client layers note when they give up.
    pub(crate) fn noting(mut self, nested: Arc<NestedFailure>) -> Self {
        self.nested = Some(nested);
        self
    }

    /// Returns the context with what another one knows besides: the sooner deadline, the greater
    /// number.
    pub(crate) fn and(mut self, other: Option<&Self>) -> Self {
        if let Some(other) = other {
            self.deadline = match (self.deadline, other.deadline) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
            self.previous = self.previous.max(other.previous);
        }
        self
    }

    /// Returns whether nothing is known, and nobody wants to know.
    pub(crate) fn is_empty(&self) -> bool {
        self.deadline.is_none() && self.previous == 0 && self.nested.is_none()
    }

    /// Returns the context of the request that the present task serves, if there is one.
    #[must_use]
    #[inline]
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Clone::clone).ok().flatten()
    }

    /// Returns the context for a request with these extensions: their own, or else the task's.
    #[inline(always)]
    pub(crate) fn of(extensions: Option<&Extensions>) -> Option<Self> {
        let own = extensions.and_then(Extensions::get::<Self>);
        // Most calls have none, and need no copy of one.
        match own.is_some() || CURRENT.try_with(Option::is_some).unwrap_or_default() {
            true => Self::clone_of(own),
            false => None,
        }
    }

    #[cold]
    fn clone_of(own: Option<&Self>) -> Option<Self> {
        own.cloned().or_else(Self::current)
    }

    /// Runs a future in the scope of this context.
    pub fn scope<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        Self::carry(Some(self), future)
    }

    pub(crate) fn carry<F: Future>(caller: Option<Self>, future: F) -> InScope<F> {
        CURRENT.scope(caller, future)
    }

    pub(crate) fn sync_scope<T>(caller: Option<Self>, run: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(caller, run)
    }

    /// Returns the time by which the caller wants its reply.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the time that is left; zero once the deadline has passed.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        self.deadline.map(left)
    }

    /// Returns the number of attempts that the caller made before this one.
    #[must_use]
    pub fn previous_attempts(&self) -> u32 {
        self.previous.into()
    }

    /// Returns whether the request that is being served is a retry.
    pub(crate) fn serves_retry(&self) -> bool {
        self.previous > 0
    }

    /// Returns whether calls made in the course of this request may be retried.
    pub(crate) fn allows_retries(&self) -> bool {
        self.previous == 0 || self.retries_repeats
    }

    pub(crate) fn nested(&self) -> Option<&Arc<NestedFailure>> {
        self.nested.as_ref()
    }
}

/// Whether a call that was made to serve a request failed for good, so that a retry of the request
/// would only repeat what was given up.
#[derive(Debug, Default)]
pub(crate) struct NestedFailure(AtomicBool);

impl NestedFailure {
    /// Notes the end of a call. Relaxed: the reply, which is made of that end, carries the order.
    pub(crate) fn note(&self, reason: StopReason, attempts: u32) {
        if is_final(reason, attempts) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_noted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// On a response's extensions: a layer made it of an error after which a retry is of no use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GaveUp;

/// Returns whether a call that ended for this reason should not be made anew by a retry of the
/// request that it was made for. A call that is never retried leaves that to its caller.
pub(crate) fn is_final(reason: StopReason, attempts: u32) -> bool {
    match reason {
        StopReason::Exhausted => attempts > 1,
        StopReason::Deadline
        | StopReason::Budget
        | StopReason::Breaker
        | StopReason::Throttle
        | StopReason::Pushback => true,
        // The retries that the chain does not make are the caller's to make.
        StopReason::ChainStop
        | StopReason::NotRetryable
        | StopReason::NotIdempotent
        | StopReason::NotReplayable
        | StopReason::Prepare => false,
    }
}
