use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::Request;
use tower::Service;

use super::{RetryBudgetFuture, future::Counted};
use crate::{
    classify::{Classify, Standard},
    dependency::{Accounting, ByAuthority, DependencyCache, LastSlot, Locate, account},
    error::BoxError,
};

/// The service of a [`RetryBudgetLayer`](super::RetryBudgetLayer).
///
/// # Clone
///
/// All state is in the registry, so clones share the budget.
#[derive(Debug, Clone)]
pub struct RetryBudget<S, C = Standard, L = ByAuthority> {
    pub(super) inner: S,
    pub(super) cache: DependencyCache<C, L>,
    pub(super) slot: LastSlot,
    pub(super) part: Accounting,
}

impl<S, C, L, B> Service<Request<B>> for RetryBudget<S, C, L>
where
    S: Service<Request<B>> + Clone,
    S::Error: Into<BoxError>,
    C: Classify<Request<B>, S::Response> + Clone,
    L: Locate<Request<B>>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = RetryBudgetFuture<S::Future, C, Request<B>>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let (deps, dependency) = self.cache.find(&request);
        let counted = match account(dependency, &mut self.slot, &mut request, self.part) {
            Ok(entry) => entry.map(|entry| Counted {
                entry,
                dependency: Arc::clone(dependency),
                classifier: deps.classifier.clone(),
            }),
            Err(refused) => {
                crate::call::release(&mut self.inner);
                return RetryBudgetFuture::refused(refused);
            }
        };
        RetryBudgetFuture::called(self.inner.call(request), counted)
    }
}
