use std::{sync::Arc, time::SystemTime};

use bytes::Bytes;
use http::{Request, Response};

use super::{Consumed, NotConsumed};
use crate::{
    call::{Cause, FailedAttempts, RetryOutcome, StopReason},
    classify::{Classify, Rules, Standard, network},
    error::{BoxError, chain, find},
};

/// The response of a consumer, which may say that it failed.
///
/// An event is acknowledged for a response without a failure. An [`http::Response`] is one if its
/// status is, after however many retries; plain values never are. For a type of your own implement
/// it, with an empty block if it means success; for one that is neither yours nor of a kind listed
/// here, convert it (`ServiceExt::map_response`).
#[diagnostic::on_unimplemented(
    message = "it is not known whether a `{Self}` says that its event failed",
    note = "implement `EventResponse` for it, or return `()`: an event that failed must not be acknowledged"
)]
pub trait EventResponse {
    /// Returns how the consumer failed; `None` if it processed the event.
    fn failure(&self) -> Option<EventFailure> {
        None
    }
}

/// A failure of a consumer, for its dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventFailure {
    reason: String,
    cause: Option<String>,
    attempts: u32,
    history: Vec<(SystemTime, String)>,
}

impl EventFailure {
    /// Creates the failure of a single attempt, with a reason for people.
    pub fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            cause: None,
            attempts: 1,
            history: Vec::new(),
        }
    }

    /// Names the cause, in words that can be logged and sent on.
    #[must_use]
    pub fn cause(mut self, cause: impl Into<String>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Returns the attempts that were made.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Iterates over the attempts of a retry layer: when each failed, and its cause.
    pub fn history(&self) -> impl Iterator<Item = (SystemTime, &str)> {
        self.history.iter().map(|(at, cause)| (*at, &**cause))
    }

    /// Returns the reason, for people.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns the cause, if it is known, in words that can be logged and sent on.
    #[must_use]
    pub fn known_cause(&self) -> Option<&str> {
        self.cause.as_deref()
    }

    /// Reads an error and its sources.
    #[cfg_attr(not(feature = "delivery"), allow(dead_code))]
    pub(crate) fn of_error(error: &BoxError) -> Self {
        if let Some(NotConsumed::Failed(failure)) = find::<NotConsumed>(&**error) {
            return failure.clone();
        }
        let outcome = RetryOutcome::of_error(&**error);
        let mut reason = String::new();
        for error in chain(&**error) {
            let text = error.to_string();
            // Many errors repeat their source in their own words.
            if reason.is_empty() {
                reason = text;
            } else if !reason.ends_with(&text) {
                reason = format!("{reason}: {text}");
            }
        }
        let known = network::classify(&Rules::standard(), &**error).cause;
        Self::retried(reason, known, outcome, FailedAttempts::of_error(&**error))
    }

    fn retried(
        reason: String,
        cause: Cause,
        outcome: Option<&RetryOutcome>,
        failed: Option<&FailedAttempts>,
    ) -> Self {
        let stopped = outcome.and_then(RetryOutcome::stop_reason);
        let cause = match cause {
            Cause::Unknown => stopped.map(|stopped| stopped.to_string()),
            known => Some(known.to_string()),
        };
        Self {
            reason,
            cause,
            attempts: outcome.map_or(1, RetryOutcome::attempts).max(1),
            history: failed
                .into_iter()
                .flat_map(FailedAttempts::iter)
                .map(|(at, cause)| (at, cause.to_string()))
                .collect(),
        }
    }
}

impl<B> EventResponse for Response<B> {
    fn failure(&self) -> Option<EventFailure> {
        let rules = Rules::standard();
        let verdict = Classify::<Request<()>, _>::classify(&Standard, &rules, Ok(self));
        if verdict.is_success() {
            return None;
        }
        let outcome = RetryOutcome::of(self);
        let stopped = outcome.and_then(RetryOutcome::stop_reason);
        let stopped =
            stopped.map_or_else(String::new, |stopped: StopReason| format!(" ({stopped})"));
        let reason = format!("replied {}{stopped}", self.status().as_u16());
        let failed = FailedAttempts::of(self);
        Some(EventFailure::retried(
            reason,
            verdict.cause,
            outcome,
            failed,
        ))
    }
}

impl<R: EventResponse> EventResponse for Consumed<R> {
    fn failure(&self) -> Option<EventFailure> {
        match self {
            Self::Processed(response) => response.failure(),
            _ => None,
        }
    }
}

macro_rules! successes {
    ($($type:ty),*) => {
        $(impl EventResponse for $type {})*
    };
}

successes!(
    (),
    bool,
    char,
    u8,
    u16,
    u32,
    u64,
    u128,
    usize,
    i8,
    i16,
    i32,
    i64,
    i128,
    isize
);
successes!(f32, f64, String, &'static str, Bytes);

impl<T> EventResponse for Vec<T> {}
impl<T> EventResponse for Option<T> {}
impl<T> EventResponse for Box<T> {}
impl<T> EventResponse for Arc<T> {}
