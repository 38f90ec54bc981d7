use std::{
    error::Error,
    fmt, io,
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::{
    call::{Cause, Effect},
    error::{BoxError, Elapsed, Refusal, Refused, chain, find},
    http::ResponseHead,
};

/// The reason why a call was not tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StopReason {
    /// All attempts were made.
    Exhausted,
    /// The time for the call is over, or would be over before the next attempt.
    Deadline,
    /// The dependency's retry budget is used up.
    Budget,
    /// The dependency's circuit breaker is open.
    Breaker,
    /// The dependency is overloaded, and the call was kept from it.
    Throttle,
    /// The failure is not of a sort that another call would mend.
    NotRetryable,
    /// The request may have had an effect, and carries no idempotency key.
    NotIdempotent,
    /// The request could not be kept, or its body could not.
    NotReplayable,
    /// The dependency said not to, or asked for more patience than a layer below has.
    Pushback,
    /// The per-attempt hook failed, or took away credentials: see [`PrepareError`].
    Prepare,
    /// The request that is being served is a retry: its caller calls again, and this hop does not.
    ChainStop,
}

impl StopReason {
    /// A stable name, for logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exhausted => "exhausted",
            Self::Deadline => "deadline",
            Self::Budget => "budget",
            Self::Breaker => "breaker",
            Self::Throttle => "throttle",
            Self::NotRetryable => "not_retryable",
            Self::NotIdempotent => "not_idempotent",
            Self::NotReplayable => "not_replayable",
            Self::Pushback => "pushback",
            Self::Prepare => "prepare",
            Self::ChainStop => "chain_stop",
        }
    }
}

impl StopReason {
    /// Returns the reason in words, for people.
    fn describe(self) -> &'static str {
        match self {
            Self::Exhausted => "retries exhausted",
            Self::Deadline => "out of time",
            Self::Budget => "retry budget used up",
            Self::Breaker => "circuit breaker open",
            Self::Throttle => "dependency overloaded",
            Self::NotRetryable => "not worth a retry",
            Self::NotIdempotent => "not safe to repeat",
            Self::NotReplayable => "request not kept",
            Self::Pushback => "told not to retry",
            Self::Prepare => "next attempt not prepared",
            Self::ChainStop => "retries are the caller's",
        }
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<Refusal> for StopReason {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Breaker => Self::Breaker,
            Refusal::Throttle => Self::Throttle,
            Refusal::RetryAfter => Self::Pushback,
            Refusal::Budget => Self::Budget,
            Refusal::Deadline => Self::Deadline,
        }
    }
}

/// The course of a call that did not succeed at once: the number of attempts, and the reason why
/// there were no more.
///
/// It is in the extensions of the response, or in the chain of the error:
///
/// ```
/// use tower_reprise::{RetryOutcome, call::StopReason};
///
/// fn explain<B>(response: &http::Response<B>) {
///     if let Some(outcome) = RetryOutcome::of(response) {
///         println!("{} attempts, {:?}", outcome.attempts(), outcome.stop_reason());
///     }
/// }
/// # explain(&http::Response::new(()));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryOutcome {
    attempts: u32,
    stop_reason: Option<StopReason>,
    before: Effect,
    suppressed: Option<Duration>,
}

impl RetryOutcome {
    /// `before` is the effect that other attempts may have had than the one that the result is of.
    pub(crate) fn new(attempts: u32, stop_reason: Option<StopReason>, before: Effect) -> Self {
        Self {
            attempts,
            stop_reason,
            before,
            suppressed: None,
        }
    }

    /// Adds the wait of a retry that the budget refused.
    pub(crate) fn suppressed(mut self, wait: Option<Duration>) -> Self {
        self.suppressed = wait;
        self
    }

    pub(crate) fn before(&self) -> Effect {
        self.before
    }

    /// Returns the outcome of the call that this response came from; `None` if it succeeded at once.
    #[must_use]
    pub fn of<R: ResponseHead>(response: &R) -> Option<&Self> {
        response.extensions().get()
    }

    /// Returns the outcome of the call that this error came from.
    #[must_use]
    pub fn of_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        find::<RetryError>(error).map(|error| &error.outcome)
    }

    /// Returns the number of attempts that were made.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Returns why there were no more; `None` if the last one succeeded.
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.stop_reason
    }

    /// Returns the wait that the next attempt would have had, if the budget refused it. A loop that calls
    /// again in any case, such as a long poll, waits for it first: the error itself is not delayed (G-4),
    /// and a dependency in trouble would be called without a pause.
    ///
    /// ```
    /// # use http::Response;
    /// # use tower_reprise::RetryOutcome;
    /// # async fn poll() -> Response<()> { Response::new(()) }
    /// # async fn receive() {
    /// let response = poll().await;
    /// if let Some(wait) = RetryOutcome::of(&response).and_then(|outcome| outcome.poll_after()) {
    ///     tokio::time::sleep(wait).await;
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn poll_after(&self) -> Option<Duration> {
        self.suppressed
    }

    /// Returns whether another attempt than the one that the response or the error is of may have
    /// been processed. Then a refused connection or a 503 speaks of that one attempt, and not of
    /// the call, which may have had its effect all the same. An attempt that a classifier of your
    /// own classified is in doubt unless its verdict says
    /// [`never_sent`](crate::call::Verdict::never_sent).
    #[must_use]
    pub fn in_doubt(&self) -> bool {
        self.before.in_doubt()
    }
}

/// The last error of a call, which is its [`source`](Error::source), unchanged.
///
/// It names the dependency and the root cause: `stock.example: connection refused (3 attempts,
/// retries exhausted)`.
#[derive(Debug)]
pub struct RetryError {
    outcome: RetryOutcome,
    source: BoxError,
    dependency: Option<Box<str>>,
    cause: Option<Cause>,
    prepare: Option<PrepareError>,
    failed: Option<FailedAttempts>,
}

impl RetryError {
    pub(crate) fn new(outcome: RetryOutcome, source: BoxError) -> Self {
        Self {
            outcome,
            source,
            dependency: None,
            cause: None,
            prepare: None,
            failed: None,
        }
    }

    /// Adds the dependency that was called, and the cause of its failure.
    pub(crate) fn dependency(mut self, dependency: &str, cause: Option<Cause>) -> Self {
        self.dependency = Some(dependency.into());
        self.cause = cause;
        self
    }

    /// Adds the failure of the hook that ended the call.
    pub(crate) fn prepare(mut self, prepare: Option<PrepareError>) -> Self {
        self.prepare = prepare;
        self
    }

    /// Adds the attempts that failed.
    pub(crate) fn failed(mut self, failed: Option<FailedAttempts>) -> Self {
        self.failed = failed;
        self
    }

    /// Returns whether an error is of a retry loop that called this dependency.
    pub(crate) fn is_of(error: &(dyn Error + 'static), dependency: &str) -> bool {
        let called = find::<Self>(error).and_then(|error| error.dependency.as_deref());
        called == Some(dependency)
    }

    /// Returns the outcome of the call.
    #[must_use]
    pub fn outcome(&self) -> &RetryOutcome {
        &self.outcome
    }

    /// Returns the last error itself.
    #[must_use]
    pub fn into_source(self) -> BoxError {
        self.source
    }
}

impl RetryError {
    /// Writes the cause in words of ours: the text of another's error may hold anything, and people
    /// log errors.
    fn root_cause(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(elapsed) = find::<Elapsed>(&*self.source) {
            return write!(f, "{elapsed}");
        }
        let known = |error: &&io::Error| error.kind() != io::ErrorKind::Other;
        let mut links = chain(&*self.source);
        if let Some(io) = links.find_map(|link| link.downcast_ref().filter(known)) {
            return write!(f, "{}", io.kind());
        }
        f.write_str(match self.cause {
            Some(Cause::Connect) => "connection failed",
            Some(Cause::Reset) => "connection reset",
            Some(Cause::Incomplete) => "reply incomplete",
            Some(Cause::Timeout) => "timed out",
            Some(Cause::Dns) => "host not found",
            Some(Cause::Certificate) => "certificate not trusted",
            Some(Cause::Tls) => "TLS failed",
            Some(Cause::Serialization) => "reply unreadable",
            Some(Cause::Configuration) => "request or client set up wrongly",
            Some(Cause::Unknown) | None => "call failed",
            Some(cause) => return write!(f, "{cause}"),
        })
    }
}

impl fmt::Display for RetryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RetryOutcome {
            attempts,
            stop_reason,
            ..
        } = self.outcome;
        match (Refused::find(&*self.source), &self.dependency) {
            (Some(refused), _) => write!(f, "{refused}")?,
            (None, dependency) => {
                if let Some(dependency) = dependency {
                    write!(f, "{dependency}: ")?;
                }
                self.root_cause(f)?;
            }
        }
        let plural = if attempts == 1 { "" } else { "s" };
        write!(f, " ({attempts} attempt{plural}")?;
        match stop_reason {
            Some(reason) => write!(f, ", {})", reason.describe()),
            None => f.write_str(")"),
        }
    }
}

impl Error for RetryError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// The failure of the hook that prepares a retry, which ended a call
/// ([`StopReason::Prepare`]). What the caller gets is the last real result; this is beside it, in the
/// extensions of the response or with the error:
///
/// ```
/// use tower_reprise::call::PrepareError;
///
/// fn explain<B>(response: &http::Response<B>) {
///     if let Some(error) = PrepareError::of(response) {
///         println!("no new token: {:?}", std::error::Error::source(error));
///     }
/// }
/// # explain(&http::Response::new(()));
/// ```
#[derive(Debug, Clone)]
pub struct PrepareError(Arc<dyn Error + Send + Sync>);

impl PrepareError {
    pub(crate) fn new(source: BoxError) -> Self {
        Self(source.into())
    }

    /// Returns why no further attempt could be prepared for the call of this response.
    #[must_use]
    pub fn of<R: ResponseHead>(response: &R) -> Option<&Self> {
        response.extensions().get()
    }

    /// Returns why no further attempt could be prepared for the call of this error.
    #[must_use]
    pub fn of_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        find::<RetryError>(error)?.prepare.as_ref()
    }
}

impl fmt::Display for PrepareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the next attempt could not be prepared")
    }
}

impl Error for PrepareError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

/// The id under which a dependency recorded an error (`ERROR_RECORDED`), for an escalation to its
/// operators. A [`PeekLayer`](crate::client::peek::PeekLayer) that reads codes leaves it beside the
/// [`RetryOutcome`]:
///
/// ```
/// use tower_reprise::call::ErrorRecord;
///
/// fn escalate<B>(response: &http::Response<B>) {
///     if let Some(record) = ErrorRecord::of(response) {
///         println!("recorded as {}", record.id());
///     }
/// }
/// # escalate(&http::Response::new(()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorRecord(Arc<str>);

impl ErrorRecord {
    /// The longest id, in bytes.
    const MAX_LEN: usize = 128;

    /// Returns a record of this id, if it is visible ASCII and not too long.
    #[cfg_attr(not(feature = "codes"), allow(dead_code))]
    pub(crate) fn new(id: &str) -> Option<Self> {
        let fits = (1..=Self::MAX_LEN).contains(&id.len());
        (fits && id.bytes().all(|byte| byte.is_ascii_graphic())).then(|| Self(id.into()))
    }

    /// Returns the record that a response names.
    #[must_use]
    pub fn of<R: ResponseHead>(response: &R) -> Option<&Self> {
        response.extensions().get()
    }

    /// Returns the id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.0
    }
}

/// The attempts of a call that went out and failed, where there was more than one. They are beside the
/// [`RetryOutcome`], in the extensions of the response or with the error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedAttempts(Arc<[(SystemTime, Cause)]>);

impl FailedAttempts {
    pub(crate) fn new(failed: Vec<(SystemTime, Cause)>) -> Option<Self> {
        (!failed.is_empty()).then(|| Self(failed.into()))
    }

    /// Returns the failed attempts of the call of this response.
    #[must_use]
    pub fn of<R: ResponseHead>(response: &R) -> Option<&Self> {
        response.extensions().get()
    }

    /// Returns the failed attempts of the call of this error.
    #[must_use]
    pub fn of_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        find::<RetryError>(error)?.failed.as_ref()
    }

    /// Iterates over the attempts: when each was found to have failed, and why.
    pub fn iter(&self) -> impl Iterator<Item = (SystemTime, Cause)> {
        self.0.iter().copied()
    }
}
