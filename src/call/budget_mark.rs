//! The mark that a request was counted, which layers leave for each other.

use std::sync::atomic::{AtomicU64, Ordering};

use http::Extensions;

/// The registry that a mark is of. A service may forward a request's extensions to a client with
/// another registry, which does not go by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegistryId(u64);

impl RegistryId {
    /// Returns an id that no other registry of this process has.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// On a request's extensions: a layer above with this registry counted it as an original, so the layers
/// below do not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BudgetMark(pub(crate) RegistryId);

/// The contents of a request's extensions, as far as one look tells. A look costs as much as all
/// else that is done with most requests, so this one tells whether others are worth it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExtensionsKind {
    /// No extensions.
    Empty,
    /// A [`BudgetMark`], and nothing else.
    BudgetMarkOnly,
    /// Anything else.
    Other,
}

impl ExtensionsKind {
    #[inline]
    pub(crate) fn of(extensions: &Extensions) -> Self {
        match extensions.len() {
            0 => Self::Empty,
            1 if extensions.get::<BudgetMark>().is_some() => Self::BudgetMarkOnly,
            _ => Self::Other,
        }
    }
}
