//! The mark that a request was counted, which layers leave for each other.

use http::Extensions;

/// On a request's extensions: a layer above counted it as an original, so the layers below do not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BudgetMark;

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
