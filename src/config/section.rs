use std::time::Duration;

use serde::{
    Deserialize,
    de::{IntoDeserializer, value},
};

use super::{rules::RulesFile, serde_types::Human, table::table};
use crate::{
    error::Rule,
    policy::{Exhaustion, PolicyBuilder, Profile, RetryAfterMode, RetryQuota},
};

table! {
    /// The fields of one policy.
    pub(super) struct Section {
        profile: Option<String>,
        service: Option<String>,
        max_retries: Option<u32>,
        deliveries: Option<u32>,
        total_timeout: Option<Human>,
        attempt_timeout: Option<Human>,
        backoff: BackoffFile,
        budget: BudgetFile,
        breaker: BreakerFile,
        retry_after: RetryAfterFile,
        hedge: HedgeFile,
        rules: RulesFile,
        replay_limit: Option<usize>,
        replay_pool: Option<usize>,
        dead_letters: Option<String>,
        approvals: Option<Vec<ApprovalFile>>,
    }
}

table! {
    pub(super) struct BackoffFile {
        strategy: Option<Strategy>,
        base: Option<Human>,
        throttled_base: Option<Human>,
        cap: Option<Human>,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Strategy {
    FullJitter,
    Decorrelated,
}

table! {
    pub(super) struct BudgetFile {
        off: Option<bool>,
        ratio: Option<f64>,
        floor: Option<u32>,
        quota: Option<RetryQuota>,
    }
}

table! {
    pub(super) struct BreakerFile {
        consecutive_failures: Option<u32>,
        no_success_for: Option<Human>,
        failure_rate: Option<f64>,
        minimum_calls: Option<u32>,
        window: Option<Human>,
        cooldown: Option<Human>,
        max_cooldown: Option<Human>,
        slow_call: Option<Human>,
        throttle: Option<f64>,
        throttle_off: Option<bool>,
        on_budget_exhausted: Option<Exhaustion>,
    }
}

table! {
    pub(super) struct RetryAfterFile {
        mode: Option<RetryAfterMode>,
        spread: Option<Human>,
        longest: Option<Human>,
        max_held: Option<usize>,
    }
}

table! {
    pub(super) struct HedgeFile {
        on: Option<bool>,
        quantile: Option<f64>,
        min_delay: Option<Human>,
        max_delay: Option<Human>,
        counted: Option<bool>,
    }
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ApprovalFile {
    rule: Rule,
    reason: String,
}

/// Returns a built-in profile by its name in a file, or an error with the names there are.
pub(super) fn built_in_profile(name: &str) -> Result<Profile, value::Error> {
    Profile::deserialize(name.into_deserializer())
}

impl Section {
    /// Applies the fields to a profile.
    pub(super) fn apply(self, profile: Profile) -> PolicyBuilder {
        let builder = PolicyBuilder::new(profile)
            .set(self.service, PolicyBuilder::service)
            .set(self.max_retries, PolicyBuilder::max_retries)
            .set(self.deliveries, PolicyBuilder::deliveries)
            .set(human(self.total_timeout), PolicyBuilder::total_timeout)
            .set(human(self.attempt_timeout), PolicyBuilder::attempt_timeout);
        let builder = self.backoff.apply(builder);
        let builder = self.budget.apply(builder);
        let builder = self.breaker.apply(builder);
        let builder = self.retry_after.apply(builder);
        let builder = self.hedge.apply(builder);
        let builder = (self.rules.apply(builder))
            .set(self.replay_limit, PolicyBuilder::replay_limit)
            .set(self.replay_pool, PolicyBuilder::replay_pool)
            .set(self.dead_letters, PolicyBuilder::dead_letters);
        let approve = |builder: PolicyBuilder, a: ApprovalFile| builder.approve(a.rule, a.reason);
        let approvals = self.approvals.into_iter().flatten();
        approvals.fold(builder, approve)
    }
}

impl BackoffFile {
    fn apply(self, builder: PolicyBuilder) -> PolicyBuilder {
        let decorrelated = self.strategy.map(|it| it == Strategy::Decorrelated);
        builder
            .set(human(self.base), PolicyBuilder::base)
            .set(human(self.throttled_base), PolicyBuilder::throttled_base)
            .set(human(self.cap), PolicyBuilder::cap)
            .when(decorrelated, PolicyBuilder::decorrelated)
    }
}

impl BudgetFile {
    fn apply(self, builder: PolicyBuilder) -> PolicyBuilder {
        builder
            .set(self.ratio, PolicyBuilder::budget_ratio)
            .set(self.floor, PolicyBuilder::budget_floor)
            .set(self.quota, PolicyBuilder::retry_quota)
            .when(self.off, PolicyBuilder::without_budget)
    }
}

impl BreakerFile {
    fn apply(self, builder: PolicyBuilder) -> PolicyBuilder {
        let now = builder.breaker_policy();
        builder
            .set(
                self.consecutive_failures,
                PolicyBuilder::consecutive_failures,
            )
            .set(human(self.no_success_for), PolicyBuilder::no_success_for)
            .set(human(self.slow_call), PolicyBuilder::slow_call)
            .set(self.throttle, PolicyBuilder::throttle)
            .when(self.throttle_off, PolicyBuilder::without_throttle)
            .set(self.on_budget_exhausted, PolicyBuilder::on_budget_exhausted)
            .failure_rate(
                self.failure_rate.unwrap_or(now.failure_rate),
                self.minimum_calls.unwrap_or(now.minimum_calls),
                human(self.window).unwrap_or(now.window),
            )
            .cooldown(
                human(self.cooldown).unwrap_or(now.cooldown),
                human(self.max_cooldown).unwrap_or(now.max_cooldown),
            )
    }
}

impl RetryAfterFile {
    fn apply(self, builder: PolicyBuilder) -> PolicyBuilder {
        builder
            .set(self.mode, PolicyBuilder::retry_after_mode)
            .set(human(self.spread), PolicyBuilder::retry_after_spread)
            .set(human(self.longest), PolicyBuilder::retry_after_longest)
            .set(self.max_held, PolicyBuilder::max_held)
    }
}

impl HedgeFile {
    fn apply(self, builder: PolicyBuilder) -> PolicyBuilder {
        let now = builder.hedge_policy();
        let delays = (human(self.min_delay), human(self.max_delay));
        let set_at_all =
            self.quantile.is_some() || delays != (None, None) || self.counted == Some(true);
        match self.on {
            Some(false) => return builder,
            None if !set_at_all => return builder,
            Some(true) | None => {}
        }
        builder
            .when(self.counted, PolicyBuilder::count_hedges)
            .hedge_quantile(self.quantile.unwrap_or(now.quantile))
            .hedge_delay(
                delays.0.unwrap_or(now.min_delay),
                delays.1.unwrap_or(now.max_delay),
            )
    }
}

fn human(value: Option<Human>) -> Option<Duration> {
    value.map(|Human(duration)| duration)
}
