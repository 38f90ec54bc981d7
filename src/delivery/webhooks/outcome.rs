use std::{error::Error, fmt, time::Duration};

use http::StatusCode;

use crate::call::{Cause, Retryable, Verdict};

/// The result of one delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum DeliveryOutcome {
    /// The receiver replied with a status of 200 to 299.
    Delivered(StatusCode),
    /// Any other result.
    Failed(DeliveryFailure),
}

/// The cause of a failed delivery, and whether it is worth another one.
///
/// It holds no part of the reply's body and none of the URL, so that it can be shown to the user who
/// registered the webhook.
///
/// | failure | retried |
/// | --- | --- |
/// | 408 429 500 502 503 504, after `Retry-After` | yes |
/// | 425 | once |
/// | any other 4xx or 5xx; 410 ends the subscription | no |
/// | a redirect (none is followed) | no |
/// | refused, reset or broken connection, timeout | yes |
/// | a name that does not resolve | once |
/// | an untrusted certificate, or another failure of TLS | no |
/// | a target that the guard refuses | no |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryFailure {
    cause: Cause,
    retry: Retryable,
    retry_after: Option<Duration>,
}

impl DeliveryFailure {
    pub(super) fn of(verdict: Verdict) -> Self {
        Self {
            cause: verdict.cause,
            retry: verdict.retry,
            retry_after: verdict.repeat_after(),
        }
    }

    /// A status that is neither success nor error, such as a redirect.
    pub(super) fn unfollowed(status: StatusCode) -> Self {
        Self::of(Verdict::terminal(Cause::Status(status)))
    }

    pub(super) fn forbidden() -> Self {
        Self::of(Verdict::terminal(Cause::Other("forbidden_target")))
    }

    /// Returns the cause.
    #[must_use]
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// Returns the status of the reply, if there was one.
    #[must_use]
    pub fn status(&self) -> Option<StatusCode> {
        match self.cause {
            Cause::Status(status) => Some(status),
            _ => None,
        }
    }

    /// Whether another delivery may succeed, after so many earlier failures in a row for the same
    /// cause. If not, the message is a dead letter.
    #[must_use]
    pub fn is_retryable(&self, in_a_row_before: u32) -> bool {
        match self.retry {
            Retryable::Yes => true,
            Retryable::MaxPerCause(times) | Retryable::MaxRetries(times) => in_a_row_before < times,
            // A webhook has no credentials to refresh and no id to renew.
            Retryable::Never | Retryable::AfterRefresh | Retryable::FreshId => false,
        }
    }

    /// Returns the wait that the receiver asked for.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Whether the receiver ended the subscription: 410.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.status() == Some(StatusCode::GONE)
    }

    /// Whether the failure needs attention at once: an untrusted certificate, or a target that the
    /// guard refuses.
    #[must_use]
    pub fn is_alarming(&self) -> bool {
        matches!(
            self.cause,
            Cause::Certificate | Cause::Other("forbidden_target")
        )
    }
}

impl fmt::Display for DeliveryFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "delivery failed: {}", self.cause)
    }
}

impl Error for DeliveryFailure {}
