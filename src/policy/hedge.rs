use std::time::Duration;

/// The time after which a call that was not answered gets a second attempt.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct HedgePolicy {
    /// The share of attempts that are answered within the delay, by the latencies of the last 30 s.
    pub quantile: f64,
    /// The shortest delay.
    pub min_delay: Duration,
    /// The longest delay. If it is the shortest too, the delay is fixed and depends on no latency.
    pub max_delay: Duration,
    /// A hedge is one of the retries of its call.
    pub counted: bool,
}

impl HedgePolicy {
    /// Returns the delay, if it does not depend on latencies.
    pub(crate) fn fixed(&self) -> Option<Duration> {
        (self.min_delay == self.max_delay).then_some(self.min_delay)
    }
}

impl Default for HedgePolicy {
    fn default() -> Self {
        Self {
            quantile: 0.95,
            min_delay: Duration::from_millis(1),
            max_delay: Duration::from_secs(10),
            counted: false,
        }
    }
}
