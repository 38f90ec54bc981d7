//! Retries of other makes, set up to do what ours does as far as they can: the same statuses and
//! methods, three retries, exponential backoff with jitter, and a budget.

use std::{sync::Arc, time::Duration};

use http::{Method, StatusCode};
use tokio::time::Sleep;
use tower::{
    Layer,
    retry::{
        Policy, Retry,
        backoff::{Backoff, ExponentialBackoff, ExponentialBackoffMaker, MakeBackoff},
        budget::{Budget, TpsBudget},
    },
    util::rng::HasherRng,
};
use tower_reprise::error::BoxError;
use tower_resilience_retry::{ExponentialRandomBackoff, RetryBudgetBuilder, RetryLayer};

use super::contestant::{Call, Inner, Outcome, Reply};

const RETRIES: usize = 3;
const BASE: Duration = Duration::from_secs(1);
const CAP: Duration = Duration::from_secs(30);

fn is_transient(reply: &Reply) -> bool {
    matches!(
        reply.status(),
        StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::INTERNAL_SERVER_ERROR
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

fn is_repeatable(call: &Call) -> bool {
    !matches!(*call.method(), Method::POST | Method::PATCH)
        || call.headers().contains_key("idempotency-key")
}

/// A policy as tower's documentation has it.
#[derive(Debug, Clone)]
pub(super) struct Budgeted {
    left: usize,
    backoff: ExponentialBackoff,
    budget: Arc<TpsBudget>,
}

impl Policy<Call, Reply, BoxError> for Budgeted {
    type Future = Sleep;

    fn retry(&mut self, call: &mut Call, outcome: &mut Outcome) -> Option<Sleep> {
        match outcome {
            Ok(reply) if !is_transient(reply) => {
                self.budget.deposit();
                None
            }
            _ => {
                let allowed = is_repeatable(call) && self.left > 0 && self.budget.withdraw();
                allowed.then(|| {
                    self.left -= 1;
                    self.backoff.next_backoff()
                })
            }
        }
    }

    fn clone_request(&mut self, call: &Call) -> Option<Call> {
        Some(call.clone())
    }
}

pub(super) fn tps_budget() -> TpsBudget {
    TpsBudget::new(Duration::from_secs(30), 10, 0.2)
}

pub(super) fn tower(inner: Inner) -> Retry<Budgeted, Inner> {
    let backoff = ExponentialBackoffMaker::new(BASE, CAP, 0.99, HasherRng::default());
    let policy = Budgeted {
        left: RETRIES,
        backoff: backoff.expect("in range").make_backoff(),
        budget: Arc::new(tps_budget()),
    };
    Retry::new(policy, inner)
}

pub(super) fn resilience(
    inner: Inner,
) -> tower_resilience_retry::Retry<Inner, Call, Reply, BoxError> {
    let budget = RetryBudgetBuilder::new().token_bucket().build();
    let backoff = ExponentialRandomBackoff::new(BASE, 0.5).expect("in range");
    RetryLayer::builder()
        .max_attempts_fn(|call| if is_repeatable(call) { RETRIES + 1 } else { 1 })
        .backoff(backoff.max_interval(CAP))
        .retry_on_response(is_transient)
        .budget(budget.expect("in range"))
        .build()
        .layer(inner)
}
