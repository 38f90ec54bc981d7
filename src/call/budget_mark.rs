//! The mark that a request was counted, which layers leave for each other.

use std::{cell::RefCell, mem};

use http::Extensions;

/// On a request's extensions: a layer above counted it as an original.
///
/// Most requests have no extensions, and the first one costs two allocations. So a map that holds
/// the mark and nothing else is recycled by the layer that the mark was for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BudgetMark;

impl BudgetMark {
    const POOLED: usize = 64;

    /// Marks a request.
    pub(crate) fn put(extensions: &mut Extensions) {
        if extensions.is_empty() {
            let pooled = POOL.try_with(|pool| pool.borrow_mut().pop());
            if let Some(marked) = pooled.ok().flatten() {
                *extensions = marked;
                return;
            }
        }
        extensions.insert(Self);
    }

    /// Takes the mark from a request that has no other extensions.
    pub(crate) fn take(extensions: &mut Extensions) {
        let marked = mem::take(extensions);
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < Self::POOLED {
                pool.push(marked);
            }
        });
    }
}

thread_local! {
    static POOL: RefCell<Vec<Extensions>> = const { RefCell::new(Vec::new()) };
}

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
