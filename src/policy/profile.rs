use std::{ops::RangeInclusive, time::Duration};

/// What sort of calls a policy is for, which decides its defaults and what may be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Profile {
    /// Calls that somebody waits for.
    Synchronous,
    /// Events from a queue.
    Asynchronous,
    /// Webhook deliveries, which are counted as deliveries rather than retries.
    Webhook,
    /// Items of a batch job.
    BatchItem,
    /// Unary gRPC calls.
    GrpcUnary,
    /// A bank's client recipe.
    Bank,
}

impl Profile {
    /// The retries a policy has unless told otherwise.
    #[must_use]
    pub fn default_retries(self) -> u32 {
        match self {
            Self::Asynchronous => 5,
            Self::Webhook => 4,
            Self::Synchronous | Self::BatchItem | Self::GrpcUnary | Self::Bank => 3,
        }
    }

    /// The retries a policy may have.
    #[must_use]
    pub fn retries(self) -> RangeInclusive<u32> {
        match self {
            Self::Asynchronous => 1..=10,
            Self::Webhook => 2..=7,
            Self::Synchronous | Self::BatchItem | Self::GrpcUnary | Self::Bank => 1..=5,
        }
    }

    /// The time a call has unless told otherwise.
    #[must_use]
    pub fn default_total(self) -> Duration {
        match self {
            Self::BatchItem => Duration::from_secs(5 * 60),
            _ => self.longest(),
        }
    }

    /// The most time a call may have.
    #[must_use]
    pub fn longest(self) -> Duration {
        match self {
            Self::Synchronous | Self::GrpcUnary | Self::Bank => Duration::from_secs(30),
            Self::Asynchronous | Self::Webhook | Self::BatchItem => Duration::from_secs(24 * 3600),
        }
    }

    /// The base of the backoff.
    #[must_use]
    pub fn default_base(self) -> Duration {
        match self {
            Self::Bank => Duration::from_millis(500),
            _ => crate::backoff::DEFAULT_BASE,
        }
    }

    /// Whether what could not be done must end in a dead-letter queue.
    #[must_use]
    pub fn needs_dead_letters(self) -> bool {
        matches!(self, Self::Asynchronous | Self::Webhook)
    }

    pub(super) fn calls(self) -> &'static str {
        match self {
            Self::Synchronous => "synchronous calls",
            Self::Asynchronous => "asynchronous events",
            Self::Webhook => "webhooks",
            Self::BatchItem => "batch items",
            Self::GrpcUnary => "unary gRPC calls",
            Self::Bank => "the bank recipe",
        }
    }
}
