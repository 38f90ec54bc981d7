use std::{error::Error, fmt, time::Duration};

use http::StatusCode;

use crate::call::{Cause, Retryable, Verdict};

/// How one delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// The receiver has it: a status of 200 to 299.
    Delivered(StatusCode),
    /// It has not, as far as can be told.
    Failed(Failure),
}

/// Why a delivery failed, and what that means for the next one.
///
/// There is nothing in it of the receiver's words, and nothing of the URL: it can be shown to
/// whoever registered the webhook.
///
/// | failure | delivered again |
/// | --- | --- |
/// | 408 429 500 502 503 504, after `Retry-After` | yes |
/// | 425 | once |
/// | any other 4xx or 5xx; 410 ends the subscription | no |
/// | a redirect, which is not followed | no |
/// | refused, reset or broken connection, timeout | yes |
/// | a name that does not resolve | once |
/// | a certificate that is not to be trusted, or TLS that fails otherwise | no |
/// | a target that the guard refuses | no |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    cause: Cause,
    retry: Retryable,
    retry_after: Option<Duration>,
}

impl Failure {
    pub(super) fn error(verdict: Verdict) -> Self {
        Self {
            cause: verdict.cause,
            retry: verdict.retry,
            retry_after: verdict.not_before(),
        }
    }

    /// A redirect, or another status that is neither success nor error.
    pub(super) fn unfollowed(status: StatusCode) -> Self {
        Self::error(Verdict::terminal(Cause::Status(status)))
    }

    pub(super) fn forbidden() -> Self {
        Self::error(Verdict::terminal(Cause::Other("forbidden_target")))
    }

    /// What happened.
    #[must_use]
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// The status of the reply, if there was one.
    #[must_use]
    pub fn status(&self) -> Option<StatusCode> {
        match self.cause {
            Cause::Status(status) => Some(status),
            _ => None,
        }
    }

    /// Whether the message is to be delivered again, if the deliveries before this one failed so
    /// many times in a row for the same cause. What is not belongs with the dead letters.
    #[must_use]
    pub fn is_retryable(&self, in_a_row_before: u32) -> bool {
        match self.retry {
            Retryable::Yes => true,
            Retryable::MaxConsecutive(times) | Retryable::MaxRetries(times) => {
                in_a_row_before < times
            }
            // There are no other credentials to come back with.
            Retryable::Never | Retryable::AfterRefresh | Retryable::FreshId => false,
        }
    }

    /// How long the receiver asked to be left alone.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Whether the receiver wants no more messages, of this or of any id: 410.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.status() == Some(StatusCode::GONE)
    }

    /// Whether somebody should be told at once: the receiver can't prove who it is, or the target
    /// is one that the guard refuses.
    #[must_use]
    pub fn is_alarming(&self) -> bool {
        matches!(
            self.cause,
            Cause::Certificate | Cause::Other("forbidden_target")
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "delivery failed: {}", self.cause)
    }
}

impl Error for Failure {}
