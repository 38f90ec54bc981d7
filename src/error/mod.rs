//! Errors of the layers, and how to find them in a chain of errors.
//!
//! Client layers return [`BoxError`], as tower's own do. When a layer refuses a call or gives up, the
//! chain holds a typed error with the reason:
//!
//! ```
//! use std::time::Duration;
//! use tower_reprise::error::{BoxError, Refusal, Refused};
//!
//! let error: BoxError = Refused::new(Refusal::Breaker, "payments", Some(Duration::from_secs(4))).into();
//! let refused = Refused::find(&*error).expect("a refusal");
//! assert_eq!(refused.kind(), Refusal::Breaker);
//! assert_eq!(refused.retry_after(), Some(Duration::from_secs(4)));
//! ```

use std::{borrow::Cow, error::Error, fmt, io, ops::RangeInclusive, sync::Arc, time::Duration};

mod rule;

pub use self::rule::{Enforcement, Rule};

/// A boxed error, in the tower convention.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The most links of an error chain that are followed.
const MAX_CHAIN: usize = 32;

/// Iterates over an error and its sources, and the error inside an [`io::Error`], which `source`
/// skips.
pub(crate) fn chain<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error: &&'a (dyn Error + 'static)| {
        let wrapped = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        match wrapped {
            Some(inner) => Some(inner as &(dyn Error + 'static)),
            None => error.source(),
        }
    })
    .take(MAX_CHAIN)
}

/// Returns the first error of type `T` in the chain.
pub(crate) fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    chain(error).find_map(|error| error.downcast_ref::<T>())
}

/// A setting that is not allowed: which one, its value, what is allowed, and by which rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    rule: Option<Rule>,
    field: Cow<'static, str>,
    /// Empty if the setting could not be read.
    value: String,
    allowed: Cow<'static, str>,
}

impl ConfigError {
    pub(crate) fn new(
        rule: Option<Rule>,
        field: impl Into<Cow<'static, str>>,
        value: impl fmt::Display,
        allowed: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            rule,
            field: field.into(),
            value: value.to_string(),
            allowed: allowed.into(),
        }
    }

    /// Checks that a setting is in its range.
    pub(crate) fn within<T: Copy + PartialOrd + fmt::Debug>(
        field: impl Into<Cow<'static, str>>,
        value: T,
        range: RangeInclusive<T>,
        allowed: impl Into<Cow<'static, str>>,
    ) -> Result<(), Self> {
        match range.contains(&value) {
            true => Ok(()),
            false => Err(Self::new(None, field, format_args!("{value:?}"), allowed)),
        }
    }

    /// Makes an error for a setting, or a whole document, that could not be read.
    #[cfg(feature = "serde")]
    pub(crate) fn unreadable(field: String, message: String) -> Self {
        Self::new(None, field, "", message)
    }

    /// Returns the same error about a setting of another name.
    #[cfg(feature = "serde")]
    pub(crate) fn renamed(self, field: String) -> Self {
        Self {
            field: field.into(),
            ..self
        }
    }

    /// Prefixes the setting with its table.
    #[cfg(feature = "serde")]
    pub(crate) fn inside(self, table: &str) -> Self {
        Self {
            field: format!("{table}.{}", self.field).into(),
            ..self
        }
    }

    /// Returns the rule that the value breaks, if an approval can lift it.
    #[must_use]
    pub fn rule(&self) -> Option<Rule> {
        self.rule
    }

    /// Returns the setting's name, with its section: `backoff.base`.
    #[must_use]
    pub fn field(&self) -> &str {
        &self.field
    }

    /// Returns the value that was refused; empty if it could not be read.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Returns the allowed values, or why the value could not be read.
    #[must_use]
    pub fn allowed(&self) -> &str {
        &self.allowed
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rule) = self.rule {
            write!(f, "{rule}: ")?;
        }
        let Self {
            field,
            value,
            allowed,
            ..
        } = self;
        if value.is_empty() {
            return write!(f, "{field}: {allowed}");
        }
        write!(f, "{field} is {value}, allowed: {allowed}")?;
        if self.rule.is_some() {
            f.write_str(" (or an approval with a reason)")?;
        }
        Ok(())
    }
}

impl Error for ConfigError {}

/// The guard that refused a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The dependency's circuit breaker is open.
    Breaker,
    /// The dependency shows signs of overload, and this call is one of those that are kept from it.
    Throttle,
    /// The dependency asked not to be called before a time that this call can't wait for.
    RetryAfter,
    /// The call is a retry, and the dependency's retry budget is used up.
    Budget,
    /// The deadline of the request that the call is made for has passed.
    Deadline,
}

impl Refusal {
    /// Returns a stable name, for logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Breaker => "breaker",
            Self::Throttle => "throttle",
            Self::RetryAfter => "retry_after",
            Self::Budget => "budget",
            Self::Deadline => "deadline",
        }
    }
}

/// A call that was not sent, because a guard of its dependency refused it.
#[derive(Debug, Clone)]
pub struct Refused {
    kind: Refusal,
    dependency: Arc<str>,
    retry_after: Option<Duration>,
}

impl Refused {
    /// Makes a refusal by `kind` of a call to `dependency` that may be retried after `retry_after`.
    pub fn new(
        kind: Refusal,
        dependency: impl Into<Arc<str>>,
        retry_after: Option<Duration>,
    ) -> Self {
        Self {
            kind,
            dependency: dependency.into(),
            retry_after,
        }
    }

    /// Finds a refusal anywhere in an error's chain.
    #[must_use]
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        find(error)
    }

    /// Returns the guard that refused.
    #[must_use]
    pub fn kind(&self) -> Refusal {
        self.kind
    }

    /// Returns the dependency that was not called.
    #[must_use]
    pub fn dependency(&self) -> &str {
        &self.dependency
    }

    /// Returns the time until a call may be admitted, if known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.kind {
            Refusal::Breaker => "its circuit breaker is open",
            Refusal::Throttle => "it is overloaded",
            Refusal::RetryAfter => "it asked not to be called yet",
            Refusal::Budget => "its retry budget is used up",
            Refusal::Deadline => "the caller's deadline has passed",
        };
        write!(f, "{}: call refused, {why}", self.dependency)?;
        match self.retry_after {
            Some(wait) => write!(f, ", try again in {wait:?}"),
            None => Ok(()),
        }
    }
}

impl Error for Refused {}

/// A call, or one attempt of it, that exceeded its time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed {
    pub(crate) whole_call: bool,
    pub(crate) limit: Duration,
}

impl Elapsed {
    /// Returns whether the whole call exceeded its limit, rather than one attempt.
    #[must_use]
    pub fn is_whole_call(&self) -> bool {
        self.whole_call
    }

    /// Returns the limit.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.limit
    }
}

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.whole_call { "call" } else { "attempt" };
        write!(f, "{what} took longer than {:?}", self.limit)
    }
}

impl Error for Elapsed {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_an_io_error_wraps() {
        let refused = Refused::new(Refusal::Budget, "a", None);
        let error: BoxError = Box::new(io::Error::other(refused));
        assert_eq!(
            Refused::find(&*error).map(Refused::kind),
            Some(Refusal::Budget)
        );
    }

    #[test]
    fn s_3_an_endless_chain_is_cut() {
        #[derive(Debug)]
        struct Loop;
        impl fmt::Display for Loop {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("loop")
            }
        }
        impl Error for Loop {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&Loop)
            }
        }
        assert_eq!(chain(&Loop).count(), MAX_CHAIN);
    }
}
