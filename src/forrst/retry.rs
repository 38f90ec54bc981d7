use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::call::Guidance;
use crate::http::{Span, span::some_whole};

/// The wait of a strategy without `after`, as in the specification's loop.
const AFTER: Duration = Duration::from_secs(1);

/// The data of the retry extension: whether and when to send a failed request again.
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
    /// The growth of the wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// The shortest wait before the first retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Span>,
    /// The most retries, without the first attempt.
    #[serde(default, deserialize_with = "some_whole")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u64>,
    /// Unknown members.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The growth of the wait between retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Strategy {
    /// No wait.
    Immediate,
    /// The same wait each time.
    Fixed,
    /// A wait that doubles with each retry.
    Exponential,
}

impl Retry {
    /// The extension's URN.
    pub const URN: &str = "urn:forrst:ext:retry";
    /// The member of a problem document with the same data.
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

    /// Allows no retry.
    pub fn never() -> Self {
        Self::new(false, None, None)
    }

    /// Allows retries without a wait.
    pub fn immediate() -> Self {
        Self::new(true, Some(Strategy::Immediate), None)
    }

    /// Allows retries, each after at least this wait.
    pub fn fixed(after: Duration) -> Self {
        Self::new(true, Some(Strategy::Fixed), Some(after))
    }

    /// Allows retries after at least this wait, which doubles with each retry.
    pub fn exponential(after: Duration) -> Self {
        Self::new(true, Some(Strategy::Exponential), Some(after))
    }

    /// Replaces the wait by a fixed one, or allows no retry, as more specific guidance asks.
    pub(super) fn overridden(mut self, guidance: Option<Guidance>) -> Self {
        match guidance {
            Some(Guidance::Stop) => Self::never(),
            Some(Guidance::AtLeast(wait)) if self.allowed => {
                self.strategy = Some(Strategy::Fixed);
                self.after = Some(wait.into());
                self
            }
            _ => self,
        }
    }

    /// Sets the most retries.
    pub fn max_attempts(mut self, retries: u64) -> Self {
        self.max_attempts = Some(retries);
        self
    }

    /// Returns the shortest wait before a retry, the first of which is number 0. A strategy without
    /// `after` waits for a second, one that is [immediate](Strategy::Immediate) not at all. Without a
    /// strategy the wait is fixed.
    #[must_use]
    pub fn floor(&self, retry: u32) -> Duration {
        let after = self.after.map(Span::duration);
        match self.strategy {
            Some(Strategy::Immediate) => Duration::ZERO,
            Some(Strategy::Fixed) => after.unwrap_or(AFTER),
            None => after.unwrap_or_default(),
            Some(Strategy::Exponential) => doubled(after.unwrap_or(AFTER), retry),
        }
    }
}

/// Doubles a wait so many times, up to [`Span::LONGEST`].
fn doubled(wait: Duration, times: u32) -> Duration {
    let factor = 1_u32.checked_shl(times).unwrap_or(u32::MAX);
    wait.saturating_mul(factor).min(Span::LONGEST)
}
