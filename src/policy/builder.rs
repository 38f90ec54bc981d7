use std::{sync::Arc, time::Duration};

use super::{
    BreakerPolicy, BudgetPolicy, Exhaustion, Policy, Profile, RetryAfterMode, RetryAfterPolicy,
    RetryQuota, Settings,
};
use crate::error::Rule;
use crate::{
    backoff::{Backoff, DEFAULT_CAP, Decorrelated, FullJitter},
    classify::Rules,
    error::ConfigError,
    telemetry,
};

/// The default of `replay_limit`, in bytes.
const REPLAY_LIMIT: usize = 64 * 1024;
/// The default of `replay_pool`, in bytes.
const REPLAY_POOL: usize = 16 * 1024 * 1024;

/// The floor of a policy that sets none is the number of its retries, and no more than this.
const LARGEST_DEFAULT_FLOOR: u32 = 10;

mod check;
#[cfg(feature = "descriptors")]
mod descriptors;
mod hedge;
mod rules;

/// Makes a [`Policy`]. Nothing is checked before [`build`](Self::build).
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct PolicyBuilder {
    settings: Settings,
    base: Duration,
    throttled_base: Option<Duration>,
    cap: Duration,
    decorrelated: bool,
    custom: Option<Arc<dyn Backoff>>,
    floor: Option<u32>,
    /// The failures in a row were set, and so count however fast they come.
    counts_only: bool,
    no_success_for: Option<Duration>,
    /// A count in the unit of another profile.
    wrong_unit: Option<ConfigError>,
}

impl PolicyBuilder {
    /// Starts from a profile's defaults.
    pub fn new(profile: Profile) -> Self {
        Self {
            settings: Settings {
                profile,
                service: "default".into(),
                max_retries: profile.default_retries(),
                total: profile.default_total(),
                total_is_set: false,
                attempt_timeout: None,
                backoff: Arc::new(FullJitter::default()),
                throttled_backoff: None,
                budget: Some(BudgetPolicy::default()),
                breaker: BreakerPolicy::default(),
                retry_after: RetryAfterPolicy::default(),
                hedge: None,
                rules: if profile == Profile::Bank {
                    Rules::bank()
                } else {
                    Rules::standard()
                },
                replay_limit: REPLAY_LIMIT,
                replay_pool: REPLAY_POOL,
                dead_letters: None,
                approvals: Vec::new(),
            },
            base: profile.default_base(),
            throttled_base: None,
            cap: DEFAULT_CAP,
            decorrelated: false,
            custom: None,
            floor: None,
            counts_only: false,
            no_success_for: None,
            wrong_unit: None,
        }
    }

    /// Sets the name of the calling service, a label of metrics.
    pub fn service(mut self, name: impl Into<Arc<str>>) -> Self {
        self.settings.service = name.into();
        self
    }

    /// Sets the number of attempts after the first one.
    pub fn max_retries(mut self, retries: u32) -> Self {
        if self.settings.profile == Profile::Webhook {
            let allowed = "webhooks are counted in deliveries: set `deliveries`";
            self.wrong_unit = Some(ConfigError::new(None, "max_retries", retries, allowed));
        }
        self.settings.max_retries = retries;
        self
    }

    /// Sets the number of deliveries of a webhook, the first one included.
    pub fn deliveries(mut self, deliveries: u32) -> Self {
        if self.settings.profile != Profile::Webhook {
            let allowed = "only webhooks are counted in deliveries: set `max_retries`";
            self.wrong_unit = Some(ConfigError::new(None, "deliveries", deliveries, allowed));
        }
        self.settings.max_retries = deliveries.saturating_sub(1);
        self
    }

    /// Sets the time limit of a whole call, waits included.
    pub fn total_timeout(mut self, total: Duration) -> Self {
        self.settings.total = total;
        self.settings.total_is_set = true;
        self
    }

    /// Sets the time limit of one attempt. One that exceeds it counts as a timeout, and is retried.
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.settings.attempt_timeout = Some(timeout);
        self
    }

    /// Sets the bound of the wait before the first retry.
    pub fn base(mut self, base: Duration) -> Self {
        self.base = base;
        self
    }

    /// Sets the bound of the wait before the first retry of a call that was rejected because there
    /// are too many: 429, RESOURCE_EXHAUSTED, a 503 that says when to come back, and error codes that
    /// [`Codes::throttled`](crate::classify::Codes::throttled) names. So a short [`base`](Self::base)
    /// for failures that pass in a moment does not press on a dependency that is too busy.
    pub fn throttled_base(mut self, base: Duration) -> Self {
        self.throttled_base = Some(base);
        self
    }

    /// Sets the bound of all waits.
    pub fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// Uses decorrelated jitter instead of full jitter.
    pub fn decorrelated(mut self) -> Self {
        self.decorrelated = true;
        self
    }

    /// Uses a strategy of your own, which is sampled: one whose waits are fixed takes an approval of
    /// R-1, and the audit reports one that is hardly random.
    pub fn backoff(mut self, backoff: impl Backoff) -> Self {
        self.custom = Some(Arc::new(backoff));
        self
    }

    /// Sets the retries that are allowed, as a share of the original requests of the last 30 s.
    pub fn budget_ratio(mut self, ratio: f64) -> Self {
        self.settings.budget.get_or_insert_default().ratio = ratio;
        self
    }

    /// Sets the retries in 30 s that are allowed however few originals there are, at once and again
    /// as successes earn them. By default they are as many as one call may make. Each process has its own: see
    /// [many small clients](crate::client::retry_budget#many-small-clients).
    pub fn budget_floor(mut self, floor: u32) -> Self {
        self.settings.budget.get_or_insert_default();
        self.floor = Some(floor);
        self
    }

    /// Lets retries take tokens, too: none by default. The budget's share and floor hold all the same
    /// so that a quota makes it stricter and never wider.
    pub fn retry_quota(mut self, quota: RetryQuota) -> Self {
        self.settings.budget.get_or_insert_default().quota = Some(quota);
        self
    }

    /// Removes the retry budget, which takes an approval of R-7.
    pub fn without_budget(mut self) -> Self {
        self.settings.budget = None;
        self
    }

    /// Sets the failures in a row that open the breaker, however fast they come. By default there
    /// must also be [no success for](Self::no_success_for) a second.
    pub fn consecutive_failures(mut self, failures: u32) -> Self {
        self.settings.breaker.consecutive_failures = failures;
        self.counts_only = true;
        self
    }

    /// Sets how long a run of failures must last to open the breaker. Unless this is zero, the run
    /// must also be longer than chance explains by the calls before it.
    pub fn no_success_for(mut self, time: Duration) -> Self {
        self.no_success_for = Some(time);
        self
    }

    /// Sets the share of failed calls that opens the breaker, once `minimum_calls` were made within
    /// `window`.
    pub fn failure_rate(mut self, rate: f64, minimum_calls: u32, window: Duration) -> Self {
        self.settings.breaker.failure_rate = rate;
        self.settings.breaker.minimum_calls = minimum_calls;
        self.settings.breaker.window = window;
        self
    }

    /// Opens the breaker by no number of failures in a row: what is left is the
    /// [share of failed calls](Self::failure_rate).
    pub fn without_consecutive_failures(mut self) -> Self {
        self.settings.breaker.consecutive_failures = u32::MAX;
        self
    }

    /// Opens the breaker by no share of failed calls: what is left are
    /// [failures in a row](Self::consecutive_failures).
    pub fn without_failure_rate(mut self) -> Self {
        self.settings.breaker.minimum_calls = u32::MAX;
        self
    }

    /// Opens the breaker by nothing: neither failures in a row, nor their share, nor an exhausted
    /// budget. It can still be [forced open](crate::dependency::Dependency::force_open).
    pub fn without_breaker(self) -> Self {
        self.without_consecutive_failures()
            .without_failure_rate()
            .on_budget_exhausted(Exhaustion::Never)
    }

    /// Counts successes that take this long as failures.
    pub fn slow_call(mut self, time: Duration) -> Self {
        self.settings.breaker.slow_call = Some(time);
        self
    }

    /// Sets how many calls are sent to an overloaded dependency for each one that it accepts: 2 by
    /// default. The others are refused.
    pub fn throttle(mut self, factor: f64) -> Self {
        self.settings.breaker.throttle = Some(factor);
        self
    }

    /// Sends all calls to an overloaded dependency.
    pub fn without_throttle(mut self) -> Self {
        self.settings.breaker.throttle = None;
        self
    }

    /// Sets the time between the first probes of an open breaker, and the longest between later ones.
    pub fn cooldown(mut self, first: Duration, longest: Duration) -> Self {
        self.settings.breaker.cooldown = first;
        self.settings.breaker.max_cooldown = longest;
        self
    }

    /// Sets the effect of an exhausted retry budget on the breaker.
    pub fn on_budget_exhausted(mut self, exhaustion: Exhaustion) -> Self {
        self.settings.breaker.on_budget_exhausted = exhaustion;
        self
    }

    /// Sets whether calls wait or are refused while a dependency asked not to be called.
    pub fn retry_after_mode(mut self, mode: RetryAfterMode) -> Self {
        self.settings.retry_after.mode = mode;
        self
    }

    /// Sets the most that a wait for `Retry-After` is prolonged at random; zero for none.
    pub fn retry_after_spread(mut self, spread: Duration) -> Self {
        self.settings.retry_after.spread = spread;
        self
    }

    /// Sets the longest time for which one answer can shut out later calls.
    pub fn retry_after_longest(mut self, longest: Duration) -> Self {
        self.settings.retry_after.longest = longest;
        self
    }

    /// Sets how many calls may wait for a dependency at a time. Others are refused.
    pub fn max_held(mut self, calls: usize) -> Self {
        self.settings.retry_after.max_held = calls;
        self
    }

    /// Sets how many bytes of a streaming body are kept for a retry. Zero keeps none, and still retries
    /// requests without a body, or whose body was not read.
    pub fn replay_limit(mut self, bytes: usize) -> Self {
        self.settings.replay_limit = bytes;
        self
    }

    /// Sets how many bytes of streaming bodies are kept for retries of one dependency in all. Calls
    /// over this limit are sent, but not retried.
    pub fn replay_pool(mut self, bytes: usize) -> Self {
        self.settings.replay_pool = bytes;
        self
    }

    /// Names the dead-letter queue.
    pub fn dead_letters(mut self, queue: impl Into<Arc<str>>) -> Self {
        self.settings.dead_letters = Some(queue.into());
        self
    }

    /// Approves going beyond a rule, for a reason that the log and the audit show.
    pub fn approve(mut self, rule: Rule, reason: impl Into<Arc<str>>) -> Self {
        self.settings.approvals.push((rule, reason.into()));
        self
    }

    /// Returns the settings of the breaker so far.
    #[cfg(feature = "serde")]
    pub(crate) fn breaker_policy(&self) -> BreakerPolicy {
        self.settings.breaker
    }

    /// Checks all values.
    ///
    /// # Errors
    ///
    /// Names the first value that is not allowed, the allowed ones, and the rule.
    pub fn build(self) -> Result<Policy, ConfigError> {
        let policy = self.approved()?;
        for (rule, reason) in policy.approvals() {
            telemetry::approved(&policy.inner.service, *rule, reason);
        }
        Ok(policy)
    }

    /// Checks all values, and does not log approvals.
    pub(crate) fn approved(self) -> Result<Policy, ConfigError> {
        let policy = self.possible()?;
        let settings = &policy.inner;
        let refused = |deviation: &ConfigError| settings.approval(deviation.rule()).is_none();
        match settings.deviations().into_iter().find(refused) {
            Some(deviation) => Err(deviation),
            None => Ok(policy),
        }
    }

    /// Checks only the limits that no approval lifts, for an audit of the rest.
    pub(crate) fn possible(self) -> Result<Policy, ConfigError> {
        if let Some(error) = self.wrong_unit {
            return Err(error);
        }
        check::backoff("backoff.base", self.base, self.cap)?;
        if let Some(base) = self.throttled_base {
            check::backoff("backoff.throttled_base", base, self.cap)?;
        }
        let cap = self.cap;
        let strategy = |base| -> Arc<dyn Backoff> {
            match self.decorrelated {
                true => Arc::new(Decorrelated { base, cap }),
                false => Arc::new(FullJitter { base, cap }),
            }
        };
        let mut settings = self.settings;
        settings.throttled_backoff = self.throttled_base.map(strategy);
        settings.backoff = match self.custom {
            Some(custom) => custom,
            None => strategy(self.base),
        };
        match self.no_success_for {
            Some(time) => settings.breaker.no_success_for = time,
            None if self.counts_only => settings.breaker.no_success_for = Duration::ZERO,
            None => {}
        }
        if let Some(budget) = &mut settings.budget {
            match self.floor {
                Some(floor) => (budget.floor, budget.initial) = (floor, floor),
                None => budget.floor = settings.max_retries.clamp(1, LARGEST_DEFAULT_FLOOR),
            }
        }
        check::settings(&settings)?;
        Ok(Policy {
            inner: Arc::new(settings),
        })
    }
}
