use std::{borrow::Cow, marker::PhantomData, time::Duration};

use tower::{Service, ServiceExt};

use super::{
    DeadLetters, EventFailure, EventResponse, KEEP, Letter,
    layer::{retry_after, settlement},
    reason,
};
use crate::{
    delivery::{
        redact::correlation_id,
        stored_message::StoredMessage,
        worker::{AttemptLabels, Handler, WorkerBuilder},
    },
    error::BoxError,
    store::journal::{Entry, Journal, Settlement},
};

/// The retention of an event that was processed.
const KEEP_DONE: Duration = Duration::from_secs(60 * 60);

/// The most attempts of a letter, all but the last of which killed their worker.
const MAX_ATTEMPTS: u32 = 3;

impl<J: Journal + Clone> DeadLetters<J> {
    /// Returns a worker that delivers redriven events of a queue to their consumer: the one below the
    /// [`DeadLetterLayer`](super::DeadLetterLayer), with its retries. An event on which it fails is a
    /// dead letter again; one that it can't process now
    /// ([`NotConsumed`](crate::server::idempotency::events::NotConsumed)) is delivered again.
    pub fn redelivery<S, E, F>(
        &self,
        queue: impl Into<Cow<'static, str>>,
        consumer: S,
        event: F,
    ) -> WorkerBuilder<J, Redelivery<S, F, E>>
    where
        F: Fn(Letter) -> E,
        Redelivery<S, F, E>: Handler,
    {
        let handler = Redelivery {
            consumer,
            event,
            of: PhantomData,
        };
        WorkerBuilder::new(self.journal.clone(), queue, handler)
    }
}

/// The handler of [`DeadLetters::redelivery`].
pub struct Redelivery<S, F, E> {
    consumer: S,
    event: F,
    of: PhantomData<fn() -> E>,
}

opaque_debug! { Redelivery<S, F, E> }

impl<S, F, E> Handler for Redelivery<S, F, E>
where
    S: Service<E> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Response: EventResponse + Send,
    S::Error: Into<BoxError>,
    F: Fn(Letter) -> E + Send + Sync + 'static,
    E: Send + 'static,
{
    fn target<'a>(&self, entry: &'a Entry) -> Option<Cow<'a, str>> {
        Some(Cow::Borrowed(&entry.queue))
    }

    fn labels(&self, entry: &Entry) -> AttemptLabels {
        let message = StoredMessage::<Option<String>>::decode(entry.payload.clone());
        let (id, headers) = message.map_or_else(Default::default, |m| (m.meta, m.headers));
        AttemptLabels {
            max_attempts: MAX_ATTEMPTS,
            correlation_id: correlation_id(&headers),
            idempotency_key: id,
        }
    }

    async fn handle(&self, entry: Entry) -> Settlement {
        if entry.is_past() {
            return reason::failed(reason::NOT_IN_TIME, KEEP);
        }
        if entry.attempts > MAX_ATTEMPTS {
            return reason::failed(reason::WORKERS_DIED, KEEP);
        }
        let Some(message) = StoredMessage::<Option<String>>::decode(entry.payload) else {
            return reason::failed(reason::UNREADABLE, KEEP);
        };
        let event = (self.event)(Letter {
            id: message.meta,
            owner: entry.owner,
            label: entry.label,
            headers: message.headers,
            payload: message.body,
        });
        // The error is converted before the next await, since it need not be `Send`.
        let processed = self
            .consumer
            .clone()
            .oneshot(event)
            .await
            .map_err(Into::into);
        let failure = match processed {
            Ok(response) => response.failure(),
            Err(error) => {
                let error: BoxError = error;
                // The consumer did not begin, so this is no attempt. The entry's expiry bounds it.
                if let Some(after) = retry_after(&error) {
                    return Settlement::release(after);
                }
                Some(EventFailure::of_error(&error))
            }
        };
        match failure {
            None => Settlement::completed("", KEEP_DONE),
            Some(failure) => settlement(&failure),
        }
    }
}
