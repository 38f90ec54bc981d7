//! tower's retry, as its documentation shows it.

use std::sync::Arc;

use tokio::time::Sleep;
use tower::{
    retry::{
        Policy,
        backoff::{Backoff, ExponentialBackoff},
        budget::{Budget, TpsBudget},
    },
    util::rng::Rng,
};

/// A policy with tower's own backoff and default budget.
#[derive(Debug, Clone)]
pub(crate) struct Budgeted<R, F> {
    pub(crate) left: u32,
    /// As with tower's own, each call begins with a clone of its generator.
    pub(crate) backoff: ExponentialBackoff<R>,
    pub(crate) budget: Arc<TpsBudget>,
    pub(crate) succeeded: F,
}

impl<R, F, Req, Res, E> Policy<Req, Res, E> for Budgeted<R, F>
where
    R: Rng + Clone,
    F: Fn(&Result<Res, E>) -> bool,
    Req: Clone,
{
    type Future = Sleep;

    fn retry(&mut self, _: &mut Req, result: &mut Result<Res, E>) -> Option<Sleep> {
        if (self.succeeded)(result) {
            self.budget.deposit();
            return None;
        }
        let allowed = self.left > 0 && self.budget.withdraw();
        allowed.then(|| {
            self.left -= 1;
            self.backoff.next_backoff()
        })
    }

    fn clone_request(&mut self, request: &Req) -> Option<Req> {
        Some(request.clone())
    }
}
