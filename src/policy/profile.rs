use std::{ops::RangeInclusive, time::Duration};

/// A kind of calls, with the defaults and ranges of its policies. The [module](super) has a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Profile {
    /// Calls that a user waits for.
    Synchronous,
    /// Events from a queue.
    Asynchronous,
    /// Webhook deliveries, which are counted as deliveries rather than retries.
    Webhook,
    /// Items of a batch job.
    BatchItem,
    /// Unary gRPC calls.
    GrpcUnary,
    /// The retry recipe that BlooBank publishes for clients of its API.
    Bank,
}

impl Profile {
    /// Returns the default number of retries.
    #[must_use]
    pub fn default_retries(self) -> u32 {
        match self {
            Self::Asynchronous => 5,
            Self::Webhook => 4,
            Self::Synchronous | Self::BatchItem | Self::GrpcUnary | Self::Bank => 3,
        }
    }

    /// Returns the allowed numbers of retries.
    #[must_use]
    pub fn retries(self) -> RangeInclusive<u32> {
        match self {
            Self::Asynchronous => 1..=10,
            Self::Webhook => 2..=7,
            Self::Synchronous | Self::BatchItem | Self::GrpcUnary | Self::Bank => 1..=5,
        }
    }

    /// Returns the default time limit of a call.
    #[must_use]
    pub fn default_total(self) -> Duration {
        match self {
            Self::BatchItem => Duration::from_secs(5 * 60),
            _ => self.longest(),
        }
    }

    /// Returns the longest time limit of a call.
    #[must_use]
    pub fn longest(self) -> Duration {
        match self {
            Self::Synchronous | Self::GrpcUnary | Self::Bank => Duration::from_secs(30),
            Self::Asynchronous | Self::Webhook | Self::BatchItem => Duration::from_secs(24 * 3600),
        }
    }

    /// Returns the default base of the backoff.
    #[must_use]
    pub fn default_base(self) -> Duration {
        match self {
            Self::Bank => Duration::from_millis(500),
            _ => crate::backoff::DEFAULT_BASE,
        }
    }

    /// Returns whether a policy needs a dead-letter queue.
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
            Self::Bank => "the BlooBank recipe",
        }
    }
}
