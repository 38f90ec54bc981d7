use std::{fmt, ops::RangeInclusive, time::Duration};

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

/// A rule of the retry standard, by its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[non_exhaustive]
pub enum Rule {
    /// Exponential backoff with full or decorrelated jitter.
    #[cfg_attr(feature = "serde", serde(rename = "R-1"))]
    R1,
    /// A maximum retry count.
    #[cfg_attr(feature = "serde", serde(rename = "R-2"))]
    R2,
    /// A total duration.
    #[cfg_attr(feature = "serde", serde(rename = "R-3"))]
    R3,
    /// Only what is retryable is retried.
    #[cfg_attr(feature = "serde", serde(rename = "R-4"))]
    R4,
    /// Retry-After is kept.
    #[cfg_attr(feature = "serde", serde(rename = "R-5"))]
    R5,
    /// What is not idempotent is retried with a key only.
    #[cfg_attr(feature = "serde", serde(rename = "R-6"))]
    R6,
    /// A retry budget.
    #[cfg_attr(feature = "serde", serde(rename = "R-7"))]
    R7,
    /// A dead-letter queue.
    #[cfg_attr(feature = "serde", serde(rename = "R-8"))]
    R8,
}

impl Rule {
    /// What a difference from this rule has to get past. The standard's enforcement table says
    /// so for all but two: R-3 bounds the same loop as R-2 and is treated like it, and R-5 is kept
    /// whatever is configured.
    ///
    /// | rule | found | gate |
    /// | --- | --- | --- |
    /// | R-1 | fixed interval, or equal jitter | merge |
    /// | R-2, R-3 | more retries, or a longer time | review |
    /// | R-4 | retry on a status that is not retryable | merge |
    /// | R-6 | POST or PATCH retried without a key | merge |
    /// | R-7 | no retry budget, or a larger one | deployment |
    /// | R-8 | no dead-letter queue for asynchronous work | deployment |
    #[must_use]
    pub fn gate(self) -> Gate {
        match self {
            Self::R1 | Self::R4 | Self::R6 => Gate::Merge,
            Self::R7 | Self::R8 => Gate::Deployment,
            Self::R2 | Self::R3 | Self::R5 => Gate::Review,
        }
    }
}

/// Where a difference from the standard is stopped, unless it is approved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Gate {
    /// In continuous integration: it is not merged.
    Merge,
    /// At the review of production readiness: it is not deployed.
    Deployment,
    /// At the architecture board, which may approve it.
    Review,
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Merge => "blocks the merge",
            Self::Deployment => "blocks the deployment",
            Self::Review => "needs the board's approval",
        })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "R-{}", *self as u8 + 1)
    }
}
