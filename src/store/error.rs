use std::{borrow::Cow, error::Error, fmt};

use crate::error::BoxError;

/// What kept a store from making a transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store can't be reached, or the connection was lost.
    Unavailable,
    /// The store did not answer in time.
    Timeout,
    /// Every connection is in use.
    PoolExhausted,
    /// There is no room for another record, and no record that is past its time.
    Full,
    /// The store was written by a newer version of this crate.
    NewerSchema,
    /// What the store holds can't be read.
    Corrupt,
    /// Anything else.
    Other,
}

impl StoreErrorKind {
    /// A stable name, for logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::PoolExhausted => "pool_exhausted",
            Self::Full => "full",
            Self::NewerSchema => "newer_schema",
            Self::Corrupt => "corrupt",
            Self::Other => "other",
        }
    }
}

/// A store did not make a transition, or can't say whether it did.
///
/// ```
/// use tower_reprise::store::{StoreError, StoreErrorKind};
///
/// let error = StoreError::new(StoreErrorKind::Timeout, "no answer within 2s").in_doubt();
/// assert!(error.may_have_happened());
/// assert!(error.is_transient());
/// assert_eq!(error.to_string(), "idempotency store: no answer within 2s (timeout, may have happened)");
/// ```
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Cow<'static, str>,
    in_doubt: bool,
    source: Option<BoxError>,
}

impl StoreError {
    /// A transition that did not happen. The message must hold nothing of a record.
    pub fn new(kind: StoreErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            message: message.into(),
            in_doubt: false,
            source: None,
        }
    }

    /// The transition may have happened: it was sent, and the answer got lost.
    #[must_use]
    pub fn in_doubt(mut self) -> Self {
        self.in_doubt = true;
        self
    }

    /// With the error that is behind this one.
    #[must_use]
    pub fn because(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kept the store.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the transition may have happened all the same. It can be repeated either way:
    /// every verb of a store can.
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
