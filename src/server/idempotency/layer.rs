use std::sync::Arc;

use tower::Layer;

use super::{Drain, Idempotency, IdempotencyBuilder, settings::LayerState};
use crate::{policy::Audit, server::dialect::HttpDialect};
#[cfg(feature = "delivery")]
use {
    super::{
        Execution,
        settlement::{Resumes, Settlement},
    },
    crate::{
        call::ReplayAttempt,
        server::dialect::{Admission, Dialect, Operation, Scope},
        store::{Claimed, IdempotencyStore},
    },
    bytes::Bytes,
    http::Request,
    std::{future::Future, pin::Pin, time::Duration},
};

/// Executes an operation once, however often a request asks for it in the dialect `D`. See the
/// [module docs](super).
///
/// # Clone
///
/// Clones, and the services made of them, share the store.
#[derive(Debug)]
#[must_use]
pub struct IdempotencyLayer<St, D = HttpDialect> {
    state: Arc<LayerState<St, D>>,
}

impl<St, D> Clone for IdempotencyLayer<St, D> {
    fn clone(&self) -> Self {
        Self {
            state: Arc::clone(&self.state),
        }
    }
}

impl<St> IdempotencyLayer<St> {
    /// Builds a layer on a store.
    pub fn builder(store: St) -> IdempotencyBuilder<St> {
        IdempotencyBuilder::new(store)
    }
}

impl<St, D> IdempotencyLayer<St, D> {
    pub(super) fn new(state: LayerState<St, D>) -> Self {
        Self {
            state: Arc::new(state),
        }
    }

    /// Returns the owners of its keys and the dialect that it speaks.
    #[cfg(feature = "delivery")]
    pub(crate) fn scope_and_dialect(&self) -> (&Scope, &D) {
        (&self.state.scope, &self.state.dialect)
    }

    /// Returns the end of suspended executions: of a request that a journal attempts no more, the
    /// record is left to the crash policy, and to a redrive.
    #[cfg(feature = "delivery")]
    pub(crate) fn abandon(&self) -> Abandon
    where
        St: IdempotencyStore,
        D: Dialect,
    {
        let state = Arc::clone(&self.state);
        Arc::new(move |request| {
            let state = Arc::clone(&state);
            Box::pin(async move { abandon(&state, request).await.unwrap_or_default() })
        })
    }
}

/// Ends the suspended execution of a request that carries a [`ReplayAttempt`].
#[cfg(feature = "delivery")]
pub(crate) type Abandon =
    Arc<dyn Fn(Request<Bytes>) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

#[cfg(feature = "delivery")]
async fn abandon<St: IdempotencyStore, D: Dialect>(
    state: &Arc<LayerState<St, D>>,
    request: Request<Bytes>,
) -> Option<()> {
    let (parts, body) = request.into_parts();
    let head = Request::from_parts(parts, ());
    // No further attempt comes, so that repeats need not wait for one.
    let resumes = Resumes {
        hold: Duration::ZERO,
        ..Resumes::of(head.extensions().get::<ReplayAttempt>()?, Duration::ZERO)?
    };
    let Admission::Admitted(mut asked) = state.dialect.admit(state.context(), &head) else {
        return None;
    };
    let operation = state
        .dialect
        .operation(state.context(), &head, &mut asked, &body);
    let operation = operation.ok()??;
    // Its record is another's, done, or not there otherwise.
    let claimed = state.engine.claim(&operation, Some(resumes)).await.ok()?;
    let Claimed::New(lease) = claimed else {
        return None;
    };
    let settlement = Settlement::unexecuted(lease.orphaned, Some(resumes));
    let Operation { id, retention, .. } = operation;
    let execution = Execution::new(Arc::clone(state) as _, id.key, lease, retention);
    let _ = state.engine.settle(&execution, settlement).await;
    Some(())
}

impl<St, D> IdempotencyLayer<St, D> {
    /// Returns a handle that waits for this layer's work at shutdown.
    #[must_use]
    pub fn drain(&self) -> Drain {
        Drain {
            pending: Arc::clone(&self.state.engine.pending),
        }
    }
}

/// Reports keys that may be longer than R-6 allows.
impl<St, D> From<&IdempotencyLayer<St, D>> for Audit {
    fn from(layer: &IdempotencyLayer<St, D>) -> Self {
        Self::of_key_len(layer.state.settings.max_key_len)
    }
}

impl<S, St, D> Layer<S> for IdempotencyLayer<St, D> {
    type Service = Idempotency<S, St, D>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotency {
            inner,
            state: Arc::clone(&self.state),
        }
    }
}
