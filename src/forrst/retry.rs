use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::call::Guidance;
use crate::http::{Span, span::some_whole};

/// The data of the retry extension: whether a failed request is worth another call, and when.
///
/// ```
/// use std::time::Duration;
/// use tower_reprise::forrst::Retry;
///
/// let guidance = Retry::exponential(Duration::from_secs(5)).max_attempts(10);
/// assert_eq!(
///     serde_json::to_value(&guidance)?,
///     serde_json::json!({
///         "allowed": true,
///         "strategy": "exponential",
///         "after": { "value": 5, "unit": "second" },
///         "max_attempts": 10
///     })
/// );
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use]
pub struct Retry {
    /// Whether the request may be sent again.
    pub allowed: bool,
    /// How the wait grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// The wait before the first retry, at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Span>,
    /// Retries, at most. The first call is not one.
    #[serde(
        default,
        deserialize_with = "some_whole",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_attempts: Option<u64>,
    /// Members that are not known.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// How the wait between retries grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Strategy {
    /// There is none.
    Immediate,
    /// It does not.
    Fixed,
    /// It doubles with each retry.
    Exponential,
}

impl Retry {
    /// The extension's URN.
    pub const URN: &str = "urn:forrst:ext:retry";
    /// The member of a problem document that says the same.
    pub const MEMBER: &str = "retry";

    fn new(allowed: bool, strategy: Option<Strategy>, after: Option<Duration>) -> Self {
        Self {
            allowed,
            strategy,
            after: after.map(Span::from),
            max_attempts: None,
            other: Map::new(),
        }
    }

    /// Do not call again.
    pub fn never() -> Self {
        Self::new(false, None, None)
    }

    /// Call again, without a wait.
    pub fn immediate() -> Self {
        Self::new(true, Some(Strategy::Immediate), None)
    }

    /// Call again, and wait at least so long before each retry.
    pub fn fixed(after: Duration) -> Self {
        Self::new(true, Some(Strategy::Fixed), Some(after))
    }

    /// Call again, and wait at least so long before the first retry, twice as long before the
    /// next, and so on.
    pub fn exponential(after: Duration) -> Self {
        Self::new(true, Some(Strategy::Exponential), Some(after))
    }

    /// The same, unless something else was said that counts for more: a wait, which does not grow
    /// then, or a stop.
    pub(super) fn told(mut self, said: Option<Guidance>) -> Self {
        match said {
            Some(Guidance::Stop) => Self::never(),
            Some(Guidance::AtLeast(wait)) if self.allowed => {
                self.strategy = Some(Strategy::Fixed);
                self.after = Some(wait.into());
                self
            }
            _ => self,
        }
    }

    /// So many retries, at most.
    pub fn max_attempts(mut self, retries: u64) -> Self {
        self.max_attempts = Some(retries);
        self
    }

    /// The shortest wait before a retry; the first is number 0. Where no strategy is named the
    /// wait is fixed.
    #[must_use]
    pub fn floor(&self, retry: u32) -> Duration {
        let after = self.after.map_or(Duration::ZERO, Span::duration);
        match self.strategy {
            Some(Strategy::Immediate) => Duration::ZERO,
            Some(Strategy::Fixed) | None => after,
            Some(Strategy::Exponential) => doubled(after, retry),
        }
    }
}

/// A wait that doubles with each retry, and never overflows.
fn doubled(wait: Duration, times: u32) -> Duration {
    let factor = 1_u32.checked_shl(times).unwrap_or(u32::MAX);
    wait.saturating_mul(factor).min(Span::LONGEST)
}
