use std::{borrow::Cow, error::Error, fmt, sync::Arc};

use crate::error::{BoxError, ConfigError};

/// The reason for a [`StoreError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store is unreachable, or the connection was lost.
    Unavailable,
    /// The store did not respond in time.
    Timeout,
    /// Every connection is in use.
    PoolExhausted,
    /// No room is left, and no record has expired.
    Full,
    /// The store was written by a newer version of this crate.
    NewerSchema,
    /// The stored data is unreadable.
    Corrupt,
    /// The store does not provide this verb.
    Unsupported,
    /// Anything else.
    Other,
}

impl StoreErrorKind {
    /// Returns a stable name, for logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::PoolExhausted => "pool_exhausted",
            Self::Full => "full",
            Self::NewerSchema => "newer_schema",
            Self::Corrupt => "corrupt",
            Self::Unsupported => "unsupported",
            Self::Other => "other",
        }
    }
}

/// A transition that failed, or whose outcome is unknown.
///
/// ```
/// use tower_reprise::store::{StoreError, StoreErrorKind};
///
/// let error = StoreError::new(StoreErrorKind::Timeout, "no response within 2s").in_doubt();
/// assert!(error.may_have_happened());
/// assert!(error.is_transient());
/// assert_eq!(error.to_string(), "idempotency store: no response within 2s (timeout, may have happened)");
/// ```
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Cow<'static, str>,
    in_doubt: bool,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// Creates the error of a transition that did not happen. The message must not contain data of
    /// a record.
    pub fn new(kind: StoreErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            message: message.into(),
            in_doubt: false,
            source: None,
        }
    }

    /// Marks the outcome as unknown: the transition was sent, and its response was lost.
    #[must_use]
    pub fn in_doubt(mut self) -> Self {
        self.in_doubt = true;
        self
    }

    /// Marks the outcome as unknown if an earlier attempt left it so.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) fn in_doubt_if(mut self, in_doubt: bool) -> Self {
        self.in_doubt |= in_doubt;
        self
    }

    /// Adds the error that caused this one.
    #[must_use]
    pub fn because(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// Returns the same error for another verb that met it.
    #[cfg(feature = "redis")]
    pub(crate) fn share(&self) -> Self {
        Self {
            kind: self.kind,
            message: self.message.clone(),
            in_doubt: self.in_doubt,
            source: self.source.clone(),
        }
    }

    /// Returns the reason.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the transition may have happened. It is safe to repeat either way, as every verb of a
    /// store is.
    #[must_use]
    pub fn may_have_happened(&self) -> bool {
        self.in_doubt
    }

    /// Whether the same transition may succeed a moment later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self.kind,
            StoreErrorKind::Unavailable | StoreErrorKind::Timeout | StoreErrorKind::PoolExhausted
        )
    }
}

/// A setting out of its range, as [`StoreErrorKind::Other`].
impl From<ConfigError> for StoreError {
    fn from(error: ConfigError) -> Self {
        Self::new(StoreErrorKind::Other, error.to_string()).because(error)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let doubt = if self.in_doubt {
            ", may have happened"
        } else {
            ""
        };
        let kind = self.kind.as_str();
        write!(f, "idempotency store: {} ({kind}{doubt})", self.message)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
