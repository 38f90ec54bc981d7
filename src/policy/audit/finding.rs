use std::{borrow::Cow, fmt, sync::Arc};

use crate::error::{ConfigError, Enforcement, Rule};

/// One difference from the standard.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The rule it is about.
    pub rule: Rule,
    /// The severity.
    pub severity: Severity,
    /// The dependency whose policy it is in, or `(default)`, if several were audited.
    pub dependency: Option<Arc<str>>,
    /// The setting's name in a file.
    pub field: Cow<'static, str>,
    /// Its value.
    pub value: String,
    /// The values that the standard allows.
    pub allowed: Cow<'static, str>,
    /// The reason of the approval, if there is one.
    pub approval: Option<Arc<str>>,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// Against a rule that an approval lifts, and approved.
    Approved,
    /// A value that the standard advises against; or an approval that nothing needs, which would
    /// hide a later violation.
    Warning,
    /// Against a rule.
    Violation,
}

impl Severity {
    /// Returns a stable name, for logs and tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Warning => "warning",
            Self::Violation => "violation",
        }
    }
}

impl Finding {
    pub(super) fn new(
        rule: Rule,
        field: &'static str,
        value: impl Into<String>,
        allowed: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            rule,
            severity: Severity::Violation,
            dependency: None,
            field: field.into(),
            value: value.into(),
            allowed: allowed.into(),
            approval: None,
        }
    }

    /// Makes a finding of the error that a builder returns for this deviation.
    pub(super) fn of(deviation: &ConfigError) -> Option<Self> {
        Some(Self {
            field: deviation.field().to_owned().into(),
            ..Self::new(
                deviation.rule()?,
                "",
                deviation.value(),
                deviation.allowed().to_owned(),
            )
        })
    }

    pub(super) fn warning(self) -> Self {
        Self {
            severity: Severity::Warning,
            ..self
        }
    }

    /// Adds an approval. The standard lets its board approve more retries and more time; past its other
    /// rules a policy can be built, and stays a violation.
    pub(super) fn approved(self, reason: Option<&Arc<str>>) -> Self {
        let severity = match reason {
            Some(_) if self.is_for_review() => Severity::Approved,
            _ => self.severity,
        };
        Self {
            severity,
            approval: reason.cloned(),
            ..self
        }
    }

    /// Returns whether the rule is one that people may approve going beyond.
    fn is_for_review(&self) -> bool {
        self.rule.enforcement() == Enforcement::Review
    }

    /// Returns the remedy: to change the setting, or to have the difference approved.
    #[must_use]
    pub fn remedy(&self) -> String {
        let Self {
            rule,
            field,
            allowed,
            ..
        } = self;
        match (self.severity, &self.approval) {
            (Severity::Warning, Some(_)) => format!("remove the approval of {rule}"),
            (Severity::Violation, None) if self.is_for_review() => format!(
                "set `{field}` ({allowed}), or approve {rule} with a reason: it {}",
                rule.enforcement()
            ),
            (Severity::Violation, _) => {
                format!("set `{field}` ({allowed}): it {}", rule.enforcement())
            }
            _ => format!("set `{field}` ({allowed})"),
        }
    }

    /// Returns the approval, or what the rule blocks without one, for the table.
    pub(super) fn decided(&self) -> Cow<'_, str> {
        match (&self.approval, self.severity) {
            (Some(reason), Severity::Violation) => {
                format!("{reason}: {}", self.rule.enforcement()).into()
            }
            (Some(reason), _) => Cow::Borrowed(reason),
            (None, Severity::Violation) if self.is_for_review() => "none: needs the board's".into(),
            (None, Severity::Violation) => format!("none: {}", self.rule.enforcement()).into(),
            (None, _) => "not needed".into(),
        }
    }
}

/// One line: `R-2 violation: payments.example: max_retries is 9, the standard has 1 to 5 …`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: ", self.rule, self.severity.as_str())?;
        if let Some(dependency) = &self.dependency {
            write!(f, "{dependency}: ")?;
        }
        let Self {
            field,
            value,
            allowed,
            ..
        } = self;
        write!(f, "{field} is {value}, the standard has {allowed}")?;
        match &self.approval {
            Some(reason) => write!(f, "; approved: {reason}"),
            None => Ok(()),
        }
    }
}
