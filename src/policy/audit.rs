use std::{fmt, time::Duration};

use super::{Policy, Rule, Settings};
use crate::{backoff::Backoff, classify::Rules, error::ConfigError};

/// Everything in which a policy, or a whole stack, differs from the standard.
///
/// ```
/// use tower_reprise::Policy;
///
/// let events = Policy::asynchronous().build()?;
/// let audit = events.audit();
/// assert!(!audit.is_compliant());
/// assert!(audit.to_string().contains("R-8"));
/// assert!(Policy::asynchronous().dead_letters("orders.dlq").build()?.audit().is_compliant());
/// # Ok::<(), tower_reprise::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct Audit {
    findings: Vec<Finding>,
}

/// One difference from the standard.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The rule it is about.
    pub rule: Rule,
    /// How bad it is.
    pub severity: Severity,
    /// What was found.
    pub message: String,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// Allowed by an approval, whose reason the message holds.
    Approved,
    /// Against a rule.
    Violation,
}

impl Audit {
    /// What was found, the worst last.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Whether no rule is broken without an approval.
    #[must_use]
    pub fn is_compliant(&self) -> bool {
        self.findings
            .iter()
            .all(|finding| finding.severity == Severity::Approved)
    }

    pub(crate) fn merge(mut self, of: &str, other: Self) -> Self {
        self.findings
            .extend(other.findings.into_iter().map(|finding| Finding {
                message: format!("{of}: {}", finding.message),
                ..finding
            }));
        self.findings
            .sort_by_key(|finding| (finding.severity, finding.rule));
        self
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.findings.is_empty() {
            return f.write_str("nothing to report");
        }
        for (i, finding) in self.findings.iter().enumerate() {
            let line = if i == 0 { "" } else { "\n" };
            let severity = match finding.severity {
                Severity::Approved => "approved",
                Severity::Violation => "violation",
            };
            write!(f, "{line}{} {severity}: {}", finding.rule, finding.message)?;
        }
        Ok(())
    }
}

impl Policy {
    /// Lists every difference from the standard, approved or not. Use it in a test of your own:
    /// `assert!(policy.audit().is_compliant(), "{}", policy.audit())`.
    pub fn audit(&self) -> Audit {
        let settings = &self.inner;
        let deviations = settings.deviations().into_iter();
        let mut findings: Vec<_> = deviations
            .filter_map(|deviation| Some((deviation.rule()?, deviation)))
            .map(|(rule, d)| {
                (
                    rule,
                    format!(
                        "{} is {}, the standard has {}",
                        d.field(),
                        d.value(),
                        d.allowed()
                    ),
                )
            })
            .chain(sample(&*settings.backoff).map(|message| (Rule::R1, message.into())))
            .chain(
                settings
                    .missing_dead_letters()
                    .map(|message| (Rule::R8, message)),
            )
            .map(|(rule, message)| match settings.approval(Some(rule)) {
                Some(reason) => Finding {
                    rule,
                    severity: Severity::Approved,
                    message: format!("{message}; approved: {reason}"),
                },
                None => Finding {
                    rule,
                    severity: Severity::Violation,
                    message,
                },
            })
            .collect();
        for (rule, reason) in &settings.approvals {
            if !findings.iter().any(|finding| finding.rule == *rule) {
                findings.push(Finding {
                    rule: *rule,
                    severity: Severity::Approved,
                    message: format!("nothing goes beyond it; approved: {reason}"),
                });
            }
        }
        findings.sort_by_key(|finding| (finding.severity, finding.rule));
        Audit { findings }
    }
}

impl Settings {
    pub(super) fn approval(&self, rule: Option<Rule>) -> Option<&str> {
        let approved = self
            .approvals
            .iter()
            .find(|(approved, _)| Some(*approved) == rule);
        approved.map(|(_, reason)| &**reason)
    }

    /// Everything that takes an approval.
    pub(super) fn deviations(&self) -> Vec<ConfigError> {
        let mut found = Vec::new();
        let mut deviation =
            |rule, field: &'static str, value: &dyn fmt::Display, allowed: String| {
                found.push(ConfigError::new(Some(rule), field, value, allowed));
            };
        let calls = self.profile.calls();
        let retries = self.profile.retries();
        if !retries.contains(&self.max_retries) {
            let (one, field) = match self.profile {
                super::Profile::Webhook => (1, "deliveries"),
                _ => (0, "max_retries"),
            };
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
                "total",
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

    fn missing_dead_letters(&self) -> Option<String> {
        (self.profile.needs_dead_letters() && self.dead_letters.is_none()).then(|| {
            format!(
                "dead_letters is not set, the standard has a queue for {}",
                self.profile.calls()
            )
        })
    }
}

/// Looks for what the jitter is there to prevent: waits that hardly depend on the draw.
fn sample(backoff: &dyn Backoff) -> Option<&'static str> {
    let mut previous = Duration::ZERO;
    for retry in 0..8 {
        let waits =
            [0.0, 0.2, 0.4, 0.6, 0.8, 0.999].map(|draw| backoff.delay(retry, previous, draw));
        let (least, most) = (waits.iter().min()?, waits.iter().max()?);
        if least == most {
            return Some(
                "backoff waits a fixed time, the standard has full or decorrelated jitter",
            );
        }
        if least.as_secs_f64() > 0.45 * most.as_secs_f64() {
            return Some(
                "backoff keeps a fixed part of its waits, the standard has full or decorrelated jitter",
            );
        }
        previous = *most;
    }
    None
}
