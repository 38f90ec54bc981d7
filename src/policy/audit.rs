use std::{fmt, sync::Arc, time::Duration};

pub use self::finding::{Finding, Severity};
use super::{Exhaustion, Policy, Settings};
use crate::error::Rule;
use crate::{backoff::Backoff, call::key::LONGEST, classify::Rules, error::ConfigError};

mod finding;
mod table;

/// A backoff whose waits do not depend on the random draw, and the allowed ones.
const FIXED: &str = "a fixed time";
const JITTER: &str = "full or decorrelated jitter";

/// The differences of a policy, or of several, from the standard. It prints as a table.
///
/// ```
/// use tower_reprise::Policy;
///
/// let events = Policy::events().build()?;
/// let audit = events.audit();
/// assert!(!audit.is_compliant());
/// assert_eq!(
///     audit.to_string(),
///     "RULE  SEVERITY   DEPENDENCY  FIELD         VALUE    ALLOWED                          APPROVAL\n\
///      R-8   violation  -           dead_letters  not set  a queue for asynchronous events  none: blocks the deployment",
/// );
/// assert!(Policy::events().dead_letters("orders.dlq").build()?.audit().is_compliant());
/// # Ok::<(), tower_reprise::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct Audit {
    findings: Vec<Finding>,
}

impl Audit {
    /// Returns all findings, the worst last.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns whether no rule is broken, except for approved ones (R-2, R-3). An approval of another
    /// rule lets a policy be built, and does not make it compliant.
    #[must_use]
    pub fn is_compliant(&self) -> bool {
        self.violations().next().is_none()
    }

    /// Iterates over the rules that are broken, but for approved retries and times (R-2, R-3).
    pub fn violations(&self) -> impl Iterator<Item = &Finding> {
        let violates = |finding: &&Finding| finding.severity == Severity::Violation;
        self.findings.iter().filter(violates)
    }

    /// Reports a value that breaks a rule, of something else than a policy.
    pub(crate) fn violation(
        rule: Rule,
        field: &'static str,
        value: impl Into<String>,
        allowed: &'static str,
    ) -> Self {
        Self::of(vec![Finding::new(rule, field, value, allowed)])
    }

    /// Reports keys that are longer than R-6 allows.
    pub(crate) fn of_key_len(longest: usize) -> Self {
        match longest {
            0..=LONGEST => Self::default(),
            _ => Self::violation(Rule::R6, "max_key_len", longest.to_string(), "at most 64"),
        }
    }

    fn of(mut findings: Vec<Finding>) -> Self {
        findings.sort_by_key(|finding| (finding.severity, finding.rule));
        Self { findings }
    }

    pub(crate) fn merge(mut self, of: &str, other: Self) -> Self {
        let of: Arc<str> = of.into();
        self.findings
            .extend(other.findings.into_iter().map(|finding| Finding {
                dependency: Some(Arc::clone(&of)),
                ..finding
            }));
        Self::of(self.findings)
    }
}

impl From<&Policy> for Audit {
    fn from(policy: &Policy) -> Self {
        policy.audit()
    }
}

impl From<&super::Policies> for Audit {
    fn from(policies: &super::Policies) -> Self {
        policies.audit()
    }
}

/// Panics if a policy, the policies of a file or those of a registry, or a layer of keys break a rule
/// without an approval, with the rules and their remedies. It is for tests of your own.
///
/// ```
/// use tower_reprise::{Dependencies, Policy, policy::assert_compliant};
///
/// let deps = Dependencies::new(Policy::http().service("checkout").build()?);
/// assert_compliant(&deps);
/// # Ok::<(), tower_reprise::error::ConfigError>(())
/// ```
///
/// ```should_panic
/// # use tower_reprise::{Policy, policy::assert_compliant};
/// // R-8: events need a dead-letter queue.
/// assert_compliant(&Policy::events().build().unwrap());
/// ```
///
/// # Panics
///
/// If there is a violation.
#[track_caller]
#[allow(clippy::panic, reason = "this is what an assertion does")]
pub fn assert_compliant(audited: impl Into<Audit>) {
    let audit = audited.into();
    if audit.is_compliant() {
        return;
    }
    let remedies: Vec<_> = audit
        .violations()
        .map(|finding| match &finding.dependency {
            Some(dependency) => format!("{} {dependency}: {}", finding.rule, finding.remedy()),
            None => format!("{} {}", finding.rule, finding.remedy()),
        })
        .collect();
    panic!(
        "not compliant with the retry standard\n\n{audit}\n\nWhat to do:\n{}",
        remedies.join("\n")
    );
}

impl Policy {
    /// Lists every difference from the standard, approved or not.
    /// [`assert_compliant`] makes a test of it.
    pub fn audit(&self) -> Audit {
        let settings = &self.inner;
        let approved = |finding: Finding| {
            let reason = settings.approval(Some(finding.rule)).cloned();
            finding.approved(reason.as_ref())
        };
        let mut findings: Vec<_> = settings
            .deviations()
            .iter()
            .filter_map(Finding::of)
            .chain(
                sample(&*settings.backoff)
                    .filter(|(_, fixed)| !fixed)
                    .map(|(it, _)| it),
            )
            .chain(settings.missing_dead_letters())
            .chain(settings.idle_breaker())
            .map(approved)
            .collect();
        for (rule, reason) in &settings.approvals {
            if !findings.iter().any(|finding| finding.rule == *rule) {
                let left_over = Finding::new(*rule, "approvals", rule.to_string(), "none needed");
                findings.push(left_over.approved(Some(reason)).warning());
            }
        }
        Audit::of(findings)
    }
}

impl Settings {
    pub(super) fn approval(&self, rule: Option<Rule>) -> Option<&Arc<str>> {
        let approved = self
            .approvals
            .iter()
            .find(|(approved, _)| Some(*approved) == rule);
        approved.map(|(_, reason)| reason)
    }

    /// Lists the values that take an approval.
    pub(super) fn deviations(&self) -> Vec<ConfigError> {
        let mut found = Vec::new();
        let mut deviation =
            |rule, field: &'static str, value: &dyn fmt::Display, allowed: String| {
                found.push(ConfigError::new(Some(rule), field, value, allowed));
            };
        if let Some((_, true)) = sample(&*self.backoff) {
            deviation(Rule::R1, "backoff", &FIXED, JITTER.into());
        }
        let calls = self.profile.calls();
        let retries = self.profile.retries();
        let (one, field) = match self.profile {
            super::Profile::Webhook => (1, "deliveries"),
            _ => (0, "max_retries"),
        };
        // No retries at all are within any bound, but a webhook is to be delivered.
        let off = self.max_retries + one == 0;
        if !off && !retries.contains(&self.max_retries) {
            let allowed = format!(
                "{} to {} for {calls}",
                retries.start() + one,
                retries.end() + one
            );
            deviation(Rule::R2, field, &(self.max_retries + one), allowed);
        }
        if self.total > self.profile.longest() {
            let allowed = format!("at most {:?} for {calls}", self.profile.longest());
            deviation(
                Rule::R3,
                "total_timeout",
                &format_args!("{:?}", self.total),
                allowed,
            );
        }
        for status in self
            .rules
            .statuses
            .iter()
            .filter(|s| !Rules::allows_status(**s))
        {
            deviation(
                Rule::R4,
                "rules.retry_statuses",
                &status.as_u16(),
                "408, 429, 500, 502, 503, 504, 425 once".into(),
            );
        }
        for code in self.rules.grpc.iter().filter(|c| !Rules::allows_grpc(**c)) {
            deviation(
                Rule::R4,
                "rules.retry_grpc",
                &code.as_str(),
                "UNAVAILABLE, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED".into(),
            );
        }
        for code in self.rules.codes.forbidden() {
            let allowed = "codes that neither R-4 nor a ready table calls final";
            deviation(Rule::R4, "rules.codes", &code, allowed.into());
        }
        if self.rules.unkeyed_writes {
            deviation(
                Rule::R6,
                "rules.retry_without_key",
                &true,
                "false: POST and PATCH are retried with an idempotency key".into(),
            );
        }
        match self.budget {
            None => deviation(
                Rule::R7,
                "budget",
                &"off",
                "a budget for every dependency".into(),
            ),
            Some(budget) => {
                if budget.ratio > 0.2 {
                    deviation(
                        Rule::R7,
                        "budget.ratio",
                        &budget.ratio,
                        "at most 0.2".into(),
                    );
                }
                if budget.floor > 10 {
                    deviation(Rule::R7, "budget.floor", &budget.floor, "at most 10".into());
                }
            }
        }
        found
    }

    fn missing_dead_letters(&self) -> Option<Finding> {
        let needed = self.profile.needs_dead_letters() && self.dead_letters.is_none();
        needed.then(|| {
            let allowed = format!("a queue for {}", self.profile.calls());
            Finding::new(Rule::R8, "dead_letters", "not set", allowed)
        })
    }

    /// Warns of a breaker that ignores an exhausted budget, which the standard advises against.
    fn idle_breaker(&self) -> Option<Finding> {
        let idle = self.breaker.on_budget_exhausted == Exhaustion::Never && self.budget.is_some();
        idle.then(|| {
            let allowed = "open_if_failing or open";
            Finding::new(Rule::R7, "breaker.on_budget_exhausted", "never", allowed).warning()
        })
    }
}

/// Samples a strategy for waits that hardly depend on the random draw, and returns whether they
/// don't at all.
fn sample(backoff: &dyn Backoff) -> Option<(Finding, bool)> {
    let found = |value| Finding::new(Rule::R1, "backoff", value, JITTER);
    let mut previous = Duration::ZERO;
    for retry in 0..8 {
        let waits =
            [0.0, 0.2, 0.4, 0.6, 0.8, 0.999].map(|draw| backoff.delay(retry, previous, draw));
        let (least, most) = (waits.iter().min()?, waits.iter().max()?);
        if least == most {
            return Some((found(FIXED), true));
        }
        if least.as_secs_f64() > 0.45 * most.as_secs_f64() {
            return Some((found("a fixed part and a random one"), false));
        }
        previous = *most;
    }
    None
}
