//! The client's layers, from the caller inwards.

use tower_reprise::{
    CircuitBreakerLayer, Dependencies, IdempotencyKeyLayer, RetryAfterLayer, RetryBudgetLayer,
    RetryLayer,
};

type Keyless = (
    RetryBudgetLayer,
    RetryLayer,
    RetryAfterLayer,
    CircuitBreakerLayer,
);

/// All five layers in the recommended order.
pub(crate) fn all(deps: &Dependencies) -> (IdempotencyKeyLayer, Keyless) {
    (IdempotencyKeyLayer::new(), keyless(deps))
}

/// All layers but the one that stamps keys.
pub(crate) fn keyless(deps: &Dependencies) -> Keyless {
    (
        RetryBudgetLayer::new(deps.clone()),
        RetryLayer::new(deps.clone()),
        RetryAfterLayer::new(deps.clone()),
        CircuitBreakerLayer::new(deps.clone()),
    )
}
