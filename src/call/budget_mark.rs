//! How layers tell each other that a request was counted.

use std::cell::RefCell;

use http::Extensions;

/// On a request's extensions: it was counted as an original by a layer above.
///
/// Most requests have no extensions, and the first one costs two allocations. So a map that holds
/// the mark and nothing else is passed on as it is, and recycled by the layer that the mark was
/// for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted;

impl Counted {
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
        let marked = std::mem::take(extensions);
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

/// What is on a request's extensions. A look into them costs as much as all else that is done
/// with most requests, so one look tells whether others are worth it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marks {
    /// Nothing.
    Nothing,
    /// That it was counted, and nothing else.
    Counted,
    /// Something else.
    Others,
}

impl Marks {
    #[inline]
    pub(crate) fn on(extensions: &Extensions) -> Self {
        match extensions.len() {
            0 => Self::Nothing,
            1 if extensions.get::<Counted>().is_some() => Self::Counted,
            _ => Self::Others,
        }
    }
}
