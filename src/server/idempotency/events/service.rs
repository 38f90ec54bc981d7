use std::{
    error::Error,
    fmt,
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use tower::{Service, ServiceExt};

use super::{EventFailure, EventResponse, layer::DedupState};
use crate::{
    error::BoxError,
    http::digest::Digest,
    server::dialect::{Operation, OperationId},
    server::idempotency::{Execution, engine::Engine, settlement::Settlement},
    store::{
        Claimed, Fingerprint, IdempotencyStore, Note, Ownership, RecordKey, StoreError, Stored,
    },
    telemetry::{self, Answered, Labels},
};

/// The end of an event that need not be delivered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consumed<R> {
    /// It was processed now.
    Processed(R),
    /// It was processed before.
    Duplicate,
}

/// The reason why an event was not processed, other than an error of its consumer.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotConsumed {
    /// It has no id.
    NoId,
    /// It is being processed elsewhere. Deliver it again after this.
    InFlight(Duration),
    /// A consumer vanished while it processed it, and it is not known whether it took effect: a
    /// person has to look.
    OutcomeUnknown,
    /// Its consumer panicked. Deliver it again.
    Crashed,
    /// Its consumer's response says that it failed ([`EventResponse`]). Deliver it again.
    Failed(EventFailure),
    /// The store can't tell whether it was processed before.
    Store(StoreError),
}

impl fmt::Display for NotConsumed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoId => f.write_str("event has no id"),
            Self::InFlight(wait) => {
                write!(f, "event is being processed elsewhere, for up to {wait:?}")
            }
            Self::OutcomeUnknown => {
                f.write_str("event was begun, and it is not known whether it took effect")
            }
            Self::Crashed => f.write_str("consumer panicked"),
            Self::Failed(failure) => write!(f, "consumer failed: {}", failure.reason()),
            Self::Store(_) => f.write_str("not known whether the event was processed before"),
        }
    }
}

impl Error for NotConsumed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

/// The future of an [`EventDedup`] service.
pub type EventDedupFuture<R> = Pin<Box<dyn Future<Output = Result<Consumed<R>, BoxError>> + Send>>;

/// The service of an [`EventDedupLayer`](super::EventDedupLayer).
///
/// # Clone
///
/// Clones share the store.
pub struct EventDedup<S, St, F> {
    pub(super) inner: S,
    pub(super) state: Arc<DedupState<St, F>>,
}

impl<S: Clone, St, F> Clone for EventDedup<S, St, F> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            state: Arc::clone(&self.state),
        }
    }
}

opaque_debug! {
    EventDedup<S: fmt::Debug, St, F>, self, inner = self.inner, consumer = self.state.consumer
}

impl<S, St, F, E, T> Service<E> for EventDedup<S, St, F>
where
    S: Service<E> + Clone + Send + 'static,
    S::Response: EventResponse + Send,
    S::Future: Send,
    S::Error: Into<BoxError>,
    St: IdempotencyStore,
    F: Fn(&E) -> Option<T>,
    T: AsRef<[u8]>,
    E: Send + 'static,
{
    type Response = Consumed<S::Response>;
    type Error = BoxError;
    type Future = EventDedupFuture<S::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, event: E) -> Self::Future {
        let Some(id) = (self.state.id)(&event) else {
            crate::call::release(&mut self.inner);
            telemetry::idempotency(Answered::Refused, Labels::default);
            return Box::pin(async { Err(NotConsumed::NoId.into()) });
        };
        let mut digest = Digest::new("event");
        digest.part(self.state.consumer.as_bytes());
        digest.part(id);
        let key = RecordKey::from(digest);
        let inner = crate::call::take_ready(&mut self.inner);
        Box::pin(consume(Arc::clone(&self.state.engine), inner, event, key))
    }
}

async fn consume<S, St, E>(
    engine: Arc<Engine<St>>,
    inner: S,
    event: E,
    key: RecordKey,
) -> Result<Consumed<S::Response>, BoxError>
where
    S: Service<E> + Send + 'static,
    S::Response: EventResponse + Send,
    S::Future: Send,
    S::Error: Into<BoxError>,
    St: IdempotencyStore,
    E: Send + 'static,
{
    let count = |answered| telemetry::idempotency(answered, Labels::default);
    // The id alone says which event it is.
    let operation = Operation {
        id: OperationId {
            key,
            fingerprint: Fingerprint::new([0; 32]),
        },
        note: Note::NONE,
        retention: engine.settings.limits.retention,
    };
    let not_consumed = match engine.claim(&operation, None).await {
        Ok(Claimed::New(lease)) => {
            count(match lease.orphaned {
                true => Answered::Orphaned,
                false => Answered::Executed,
            });
            let execution = Execution::new(engine.clone(), key, lease, operation.retention);
            let pending = engine.pending.execution();
            let processing = tokio::spawn(telemetry::in_span(async move {
                let _pending = pending;
                let processing = pin!(process(&engine, &execution, inner.oneshot(event)));
                engine.hold(&execution, processing).await
            }));
            match processing.await {
                Ok(processed) => return processed,
                Err(_) => NotConsumed::Crashed,
            }
        }
        Ok(Claimed::Done {
            stored: Stored::Reply(_) | Stored::NotRetained,
            ..
        }) => {
            count(Answered::Replayed);
            return Ok(Consumed::Duplicate);
        }
        Ok(Claimed::Done {
            stored: Stored::Unknown,
            ..
        }) => {
            count(Answered::Orphaned);
            NotConsumed::OutcomeUnknown
        }
        Ok(Claimed::InFlight { remaining, .. }) => {
            count(Answered::InFlight);
            NotConsumed::InFlight(remaining)
        }
        // There is but one fingerprint.
        Ok(Claimed::Mismatch { .. }) => {
            count(Answered::Mismatch);
            NotConsumed::OutcomeUnknown
        }
        Err(error) => {
            count(Answered::StoreError);
            telemetry::store_trouble("claim", error.kind().as_str());
            NotConsumed::Store(error)
        }
    };
    Err(not_consumed.into())
}

/// Processes an event, and settles it with the store.
async fn process<St, R, E>(
    engine: &Arc<Engine<St>>,
    execution: &Execution,
    processing: impl Future<Output = Result<R, E>>,
) -> Result<Consumed<R>, BoxError>
where
    St: IdempotencyStore,
    R: EventResponse,
    E: Into<BoxError>,
{
    // The consumer's error need not be `Send`, so it is boxed before the next await.
    let processed = match processing.await.map_err(Into::into) {
        Ok(response) => match response.failure() {
            None => Ok(response),
            Some(failure) => Err(NotConsumed::Failed(failure).into()),
        },
        failed => failed,
    };
    let settlement = match processed {
        Ok(_) => Settlement::Complete(Stored::Reply(Bytes::new())),
        Err(_) => Settlement::Release,
    };
    match engine.settle(execution, settlement).await {
        Ownership::Held => processed.map(Consumed::Processed),
        Ownership::Lost => Err(NotConsumed::InFlight(engine.settings.limits.lease).into()),
    }
}
