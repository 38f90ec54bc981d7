//! What a user may ask for, and whether that is allowed.
//!
//! A [`Policy`] says how often, how long and on what a client calls again. It starts from a
//! [`Profile`] whose defaults and ranges are a published standard's, and a value outside its range
//! is an error that names the rule. There is one way past: an approval with a reason, which is
//! logged and stays visible in the [`audit`](Policy::audit), so that what was decided once can be
//! found later.
//!
//! ```
//! use std::time::Duration;
//! use tower_reprise::{Policy, error::Rule};
//!
//! let policy = Policy::synchronous().service("checkout").max_retries(2).build()?;
//! assert_eq!(policy.total_timeout(), Duration::from_secs(30));
//! assert!(policy.audit().is_compliant());
//!
//! let refused = Policy::synchronous().max_retries(9).build().unwrap_err();
//! assert_eq!(
//!     refused.to_string(),
//!     "R-2: max_retries is 9, allowed: 1 to 5 for synchronous calls (or an approval with a reason)",
//! );
//!
//! let approved = Policy::synchronous()
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
//! [`Policies`] of all dependencies from one file: a default, profiles to start from, and what
//! single dependencies have of their own. `examples/policy.toml` has every field, with what it
//! means.
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
//! # In your tests, and before a merge
//!
//! [`assert_compliant`] fails a test of yours with the rules that a policy breaks, and
//! [`Policies::check`](Policies) lists all that is wrong with a file. [`Rule::enforcement`](crate::error::Rule::enforcement) says what each
//! rule stops, by the standard's enforcement table.
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
mod limits;
mod policies;
mod profile;

use crate::error::Rule;
use std::{sync::Arc, time::Duration};

pub(crate) use self::limits::CallLimits;
pub use self::{
    audit::{Audit, Finding, Severity, assert_compliant},
    builder::PolicyBuilder,
    policies::Policies,
    profile::Profile,
};
use crate::{backoff::Backoff, classify::Rules};

/// How often, how long and on what to call again. Made by a [`PolicyBuilder`], shared by every
/// layer, and cheap to clone.
#[derive(Debug, Clone)]
pub struct Policy {
    inner: Arc<Settings>,
}

/// What a policy says, before and after it was checked.
#[derive(Debug, Clone)]
struct Settings {
    profile: Profile,
    service: Arc<str>,
    max_retries: u32,
    total: Duration,
    attempt_timeout: Option<Duration>,
    backoff: Arc<dyn Backoff>,
    budget: Option<BudgetPolicy>,
    breaker: BreakerPolicy,
    retry_after: RetryAfterPolicy,
    rules: Rules,
    replay_limit: usize,
    replay_pool: usize,
    dead_letters: Option<Arc<str>>,
    approvals: Vec<(Rule, Arc<str>)>,
}

impl Policy {
    /// Calls that somebody waits for: 3 retries in at most 30 s.
    pub fn synchronous() -> PolicyBuilder {
        PolicyBuilder::new(Profile::Synchronous)
    }

    /// Events from a queue: 5 retries in at most 24 h, then the dead-letter queue.
    pub fn asynchronous() -> PolicyBuilder {
        PolicyBuilder::new(Profile::Asynchronous)
    }

    /// Webhook deliveries: 5 of them in at most 24 h, then the dead-letter queue.
    pub fn webhook() -> PolicyBuilder {
        PolicyBuilder::new(Profile::Webhook)
    }

    /// Items of a batch job: 3 retries each.
    pub fn batch_item() -> PolicyBuilder {
        PolicyBuilder::new(Profile::BatchItem)
    }

    /// Unary gRPC calls: 3 retries in at most 30 s.
    pub fn grpc_unary() -> PolicyBuilder {
        PolicyBuilder::new(Profile::GrpcUnary)
    }

    /// A bank's client recipe: as for synchronous calls, from a base of 500 ms, and internal
    /// errors are not retried.
    pub fn bank() -> PolicyBuilder {
        PolicyBuilder::new(Profile::Bank)
    }

    /// The profile it started from.
    #[must_use]
    pub fn profile(&self) -> Profile {
        self.inner.profile
    }

    /// The name of the calling service, as metrics show it.
    #[must_use]
    pub fn service(&self) -> &str {
        &self.inner.service
    }

    /// Calls after the first one.
    #[must_use]
    pub fn max_retries(&self) -> u32 {
        self.inner.max_retries
    }

    /// The time a whole call may take, waits included.
    #[must_use]
    pub fn total_timeout(&self) -> Duration {
        self.inner.total
    }

    /// The time one attempt may take.
    #[must_use]
    pub fn attempt_timeout(&self) -> Option<Duration> {
        self.inner.attempt_timeout
    }

    /// How waits are drawn.
    #[must_use]
    pub fn backoff(&self) -> &dyn Backoff {
        &*self.inner.backoff
    }

    /// The retry budget, unless an approval removed it.
    #[must_use]
    pub fn budget(&self) -> Option<BudgetPolicy> {
        self.inner.budget
    }

    /// When the circuit breaker opens, and for how long.
    #[must_use]
    pub fn breaker(&self) -> BreakerPolicy {
        self.inner.breaker
    }

    /// How a dependency's wish to be left alone is kept.
    #[must_use]
    pub fn retry_after(&self) -> RetryAfterPolicy {
        self.inner.retry_after
    }

    /// The rules that it goes beyond, each with the reason that was given.
    pub(crate) fn approvals(&self) -> &[(Rule, Arc<str>)] {
        &self.inner.approvals
    }

    /// The tables that outcomes are judged by.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.inner.rules
    }

    /// How many bytes of a request's head, and of its body if it streams, are kept for a retry.
    #[must_use]
    pub fn replay_limit(&self) -> usize {
        self.inner.replay_limit
    }

    /// How many bytes of bodies that stream are kept for retries in all, for one dependency.
    #[must_use]
    pub fn replay_pool(&self) -> usize {
        self.inner.replay_pool
    }

    /// The queue that takes what could not be done.
    #[must_use]
    pub fn dead_letters(&self) -> Option<&str> {
        self.inner.dead_letters.as_deref()
    }

    /// The most retries that one call may ask for.
    pub(crate) fn retries_ceiling(&self) -> u32 {
        self.max_retries().max(*self.profile().retries().end())
    }

    /// The longest time that one call may ask for.
    pub(crate) fn total_ceiling(&self) -> Duration {
        self.total_timeout().max(self.profile().longest())
    }
}

/// How many retries a dependency may see in 30 s.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct BudgetPolicy {
    /// The share of original requests.
    pub ratio: f64,
    /// How many are allowed however few originals there are.
    pub floor: u32,
}

impl Default for BudgetPolicy {
    fn default() -> Self {
        Self {
            ratio: 0.2,
            floor: 10,
        }
    }
}

/// When a circuit breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct BreakerPolicy {
    /// Opens after so many failures with no success between them.
    pub consecutive_failures: u32,
    /// Opens when this share of the calls in the window failed.
    pub failure_rate: f64,
    /// The rate counts only from so many calls on.
    pub minimum_calls: u32,
    /// What the rate is taken over.
    pub window: Duration,
    /// How long it first stays open; each time in a row is about twice as long.
    pub cooldown: Duration,
    /// The longest it stays open.
    pub max_cooldown: Duration,
    /// What it does when the retry budget runs out.
    pub on_budget_exhausted: Exhaustion,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            consecutive_failures: 5,
            failure_rate: 0.5,
            minimum_calls: 20,
            window: Duration::from_secs(30),
            cooldown: Duration::from_secs(1),
            max_cooldown: Duration::from_secs(4),
            on_budget_exhausted: Exhaustion::OpenIfFailing,
        }
    }
}

/// What an exhausted retry budget does to the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Exhaustion {
    /// Opens it if calls also fail at the breaker's rate: a dependency that fails a quarter of
    /// its calls is better than none.
    OpenIfFailing,
    /// Opens it.
    Open,
    /// Nothing.
    Never,
}

/// How a dependency's wish to be left alone is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryAfterPolicy {
    /// What becomes of calls in the meantime.
    pub mode: RetryAfterMode,
    /// Callers that wait wake up to a tenth of the wait later, and at most so much.
    pub spread: Duration,
    /// No dependency shuts out *later* calls for longer than this, whatever it asks for.
    pub longest: Duration,
}

impl Default for RetryAfterPolicy {
    fn default() -> Self {
        Self {
            mode: RetryAfterMode::Hold,
            spread: Duration::from_secs(1),
            longest: Duration::from_secs(3600),
        }
    }
}

/// What becomes of a call to a dependency that asked not to be called yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum RetryAfterMode {
    /// It waits, if the wait fits in its deadline, and is refused if not.
    Hold,
    /// It is refused at once.
    Refuse,
}
