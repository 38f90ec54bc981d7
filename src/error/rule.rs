use std::fmt;

/// A rule of the integration retry standard that a setting can break, by its number there.
///
/// The standard has ten. R-9 (security) and R-10 (observability) have no settings: the layers keep
/// to them in every configuration.
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
    /// Retries on retryable failures only.
    #[cfg_attr(feature = "serde", serde(rename = "R-4"))]
    R4,
    /// Compliance with Retry-After.
    #[cfg_attr(feature = "serde", serde(rename = "R-5"))]
    R5,
    /// Retries of requests that are not idempotent with a key only.
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
    /// Returns the stage at which a violation of this rule is stopped, by the standard's enforcement
    /// table. That does not list R-3, which is treated like, which no setting can break.
    ///
    /// | rule | violation | enforcement |
    /// | --- | --- | --- |
    /// | R-1 | fixed interval, or equal jitter | merge |
    /// | R-2, R-3 | more retries, or a longer time | review |
    /// | R-4 | retry on a status that is not retryable | merge |
    /// | R-6 | POST or PATCH retried without a key | merge |
    /// | R-7 | no retry budget, or a larger one | deployment |
    /// | R-8 | no dead-letter queue for asynchronous work | deployment |
    #[must_use]
    pub fn enforcement(self) -> Enforcement {
        match self {
            Self::R1 | Self::R4 | Self::R6 => Enforcement::Merge,
            Self::R7 | Self::R8 => Enforcement::Deployment,
            Self::R2 | Self::R3 | Self::R5 => Enforcement::Review,
        }
    }
}

/// The stage at which a violation of the standard is stopped, unless it is approved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Enforcement {
    /// In continuous integration: it is not merged.
    Merge,
    /// At the review of production readiness: it is not deployed.
    Deployment,
    /// At the architecture board, which may approve it.
    Review,
}

impl fmt::Display for Enforcement {
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
