//! Retry policies: profiles, allowed ranges, approvals and audits.
//!
//! A [`Policy`] limits the retries of a client: how many, for how long, and after which outcomes. It
//! starts from a [`Profile`], whose defaults and ranges come from an integration retry standard with
//! ten rules, R-1 to R-10. [`Rule`] lists those that a setting can break. A value outside
//! its range is an error that names the rule, unless the policy has an approval with a reason, which
//! is logged and stays visible in the [`audit`](Policy::audit). An approval makes more retries and more
//! time compliant (R-2, R-3); beyond the other rules a policy can be built, and its audit says what it
//! blocks.
//!
//! | profile | for | retries (range) | total time (at most) | base of the backoff |
//! | --- | --- | --- | --- | --- |
//! | [`http`](Policy::http) | calls that a user waits for | 3 (1 to 5) | 30 s (30 s) | 1 s |
//! | [`grpc_unary`](Policy::grpc_unary) | unary gRPC calls | 3 (1 to 5) | 30 s (30 s) | 1 s |
//! | [`events`](Policy::events) | events of a queue | 5 (1 to 10) | 24 h (24 h) | 1 s |
//! | [`webhook`](Policy::webhook) | webhooks | 5 deliveries (3 to 8) | 24 h (24 h) | 1 s |
//! | [`batch_item`](Policy::batch_item) | items of a batch job | 3 (1 to 5) | 5 min (24 h) | 1 s |
//! | [`bank`](Policy::bank) | clients of BlooBank | 3 (1 to 5) | 30 s (30 s) | 500 ms |
//!
//! Events and webhooks also need a dead-letter queue (R-8). All profiles have full jitter with a cap
//! of 30 s (R-1) and a retry budget of 20 % (R-7). `bank` is the retry recipe that BlooBank publishes
//! for clients of its API: it knows the bank's error codes, and does not retry on an internal error.
//!
//! ```
//! use std::time::Duration;
//! use tower_reprise::{Policy, error::Rule};
//!
//! let policy = Policy::http().service("checkout").max_retries(2).build()?;
//! assert_eq!(policy.total_timeout(), Duration::from_secs(30));
//! assert!(policy.audit().is_compliant());
//!
//! let refused = Policy::http().max_retries(9).build().unwrap_err();
//! assert_eq!(
//!     refused.to_string(),
//!     "R-2: max_retries is 9, allowed: 1 to 5 for synchronous calls (or an approval with a reason)",
//! );
//!
//! let approved = Policy::http()
//!     .max_retries(9)
//!     .approve(Rule::R2, "legacy mainframe, board decision 2026-14")
//!     .build()?;
//! assert_eq!(approved.audit().findings().len(), 1);
//! # Ok::<(), tower_reprise::error::ConfigError>(())
//! ```
//!
//! # Files
//!
//! With the `serde` feature a policy is read from TOML, JSON or the environment, and the
//! [`Policies`] of all dependencies from one file: a default, profiles of your own, and policies of
//! single dependencies. `examples/policy.toml` documents every field.
//!
//! ```
//! # #[cfg(feature = "serde")] {
//! use tower_reprise::{Dependencies, policy::Policies};
//!
//! let deps = Dependencies::new(Policies::from_toml(r#"
//!     [default]
//!     profile = "synchronous"
//!     [dependencies."bank.example"]
//!     max_retries = 1
//! "#)?);
//! assert_eq!(deps.get("bank.example").policy().max_retries(), 1);
//! # }
//! # Ok::<(), tower_reprise::error::ConfigError>(())
//! ```
//!
//! A live registry takes the next version of a file with
//! [`reload`](crate::dependency::Dependencies::reload), and no call is dropped.
//!
//! # Checks in tests and before a merge
//!
//! [`assert_compliant`] fails a test of yours with the rules that a policy breaks, and
//! [`Policies::check`](Policies) lists all violations of a file.
//! [`Rule::enforcement`] returns the stage at which the standard stops a violation of each rule.
//!
//! ```
//! # #[cfg(feature = "serde")] {
//! use tower_reprise::{error::Rule, policy::{Policies, assert_compliant}};
//!
//! assert_compliant(&Policies::from_toml("default.profile = 'synchronous'")?);
//!
//! let audit = Policies::check_toml("default = { profile = 'synchronous', max_retries = 9 }")?;
//! let violation = audit.violations().next().expect("it is too many");
//! assert_eq!((violation.rule, &*violation.field), (Rule::R2, "max_retries"));
//! # }
//! # Ok::<(), tower_reprise::error::ConfigError>(())
//! ```

mod audit;
mod builder;
mod hedge;
mod limits;
mod policies;
mod profile;

use crate::error::Rule;
use std::{sync::Arc, time::Duration};

pub(crate) use self::limits::CallLimits;
pub use self::{
    audit::{Audit, Finding, Severity, assert_compliant},
    builder::PolicyBuilder,
    hedge::HedgePolicy,
    policies::Policies,
    profile::Profile,
};
use crate::{backoff::Backoff, classify::Rules};

/// The limits of a client's retries. Made by a [`PolicyBuilder`], shared by every layer, and cheap to
/// clone.
#[derive(Debug, Clone)]
pub struct Policy {
    inner: Arc<Settings>,
}

/// The values of a policy, before and after the check.
#[derive(Debug, Clone)]
struct Settings {
    profile: Profile,
    service: Arc<str>,
    max_retries: u32,
    total: Duration,
    /// The total time was set, rather than left to the profile.
    total_is_set: bool,
    attempt_timeout: Option<Duration>,
    backoff: Arc<dyn Backoff>,
    throttled_backoff: Option<Arc<dyn Backoff>>,
    budget: Option<BudgetPolicy>,
    breaker: BreakerPolicy,
    retry_after: RetryAfterPolicy,
    hedge: Option<HedgePolicy>,
    rules: Rules,
    replay_limit: usize,
    replay_pool: usize,
    dead_letters: Option<Arc<str>>,
    approvals: Vec<(Rule, Arc<str>)>,
}

impl Policy {
    /// Starts a policy for calls that a user waits for: 3 retries in at most 30 s.
    pub fn http() -> PolicyBuilder {
        PolicyBuilder::new(Profile::Synchronous)
    }

    /// Starts a policy for events of a queue: 5 retries in at most 24 h, then the dead-letter queue.
    pub fn events() -> PolicyBuilder {
        PolicyBuilder::new(Profile::Asynchronous)
    }

    /// Starts a policy for webhooks: 5 deliveries in at most 24 h, then the dead-letter queue.
    pub fn webhook() -> PolicyBuilder {
        PolicyBuilder::new(Profile::Webhook)
    }

    /// Starts a policy for items of a batch job: 3 retries each.
    pub fn batch_item() -> PolicyBuilder {
        PolicyBuilder::new(Profile::BatchItem)
    }

    /// Starts a policy for unary gRPC calls: 3 retries in at most 30 s. A
    /// [`PeekLayer`](crate::PeekLayer) waits for the status of every method, which may come late: name
    /// the [`unary_methods`](PolicyBuilder::unary_methods) where others stream.
    pub fn grpc_unary() -> PolicyBuilder {
        PolicyBuilder::new(Profile::GrpcUnary)
    }

    /// Starts a policy with the retry recipe that BlooBank publishes for clients of its API: as
    /// [`http`](Self::http), with a backoff base of 500 ms, the bank's error codes, and
    /// no retry on an internal error.
    pub fn bank() -> PolicyBuilder {
        PolicyBuilder::new(Profile::Bank)
    }

    /// Returns the profile it started from.
    #[must_use]
    pub fn profile(&self) -> Profile {
        self.inner.profile
    }

    /// Returns the name of the calling service, a label of metrics.
    #[must_use]
    pub fn service(&self) -> &str {
        &self.inner.service
    }

    /// Returns the number of attempts after the first one.
    #[must_use]
    pub fn max_retries(&self) -> u32 {
        self.inner.max_retries
    }

    /// Returns the time limit of a whole call, waits included.
    #[must_use]
    pub fn total_timeout(&self) -> Duration {
        self.inner.total
    }

    /// Returns the time limit of one attempt.
    #[must_use]
    pub fn attempt_timeout(&self) -> Option<Duration> {
        self.inner.attempt_timeout
    }

    /// Returns the strategy that waits are drawn from.
    #[must_use]
    pub fn backoff(&self) -> &dyn Backoff {
        &*self.inner.backoff
    }

    /// Returns the strategy for waits after a failure for want of capacity, if it is another one.
    #[must_use]
    pub fn throttled_backoff(&self) -> Option<&dyn Backoff> {
        self.inner.throttled_backoff.as_deref()
    }

    /// Returns the retry budget, unless an approval removed it.
    #[must_use]
    pub fn budget(&self) -> Option<BudgetPolicy> {
        self.inner.budget
    }

    /// Returns when the circuit breaker opens, and for how long.
    #[must_use]
    pub fn breaker(&self) -> BreakerPolicy {
        self.inner.breaker
    }

    /// Returns how `Retry-After` is obeyed.
    #[must_use]
    pub fn retry_after(&self) -> RetryAfterPolicy {
        self.inner.retry_after
    }

    /// Returns when a second attempt goes out, unless none does.
    #[must_use]
    pub fn hedge(&self) -> Option<HedgePolicy> {
        self.inner.hedge
    }

    /// Returns the approved rules with their reasons.
    pub(crate) fn approvals(&self) -> &[(Rule, Arc<str>)] {
        &self.inner.approvals
    }

    /// Returns the tables by which outcomes are classified.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.inner.rules
    }

    /// Returns how many bytes of a request's head, and of a streaming body, are kept for a retry.
    #[must_use]
    pub fn replay_limit(&self) -> usize {
        self.inner.replay_limit
    }

    /// Returns how many bytes of streaming bodies are kept for retries of one dependency in all.
    #[must_use]
    pub fn replay_pool(&self) -> usize {
        self.inner.replay_pool
    }

    /// Returns the name of the dead-letter queue.
    #[must_use]
    pub fn dead_letters(&self) -> Option<&str> {
        self.inner.dead_letters.as_deref()
    }

    /// Returns the most retries that an override may set.
    pub(crate) fn retries_ceiling(&self) -> u32 {
        self.max_retries().max(*self.profile().retries().end())
    }

    /// Returns the longest time that an override may set.
    pub(crate) fn total_ceiling(&self) -> Duration {
        self.total_timeout().max(self.profile().longest())
    }
}

/// The retries to a dependency that are allowed in 30 s.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct BudgetPolicy {
    /// The share of original requests.
    pub ratio: f64,
    /// The number that is allowed however few originals there are, as long as calls succeed: each
    /// success earns half of one, and each retry beyond the share takes one.
    pub floor: u32,
    /// The part of the floor that is left to a client after its first second, until its first
    /// success.
    pub initial: u32,
    /// The tokens that retries take beside, if that is on.
    pub quota: Option<RetryQuota>,
}

/// Tokens that retries take beside their budget, as the AWS SDKs have them: a retry goes out only if the
/// budget and the tokens allow it. One that succeeds gives its tokens back, one that was not sent too,
/// and each call that succeeds gives one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct RetryQuota {
    /// The tokens that there are at first, and at most.
    pub capacity: u32,
    /// The tokens of a retry after any other failure.
    pub failure: u32,
    /// The tokens of a retry after a time-out, and of a hedge.
    pub timeout: u32,
    /// The tokens of a retry after a rejection for want of capacity.
    pub throttled: u32,
}

/// Those of the standard mode of 2026.
impl Default for RetryQuota {
    fn default() -> Self {
        Self {
            capacity: 500,
            failure: 14,
            timeout: 14,
            throttled: 5,
        }
    }
}

impl Default for BudgetPolicy {
    fn default() -> Self {
        Self {
            ratio: 0.2,
            floor: 3,
            initial: 1,
            quota: None,
        }
    }
}

/// The thresholds and cooldowns of a circuit breaker, and the factor of its throttle.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct BreakerPolicy {
    /// The failures in a row that open it; `u32::MAX` for no number of them.
    pub consecutive_failures: u32,
    /// The time that a run of failures must last to open it. Unless it is zero, the run must also be
    /// longer than chance explains by the calls before it, so that a dependency that fails often is
    /// not taken for one that is down.
    pub no_success_for: Duration,
    /// The share of failed calls in the window that opens it.
    pub failure_rate: f64,
    /// The calls in the window from which on the rate counts; `u32::MAX` for never.
    pub minimum_calls: u32,
    /// The window of the rate.
    pub window: Duration,
    /// The time from opening to the first probe. Each further one comes after about twice the time,
    /// or after 32 calls that were refused, if that is sooner, but not before half of this.
    pub cooldown: Duration,
    /// The longest time between two probes.
    pub max_cooldown: Duration,
    /// The time from which on a success counts as a failure.
    pub slow_call: Option<Duration>,
    /// The calls that are sent to an overloaded dependency for each one that it accepts; `None` to
    /// send all.
    pub throttle: Option<f64>,
    /// The effect of an exhausted retry budget.
    pub on_budget_exhausted: Exhaustion,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            consecutive_failures: 5,
            no_success_for: Duration::from_secs(1),
            failure_rate: 1.0,
            minimum_calls: 1000,
            window: Duration::from_secs(30),
            cooldown: Duration::from_millis(500),
            max_cooldown: Duration::from_secs(5),
            slow_call: None,
            throttle: Some(2.0),
            on_budget_exhausted: Exhaustion::OpenIfFailing,
        }
    }
}

/// The effect of an exhausted retry budget on the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Exhaustion {
    /// Opens it if calls also fail at the breaker's rate: a dependency that fails a quarter of its
    /// calls is better than none.
    OpenIfFailing,
    /// Opens it.
    Open,
    /// No effect.
    Never,
}

/// The treatment of `Retry-After`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryAfterPolicy {
    /// The treatment of calls in the meantime.
    pub mode: RetryAfterMode,
    /// The most that a wait is prolonged at random, which is a tenth of it otherwise.
    pub spread: Duration,
    /// The longest time for which one answer can shut out *later* calls.
    pub longest: Duration,
    /// The most calls that wait at a time.
    pub max_held: usize,
}

impl Default for RetryAfterPolicy {
    fn default() -> Self {
        Self {
            mode: RetryAfterMode::Hold,
            spread: Duration::from_secs(1),
            longest: Duration::from_secs(60),
            max_held: 1000,
        }
    }
}

/// The treatment of calls to a dependency that asked not to be called yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum RetryAfterMode {
    /// A call waits if the wait fits into its deadline, and is refused otherwise.
    Hold,
    /// A call is refused at once.
    Refuse,
}
