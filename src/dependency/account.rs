use std::sync::Arc;

use http::Request;
use tokio::time::Instant;

use crate::{
    call::{
        Attempt, CallerContext,
        attempt_headers::{Origin, origin},
        budget_mark::BudgetMark,
    },
    dependency::{Charge, Dependency, LastSlot},
    error::Refused,
};

/// The part of a request's accounting that falls to a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accounting {
    /// Counts originals, and marks what it counted and charged for the layers below.
    Marking,
    /// Counts originals and leaves no mark, since the layers below are another client's.
    Unmarked,
}

/// The entry that a layer made for a request.
#[derive(Debug)]
pub(crate) enum Accounted {
    /// An original, counted in this slot of the budget.
    Original(u64),
    /// A repeat that was charged.
    Repeat(Charge),
}

impl Accounted {
    /// Takes the entry of a request back that was refused before it went out.
    pub(crate) fn take_back(self, dependency: &Dependency) {
        match self {
            Self::Original(slot) => dependency.uncount_original(slot),
            Self::Repeat(charge) => charge.take_back(),
        }
    }
}

/// Counts an original, or charges a repeat, unless a mark on the request says that a layer above
/// did so. Fails for a repeat over the budget.
pub(crate) fn account<B>(
    dependency: &Arc<Dependency>,
    slot: &mut LastSlot,
    request: &mut Request<B>,
    part: Accounting,
) -> Result<Option<Accounted>, Refused> {
    let registry = dependency.registry();
    match origin(request, registry) {
        Origin::Counted | Origin::Charged => {}
        // It passes a retry of the caller's on.
        Origin::Original if part == Accounting::Marking && serves_retry(request) => {}
        Origin::Original => {
            let slot = dependency.count_original(Instant::now(), slot);
            if part == Accounting::Marking {
                request.extensions_mut().insert(BudgetMark(registry));
            }
            return Ok(Some(Accounted::Original(slot)));
        }
        Origin::Repeated(previous) => {
            let charge = dependency.charge_repeat()?;
            if part != Accounting::Unmarked {
                let charged = Attempt::charged_elsewhere(previous, registry);
                request.extensions_mut().insert(charged);
            }
            return Ok(Some(Accounted::Repeat(charge)));
        }
    }
    Ok(None)
}

/// Returns whether a request is made in the course of one that is a retry.
fn serves_retry<B>(request: &Request<B>) -> bool {
    let caller = CallerContext::of(Some(request.extensions()));
    caller.as_ref().is_some_and(CallerContext::serves_retry)
}
