use std::time::Duration;

use super::PolicyBuilder;

/// Hedging.
impl PolicyBuilder {
    /// Sends a second attempt for a call that takes longer than 95 % of the others, where a
    /// [`HedgeLayer`](crate::HedgeLayer) is in the stack, as it is in
    /// [`stacks::client`](crate::stacks::client). The first good answer counts.
    pub fn hedge(mut self) -> Self {
        self.settings.hedge.get_or_insert_default();
        self
    }

    /// Hedges, and sets the share of attempts that are answered before a second one goes out: the
    /// others are hedged, so with 0.95 about 5 % more requests go out.
    pub fn hedge_quantile(mut self, quantile: f64) -> Self {
        self.settings.hedge.get_or_insert_default().quantile = quantile;
        self
    }

    /// Hedges, and sets the shortest and the longest time after which a second attempt goes out. If
    /// they are the same, the time is fixed and depends on no latency.
    pub fn hedge_delay(mut self, shortest: Duration, longest: Duration) -> Self {
        let hedge = self.settings.hedge.get_or_insert_default();
        hedge.min_delay = shortest;
        hedge.max_delay = longest;
        self
    }

    /// Hedges, and counts a hedge as one of the retries of its call, so that
    /// [`max_retries`](Self::max_retries) bounds both: none goes out beside the last attempt. By default
    /// an attempt and its hedge are one. An attempt that ends by
    /// [`attempt_timeout`](Self::attempt_timeout) counts with a hedge that it had time for. The [`RetryLayer`](crate::RetryLayer) has to be above the
    /// [`HedgeLayer`](crate::HedgeLayer).
    pub fn count_hedges(mut self) -> Self {
        self.settings.hedge.get_or_insert_default().counted = true;
        self
    }

    /// Returns the settings of hedging so far.
    #[cfg(feature = "serde")]
    pub(crate) fn hedge_policy(&self) -> crate::policy::HedgePolicy {
        self.settings.hedge.unwrap_or_default()
    }
}
